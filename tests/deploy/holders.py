"""Somebody whose program works on a device's engines."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvdc.deploy.in_use import guarded


@contextmanager
def working(shell: str, lock: Path, what: str = "hvdc bench, dcm") -> Iterator[subprocess.Popen[bytes]]:
    """Somebody who holds it, and has said so."""
    process = subprocess.Popen([shell, "-c", guarded(str(lock), what, "exec sleep 60")])
    end_s = time.monotonic() + 10
    while not (lock.exists() and what in lock.read_text()) and time.monotonic() < end_s:
        time.sleep(0.01)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
