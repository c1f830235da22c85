"""docs/BENCHMARKS.md: each benchmark owns one section and replaces it, with the machine and versions it ran on."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

TITLE = (
    "# Benchmarks\n\nEvery figure here is the output of the command named above it. Ratios compare within one run.\n"
)
LIBRARIES = ("hvdc", "numpy", "gguf")


def machine() -> str:
    """Processor, cores, memory, and versions, on one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (found := re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)):
        model = found.group(1)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in LIBRARIES)
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, {memory:.0f} GiB; Python {platform.python_version()}, {versions}"


def write_section(path: Path, title: str, command: str, text: str) -> None:
    """Replace (or append) the section ``title`` of the document."""
    document = path.read_text("utf-8") if path.exists() else TITLE
    section = f"## {title}\n\n`{command}` on {machine()}:\n\n{text}\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if pattern.search(document):
        document = pattern.sub(lambda _: section + "\n", document)
    else:
        document = document.rstrip() + "\n\n" + section
    path.write_text(document.rstrip() + "\n", "utf-8")
