"""hvdc: compile DCM-Wan2.1 into one artifact that a phone's NPU and GPU run from a single INT8 copy of the weights."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("hvdc")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0.0.0"
