"""What a program took so far: time and memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any


class Clock:
    """Wall and processor time of a block."""

    def __enter__(self) -> Clock:
        self._begin = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self._end = time.perf_counter(), time.process_time()

    def found(self) -> dict[str, Any]:
        wall, processor = (end - begin for begin, end in zip(self._begin, self._end, strict=True))
        return {"wall_s": wall, "processor_s": processor}


def peak_bytes() -> int:
    """High-water mark of this program's resident memory. Source: proc(5), ``VmHWM`` in KiB."""
    status = Path("/proc/self/status").read_text("ascii", "replace")
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))
