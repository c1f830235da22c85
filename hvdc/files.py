"""Files and folders that appear whole or not at all: written under a temporary name, synced, renamed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hvdc.errors import HvdcError

TEMPORARY = ".tmp"
"""How a name ends while its file is written by `durable`: in folders of ours, one process at a time writes a name."""


def write_durably(path: Path, data: bytes | memoryview, *, executable: bool = False) -> None:
    """A whole file, on the disk when this returns. On failure nothing is left. Raises HvdcError."""
    with durable(path) as file:
        file.write(data)
        if executable:
            os.fchmod(file.fileno(), 0o755)


@contextlib.contextmanager
def durable(path: Path) -> Iterator[BinaryIO]:
    """A file to write: as `write_durably`, for what is written in parts. Raises HvdcError."""
    with explaining(path), _whole(path, path.with_name(path.name + TEMPORARY)) as file:
        yield file


def replace_file(path: Path, content: bytes) -> None:
    """A whole file or none, in a folder where other processes may write the same name, which may be as long as names
    can be. Raises OSError; what stood there before then still does."""
    with _whole(path, path.with_name(f".{os.getpid()}{TEMPORARY}")) as file:
        file.write(content)


@contextlib.contextmanager
def _whole(path: Path, temporary: Path) -> Iterator[BinaryIO]:
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def whole_folder(path: Path, prefix: str) -> Iterator[Path]:
    """A folder to fill, in one beside ``path`` whose name begins with ``prefix``; at the end it takes the place of the
    folder that is there. On failure nothing is left of it, and what was there still is. Raises OSError."""
    beside = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
    new, old = beside / "new", beside / "old"
    try:
        new.mkdir()
        yield new
        if path.exists():
            path.rename(old)
        try:
            new.rename(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextlib.contextmanager
def explaining(path: Path) -> Iterator[None]:
    """What the disk refuses, as HvdcError."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise HvdcError(
            "the disk is full" if full else "the output cannot be written",
            where=str(path),
            found=error.strerror or str(error),
            fix="make room and run the same command with --resume" if full else "",
        ) from error


def file_sha256(path: Path) -> str:
    """Of a file's bytes. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
