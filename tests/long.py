"""Whether repetitions run in full: more clips, every combination. `make test-long` asks for it."""

from __future__ import annotations

import os

LONG = bool(os.environ.get("HVDC_TEST_LONG"))
