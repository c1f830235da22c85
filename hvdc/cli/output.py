"""How facts, progress and errors look: tables and bars for people, plain lines for pipes, JSON for programs."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from hvdc.errors import Exit
from hvdc.pipeline.failures import describe_failure
from hvdc.plan.memory import GIB, MIB, Row
from hvdc.progress import Progress, Silent

if TYPE_CHECKING:  # it needs NumPy, and many commands don't
    from hvdc.artifact.manifest import Totals

LOG_LINES = 40
"""Of what a compiler logged before it failed, as many are shown: the last ones."""
EARLY_S = 2.0
"""What the first moments of a stage say about its rate is nothing: its first files are small, or a program starts."""
FEW, FIRST, BETWEEN_S = 20, 3, 1.0
"""A pipe gets a line for each of a few pieces; of more, for the first ones, which show that it goes, and then one in
this time."""
NARROWEST_TEXT = 24
"""Columns of a terminal that a wrapping text gets at least."""


def out() -> Console:
    """Standard output; no markup and no emoji, so that brackets and colons in names stay."""
    return Console(markup=False, emoji=False, highlight=False, soft_wrap=True)


def err() -> Console:
    """Standard error."""
    return Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(value, indent=2, allow_nan=False, default=str))


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """A table; a column whose name starts with '>' is right-aligned, one with '~' may wrap."""
    names, cells = list(columns), [[str(cell) for cell in row] for row in rows]
    console = Console(markup=False, emoji=False, highlight=False)
    _fit(console, names, cells)
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for name in names:
        justify: JustifyMethod = "right" if name.startswith(">") else "left"
        drawn.add_column(name.lstrip(">~"), justify=justify, no_wrap=not name.startswith("~"))
    for row in cells:
        drawn.add_row(*row)
    if title:
        console.print(title, style="bold")
    console.print(drawn)


def shown(text: str, limit: int = 60) -> str:
    """A text of somebody else's as one line: without control characters, and cut off where it is long."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= limit else plain[: limit - 1].rstrip() + "…"


