"""What processes of a test run do one after the other."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[None]:
    """No other process is in here with the same file, which is made and stays."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
