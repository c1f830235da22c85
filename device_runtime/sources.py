"""The runtime's sources as one value: their identity, and an archive with the same bytes on every machine."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
"""The folder with ``CMakeLists.txt``; headers are below ``*/include``."""

SUFFIXES = {".c", ".h", ".cl", ".cpp", ".hpp", ".cmake", ".txt", ".json", ".S", ".ld"}
NAMES = {".clang-format", ".clang-tidy"}


def source_files() -> dict[str, bytes]:
    """All that a build reads, by its path below ``device_runtime/``, sorted."""
    paths = sorted(p for p in SOURCE.rglob("*") if p.is_file() and (p.suffix in SUFFIXES or p.name in NAMES))
    return {path.relative_to(SOURCE).as_posix(): path.read_bytes() for path in paths}


def sources_sha256(files: dict[str, bytes] | None = None) -> str:
    """SHA-256 over a line ``path sha256`` of each file."""
    files = source_files() if files is None else files
    lines = "".join(f"{path} {hashlib.sha256(data).hexdigest()}\n" for path, data in files.items())
    return hashlib.sha256(lines.encode()).hexdigest()


def sources_tar(files: dict[str, bytes] | None = None) -> bytes:
    """An uncompressed archive of ``device_runtime/``; no time, user or permission of this machine is in it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, data in (source_files() if files is None else files).items():
            entry = tarfile.TarInfo(f"device_runtime/{path}")
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