def plain(text: object) -> str:
    """A text that a terminal shows and does not obey, whoever wrote it: a device, a driver, a file's name."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in str(text))


def json_number(value: float | None) -> float | str | None:
    """JSON has no NaN and no infinity: ``"nan"``, ``"inf"``, ``"-inf"`` stand for them."""
    return value if value is None or math.isfinite(value) else str(value)


def seconds_like(scale_s: float, *, least: int) -> Callable[[float], str]:
    """Writes seconds with as many decimals as show three digits of ``scale_s``, and at least ``least``: blocks of a
    small model take milliseconds, videos of a large one a quarter of an hour."""
    decimals = least if scale_s <= 0 or not math.isfinite(scale_s) else 2 - math.floor(math.log10(scale_s))
    decimals = min(max(decimals, least), 6)
    return lambda value_s: f"{value_s:.{decimals}f}"


def _fit(console: Console, columns: list[str], rows: list[list[str]]) -> None:
    """Make the console wide enough for every cell that may not wrap: no number is ever cut or dropped.

    A column whose name starts with '~' may wrap. A pipe has no width, so nothing wraps there.
    """
    widths = [max(cell_len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    fixed = sum(w for w, name in zip(widths, columns, strict=True) if not name.startswith("~")) + 2 * len(columns)
    wrapping = any(name.startswith("~") for name in columns)
    whole = sum(widths) + 2 * len(columns)
    console.width = max(console.width, fixed + NARROWEST_TEXT if wrapping else fixed) if console.is_terminal else whole


def mib(size: int) -> str:
    """Bytes as MiB with three digits."""
    return f"{size / MIB:,.3f}"


def gib(size: int) -> str:
    """Bytes as GiB with two digits; with four for what would else be next to nothing."""
    return f"{size / GIB:.2f}" if size >= GIB // 10 else f"{size / GIB:.4f}"


def print_totals(totals: Totals) -> None:
    """Bytes by kind."""
    sizes = totals.model_dump().items()
    rows = [(name.removesuffix("_bytes").replace("_", " "), mib(size), f"{size:,}") for name, size in sizes]
    table("Bytes by kind", ("kind", ">MiB", ">bytes"), rows)


def print_memory(rows: list[Row]) -> None:
    """Weight memory of each configuration."""
    cells = [(row.name, gib(row.total_bytes), row.note) for row in rows]
    table("Weight memory", ("configuration", ">GiB", "~how it is counted"), cells)


def memory_facts(rows: list[Row]) -> list[dict[str, Any]]:
    """The rows of `print_memory` as JSON, in bytes."""
    return [{"name": row.name, "bytes": row.total_bytes, "note": row.note} for row in rows]


def print_error(error: BaseException, *, as_json: bool, verbose: bool = False) -> int:
    """Say what is wrong, where, why and what to do; ``verbose``: and the end of its log. Returns the exit status."""
    status, fields = describe_error(error)
    if as_json:
        with contextlib.suppress(OSError):  # standard output may be what failed
            print_json({"error": fields | {"exit_status": int(status)}})
    console = err()
    console.print(f"error: {plain(fields['what'])}", style="bold red" if console.is_terminal else None)
    for name in ("where", "expected", "found", "fix"):
        if fields.get(name):
            console.print(f"  {name + ':':<10} {plain(fields[name])}")
    if log := _log(error):
        shown = log[-LOG_LINES:]
        count = (
            "1 line" if len(log) == 1 else f"{len(log)} lines" + ("" if shown == log else f", the last {len(shown)}")
        )
        console.print(f"  log:       {count}" + (":" if verbose else "; run again as `hvdc -v …` to see them"))
        for line in shown if verbose else ():
            console.print(f"    {plain(line)}")
    return status


def _log(error: BaseException | None) -> tuple[str, ...]:
    """What the tools of Qualcomm, here or at its service, printed before they failed: of an error or of its cause."""
    while error is not None:
        if log := getattr(error, "log", ()):  # QnnError's, which commands do not import
            return tuple(log)
        error = error.__cause__
    return ()


def describe_error(error: BaseException) -> tuple[Exit, dict[str, str]]:
    """`describe_failure`, and what click raises."""
    if isinstance(error, click.exceptions.Abort):
        return Exit.INTERRUPTED, {"what": "interrupted"}
    if isinstance(error, click.ClickException):
        help_ = f"{error.ctx.command_path} --help" if isinstance(error, click.UsageError) and error.ctx else ""
        status = Exit.USAGE if isinstance(error, click.UsageError) else Exit.FAILURE
        return status, {"what": error.format_message(), "fix": help_}
    return describe_failure(error)


def progress_for(*, quiet: bool) -> Progress:
    """A bar on a terminal, plain lines otherwise, nothing when quiet. All on standard error."""
    if quiet:
        return Silent()
    return Bar() if sys.stderr is not None and sys.stderr.isatty() else Lines()


class Bar:
    """A bar with pieces, bytes, rate and time left."""

    def __init__(self) -> None:
        self._bar: RichProgress | None = None

    def start(self, what: str, total: int, items: int, *, unit: str = "bytes") -> None:
        self.finish()
        size: list[ProgressColumn] = [DownloadColumn(binary_units=True), TransferSpeedColumn()]
        if unit != "bytes":
            size = [MofNCompleteColumn(), TextColumn(unit)]
        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False), BarColumn(), *size, TextColumn("left"),
            _TimeLeft(), console=Console(stderr=True), transient=True,
        )  # fmt: skip
        self._items, self._done, self._total = items, 0, total
        self._task = self._bar.add_task(what, total=total)
        self._bar.start()

    def advance(self, done: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, done)

    def skip(self, units: int) -> None:
        if self._bar is not None:
            self._total -= units
            self._bar.update(self._task, total=self._total)

    def item_done(self, label: str) -> None:
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, description=f"{label} ({self._done}/{self._items})")

    def finish(self) -> None:
        """Stop drawing and give the cursor back; once more does nothing."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class _TimeLeft(TimeRemainingColumn):
    """Unknown at first."""

    def render(self, task: Task) -> Text:
        return Text("-:--:--", style="progress.remaining") if (task.elapsed or 0.0) < EARLY_S else super().render(task)


class Lines:
    """A line for finished pieces: count, share, rate, and time left where it can be known."""

    def start(self, what: str, total: int, items: int, *, unit: str = "bytes") -> None:
        self._what, self._total, self._items = what, max(total, 1), items
        self._unit, self._per_unit = ("MiB", MIB) if unit == "bytes" else (unit, 1)
        self._units, self._done, self._begin = 0, 0, time.monotonic()
        self._shown = self._begin
        self._lock = threading.Lock()

    def advance(self, done: int) -> None:
        with self._lock:
            self._units += done

    def skip(self, units: int) -> None:
        with self._lock:
            self._total -= units

    def item_done(self, label: str) -> None:
        with self._lock:
            self._done += 1
            now, is_last = time.monotonic(), self._done == self._items
            if self._items > FEW and self._done > FIRST and not is_last and now - self._shown < BETWEEN_S:
                return
            self._shown = now
            rate = self._units / max(now - self._begin, 1e-9)
            per = self._per_unit
            line = (
                f"{self._what} {self._done}/{self._items} {label}  {self._units / per:,.0f}/{self._total / per:,.0f} "
                f"{self._unit}  {_rate(rate / per)} {self._unit}/s"
            )
            if self._units and (now - self._begin >= EARLY_S or self._units >= self._total):
                line += f"  {(self._total - self._units) / rate:.0f} s left"
            with contextlib.suppress(OSError):  # nobody reads any more: no reason to stop working
                click.echo(line, err=True)

    def finish(self) -> None:
        pass


def _rate(rate: float) -> str:
    """Also one that is below 1."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
