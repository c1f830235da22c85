"""What processes of a test run do one after the other, or once for all of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[None]:
    """No other process is in here with the same file, which is made and stays."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder that is the same in all processes of a test run."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]) -> Path:
    """What ``make(folder)`` returns: something in the folder, which the first process makes and none changes."""
    folder = shared_folder(factory, name)
    made = folder / "made"
    with alone(folder / "lock"):
        if not made.exists():
            made.write_text(make(folder).relative_to(folder).as_posix())
    return folder / made.read_text()
