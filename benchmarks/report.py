"""docs/BENCHMARKS.md: each benchmark owns one section and replaces it, with the machine and versions it ran on."""

from __future__ import annotations

import os
import platform
import re
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from hvdc import __version__
from hvdc.pipeline.machine import memory_bytes

TITLE = (
    "# Benchmarks\n\nEvery figure here is the output of the command named above it. Ratios compare within one run.\n"
)


@dataclass(frozen=True)
class Line:
    """One figure with its goal."""

    what: str
    value: str
    goal: str
    holds: bool
    how: str


def lines_table(lines: list[Line]) -> str:
    """The figures as a Markdown table."""
    rows = ["| figure | value | goal | holds | how |", "|---|---|---|---|---|"]
    rows += [f"| {x.what} | **{x.value}** | {x.goal} | {'yes' if x.holds else 'NO'} | {x.how} |" for x in lines]
    return "\n".join(rows)


def say(text: str) -> None:
    """A line of progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def machine(libraries: tuple[str, ...]) -> str:
    """Processor, cores, memory, and versions, on one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (found := re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)):
        model = found.group(1)
    memory = memory_bytes() / (1 << 30)
    versions = ", ".join(f"{name} {_version(name)}" for name in libraries)
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, {memory:.0f} GiB; Python {platform.python_version()}, {versions}"


def _version(name: str) -> str:
    return __version__ if name == "hvdc" else metadata.version(name)


def write_section(path: Path, title: str, command: str, text: str, libraries: tuple[str, ...]) -> None:
    """Replace (or append) the section ``title`` of the document."""
    document = path.read_text("utf-8") if path.exists() else TITLE
    section = f"## {title}\n\n`{command}` on {machine(libraries)}:\n\n{text}\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if pattern.search(document):
        document = pattern.sub(lambda _: section + "\n", document)
    else:
        document = document.rstrip() + "\n\n" + section
    path.write_text(document.rstrip() + "\n", "utf-8")
