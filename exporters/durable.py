"""Files that are on the disk when a function returns."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

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
