"""Files that are on the disk when a function returns."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_CHUNK_BYTES = 1 << 20


def hash_and_sync(path: Path) -> str:
    """SHA-256 of a file, which is on the disk afterwards."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
        os.fsync(file.fileno())
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Makes a rename in the folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def whole_file(path: Path, check: Callable[[], None] = lambda: None) -> Iterator[BinaryIO]:
    """A file to write, beside ``path`` until the end: then it is synced and takes its place, unless ``check()`` raises.

    On any failure nothing is left, and what was there still is. Raises OSError.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        check()
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
