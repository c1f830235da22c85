"""How facts, progress and errors look: tables and bars for people, plain lines for pipes, JSON for programs."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress
from rich.table import Table

from exporters.errors import CheckpointError
from hvdc.artifact.manifest import Totals
from hvdc.errors import Exit, HvdcError
from hvdc.pipeline.progress import Progress, Silent
from hvdc.plan.memory import GIB, MIB, Row
from layouts.regions import RegionTooLargeError


def out() -> Console:
    """Standard output; no markup, so that brackets in names stay."""
    return Console(markup=False, highlight=False, soft_wrap=True)


def err() -> Console:
    """Standard error."""
    return Console(stderr=True, markup=False, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(value, indent=2, allow_nan=False, default=str))


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """A table; columns whose name starts with '>' are right-aligned."""
    drawn = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for column in columns:
        drawn.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    for row in rows:
        drawn.add_row(*(str(cell) for cell in row))
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 300  # a pipe has no width: never cut a cell
    console.print(drawn)


def json_number(value: float | None) -> float | str | None:
    """JSON has no NaN and no infinity: ``"nan"``, ``"inf"``, ``"-inf"`` stand for them."""
    return value if value is None or math.isfinite(value) else str(value)


def mib(size: int) -> str:
    """Bytes as MiB with three digits."""
    return f"{size / MIB:,.3f}"


def gib(size: int) -> str:
    """Bytes as GiB with two digits."""
    return f"{size / GIB:.2f}"


def print_totals(totals: Totals) -> None:
    """Bytes by kind."""
    sizes = totals.model_dump().items()
    rows = [(name.removesuffix("_bytes").replace("_", " "), mib(size), f"{size:,}") for name, size in sizes]
    table("Bytes by kind", ("kind", ">MiB", ">bytes"), rows)


def print_memory(rows: list[Row]) -> None:
    """Weight memory of each configuration."""
    cells = [(row.name, gib(row.total_bytes), row.note) for row in rows]
    table("Weight memory", ("configuration", ">GiB", "how it is counted"), cells)


def print_error(error: BaseException, *, as_json: bool) -> int:
    """Say what is wrong, where, why and what to do; returns the exit status."""
    status, fields = describe_error(error)
    if as_json:
        with contextlib.suppress(OSError):  # standard output may be what failed
            print_json({"error": fields | {"exit_status": int(status)}})
    console = err()
    console.print(f"error: {fields['what']}", style="bold red" if console.is_terminal else None)
    for name in ("where", "expected", "found", "fix"):
        if fields.get(name):
            console.print(f"  {name + ':':<10} {fields[name]}")
    return status


def describe_error(error: BaseException) -> tuple[Exit, dict[str, str]]:
    """Exit status and the fields ``what``, ``where``, ``expected``, ``found``, ``fix`` of any exception."""
    if isinstance(error, HvdcError):
        return error.exit_status, {"what": error.what, **error.details()}
    if isinstance(error, CheckpointError):
        fields = {f: getattr(error, f) for f in ("what", "where", "expected", "found", "fix")}
        return Exit.BAD_CHECKPOINT, {name: value for name, value in fields.items() if value}
    if isinstance(error, RegionTooLargeError):
        return Exit.BAD_CHECKPOINT, {
            "what": f"the region {error.region} is too large for the target",
            "expected": f"at most {error.cap_bytes:,} bytes",
            "found": f"{error.region_bytes:,} bytes",
            "fix": "choose a --target that maps larger regions, or a smaller model",
        }
    if isinstance(error, (KeyboardInterrupt, click.exceptions.Abort)):
        return Exit.INTERRUPTED, {"what": "interrupted"}
    if isinstance(error, click.ClickException):
        help_ = f"{error.ctx.command_path} --help" if isinstance(error, click.UsageError) and error.ctx else ""
        status = Exit.USAGE if isinstance(error, click.UsageError) else Exit.FAILURE
        return status, {"what": error.format_message(), "fix": help_}
    if isinstance(error, OSError):
        return Exit.FAILURE, {"what": error.strerror or str(error), "where": str(error.filename or "")}
    if isinstance(error, MemoryError):
        return Exit.FAILURE, {"what": "out of memory", "fix": "use fewer --jobs"}
    return Exit.FAILURE, {
        "what": f"unexpected {type(error).__name__}: {error}",
        "fix": "run `hvdc -v …` for the traceback and report it",
    }


def progress_for(*, quiet: bool) -> Progress:
    """A bar on a terminal, plain lines otherwise, nothing when quiet. All on standard error."""
    if quiet:
        return Silent()
    return Bar() if sys.stderr is not None and sys.stderr.isatty() else Lines()


class Bar:
    """A bar with pieces, bytes, rate and time left."""

    def __init__(self) -> None:
        self._bar: RichProgress | None = None

    def start(self, what: str, total_bytes: int, items: int) -> None:
        self.finish()
        self._bar = RichProgress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True),
            TransferSpeedColumn(), TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True),
            transient=True,
        )  # fmt: skip
        self._items, self._done = items, 0
        self._task = self._bar.add_task(what, total=total_bytes)
        self._bar.start()

    def advance(self, done_bytes: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, done_bytes)

    def item_done(self, label: str) -> None:
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, description=f"{label} ({self._done}/{self._items})")

    def finish(self) -> None:
        """Stop drawing and give the cursor back; once more does nothing."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class Lines:
    """A line for each finished piece: count, share, rate and time left."""

    def start(self, what: str, total_bytes: int, items: int) -> None:
        self._what, self._total, self._items = what, max(total_bytes, 1), items
        self._bytes, self._done, self._begin = 0, 0, time.monotonic()
        self._lock = threading.Lock()

    def advance(self, done_bytes: int) -> None:
        with self._lock:
            self._bytes += done_bytes

    def item_done(self, label: str) -> None:
        with self._lock:
            self._done += 1
            rate = self._bytes / max(time.monotonic() - self._begin, 1e-9)
            left = (self._total - self._bytes) / max(rate, 1.0)
            click.echo(
                f"{self._what} {self._done}/{self._items} {label}  "
                f"{self._bytes / MIB:,.0f}/{self._total / MIB:,.0f} MiB  {rate / MIB:,.0f} MiB/s  {left:.0f} s left",
                err=True,
            )

    def finish(self) -> None:
        pass
