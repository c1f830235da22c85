"""What this machine can give: memory."""

from __future__ import annotations

import os
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
"""Of cgroup v2, as a container sees its own."""


def memory_bytes() -> int:
    """The machine's."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_memory_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """What can be taken without swapping, as Linux estimates it, within a container's limit; elsewhere all there is."""
    free = _number_in(meminfo, "MemAvailable:")
    free = memory_bytes() if free is None else free * 1024
    limit, used = _number_in(cgroup / "memory.max"), _number_in(cgroup / "memory.current")
    if limit is None or used is None:
        return free
    cached = _number_in(cgroup / "memory.stat", "inactive_file") or 0  # counted as used, and given up when needed
    return max(0, min(free, limit - used + cached))


def _number_in(path: Path, name: str = "") -> int | None:
    """The number after a name at the beginning of a line; None where there is none: "max" is no limit."""
    try:
        lines = [line.split() for line in path.read_text("ascii").splitlines()]
        return next((int(words[-1] if not name else words[1]) for words in lines if name in ("", words[0])), None)
    except (OSError, ValueError, IndexError):
        return None
