"""The files of an artifact's directory, opened the way the C reader opens them.

Everything is relative to one directory descriptor, and no link is followed: an artifact cannot name a file outside of
itself, nor be exchanged below a reader by renaming the directory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hvdc.artifact.codes import Code
from hvdc.artifact.errors import ArtifactError


class Directory:
    """An open directory. ``path`` is for messages only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = _open(path, os.O_DIRECTORY, None, str(path))

    def close(self) -> None:
        os.close(self._fd)

    def open(self, relative: str) -> tuple[int, int]:
        """Descriptor and size of the regular file at a checked path: ``name`` or ``folder/name``.

        Raises ArtifactError MISSING_FILE, or IO for a link, a directory, a device, no permission.
        """
        folder, _, name = relative.rpartition("/")
        where = self.where(relative)
        parent = _open(folder, os.O_DIRECTORY | os.O_NOFOLLOW, self._fd, where) if folder else self._fd
        try:
            fd = _open(name, os.O_NOFOLLOW | os.O_NONBLOCK, parent, where)  # a FIFO must not block
        finally:
            if folder:
                os.close(parent)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise ArtifactError(Code.IO, where=where, expected="a regular file")
        return fd, status.st_size

    def where(self, relative: str) -> str:
        """A file's place, for messages."""
        return str(self.path / relative)

    def entries(self) -> Iterator[str]:
        """Relative path of every entry, two levels deep, sorted; folders end with '/'."""
        for name in sorted(os.listdir(self._fd)):  # noqa: PTH208 - pathlib cannot list a descriptor
            status = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                yield name
                continue
            yield f"{name}/"
            fd = _open(name, os.O_DIRECTORY | os.O_NOFOLLOW, self._fd, self.where(name))
            try:
                yield from (f"{name}/{inner}" for inner in sorted(os.listdir(fd)))  # noqa: PTH208
            finally:
                os.close(fd)


def _open(path: str | Path, flags: int, parent: int | None, where: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags, dir_fd=parent)
    except FileNotFoundError:
        raise ArtifactError(Code.MISSING_FILE, where=where) from None
    except OSError as error:
        raise ArtifactError(Code.IO, where=where, found=error.strerror or str(error)) from error
