"""Tests. Times depend on the machine, so no example of a property fails for its time."""

from hypothesis import settings

settings.register_profile("hvdc", deadline=None)
settings.load_profile("hvdc")
