"""The bound that compiling is measured against: one pass over the same bytes.

Reads the checkpoint, computes SHA-256 of what it reads and of what it writes, and writes as many output bytes in as
many files, each synced, as the artifact has. No arithmetic.
``python -m benchmarks.bench_compile_pass CHECKPOINT SIZES DIRECTORY``: SIZES holds the size of each file on a line.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

READ_BYTES = 8 << 20


def main(checkpoint: Path, sizes_file: Path, out: Path) -> None:
    """Read, hash, write."""
    sizes = [int(line) for line in sizes_file.read_text().splitlines()]
    out.mkdir()
    read, wrote, buffer = hashlib.sha256(), hashlib.sha256(), bytearray(READ_BYTES)
    view, written, total = memoryview(buffer), 0, checkpoint.stat().st_size
    done, files = 0, iter(enumerate(sizes))
    with checkpoint.open("rb", buffering=0) as source:
        while count := source.readinto(buffer):
            read.update(view[:count])
            done += count
            while written < done / total * sum(sizes) and (entry := next(files, None)) is not None:
                index, size = entry
                _write(out / str(index), view, size, wrote)
                written += size


def _write(path: Path, data: memoryview, size: int, digest: hashlib._Hash) -> None:
    with path.open("wb", buffering=0) as file:
        left = size
        while left:
            piece = data[: min(left, len(data))]
            digest.update(piece)
            left -= file.write(piece)
        os.fsync(file.fileno())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
