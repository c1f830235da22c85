"""When the videos of a stream are asked for: all at once, evenly, at random, or as in a trace."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Sequence
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any

from hvdc.errors import UsageError
from hvdc.plan.placement import HOUR_S

AT_ONCE = "at-once"
FORMS = "at-once, even:PER_HOUR, poisson:PER_HOUR, or a file of seconds (one a line, .csv or .json)"
COLUMN = "arrival_s"
"""Of a CSV trace that has a header, and of the objects of a JSON trace."""
JSON_FORM = f"a list of seconds, or of objects with {COLUMN}"
LAST_S = 1e9
"""Of a trace, 30 years: larger ones are of another unit, or of a clock that did not begin with the stream."""
VIDEOS_MAX = 300_000
"""Some 330 bytes of memory each, for each configuration; years of a phone."""


def arrivals_of(text: str, videos: int | None, seed: int) -> tuple[float, ...]:
    """Seconds at which videos are asked for, ascending, from what `FORMS` describes; ``videos`` is how many (a trace
    may be longer, and has all of its own if it is None).

    Raises UsageError for anything else, and for a trace that cannot be read, is empty or too short, or has a value
    that is no number, negative, or before the one before it.
    """
    form, colon, rate = text.partition(":")
    if text == AT_ONCE or (colon and form in ("even", "poisson")):
        count = _count(videos)
        if text == AT_ONCE:
            return (0.0,) * count
        gap_s = HOUR_S / _per_hour(text, rate)
        return evenly(gap_s, count) if form == "even" else poisson(gap_s, count, seed)
    return _first(read_trace(Path(text)), videos, text)


def evenly(gap_s: float, videos: int) -> tuple[float, ...]:
    """The first one at 0 s."""
    return tuple(i * gap_s for i in range(videos))


def poisson(gap_s: float, videos: int, seed: int) -> tuple[float, ...]:
    """A Poisson process: gaps are exponential with this mean, also the one before the first video."""
    draw = random.Random(f"{seed} arrivals").expovariate  # noqa: S311 - a simulation, not a secret
    return tuple(islice(accumulate(iter(lambda: draw(1.0 / gap_s), None)), videos))


def read_trace(path: Path) -> tuple[float, ...]:
    """A trace: a JSON list of numbers or of objects with `COLUMN`; CSV with a header that has it, or without one, whose
    first column counts; else a number a line. Empty lines and lines that begin with ``#`` say nothing."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "the arrivals cannot be read", where=str(path), expected=FORMS, found=_reason(error)
        ) from error
    cells = _json_cells(path, text) if path.suffix.lower() == ".json" else _csv_cells(path, text)
    values = [_seconds(path, place, cell) for place, cell in cells]
    if not values:
        raise UsageError("the trace of arrivals is empty", where=str(path), expected="seconds, one for each video")
    for (place, _), before, after in zip(cells[1:], values, values[1:], strict=False):
        if after < before:
            raise UsageError(
                "the trace of arrivals goes back in time",
                where=f"{path}, {place}",
                expected=f"{before:g} s or later",
                found=f"{after:g} s",
                fix="sort it",
            )
    return tuple(values)


def _json_cells(path: Path, text: str) -> list[tuple[str, Any]]:
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:  # no JSON, numbers of thousands of digits
        raise UsageError(
            "the trace of arrivals is not JSON", where=str(path), expected=JSON_FORM, found=str(error)
        ) from error
    if not isinstance(items, list):
        raise UsageError(
            "the trace of arrivals is not a list", where=str(path), expected=JSON_FORM, found=type(items).__name__
        )
    return [
        (f"entry {i}", item.get(COLUMN, "nothing") if isinstance(item, dict) else item) for i, item in enumerate(items)
    ]


def _csv_cells(path: Path, text: str) -> list[tuple[str, Any]]:
    """Of each line, which is a record of its own."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            rows += [(f"line {number}", row) for row in csv.reader([line], strict=True)]
        except csv.Error as error:
            where = f"{path}, line {number}"
            raise UsageError(
                "the trace of arrivals is not CSV",
                where=where,
                found=str(error),
                expected=f"the column {COLUMN}, or seconds first in each line",
            ) from error
    column = 0
    if rows and COLUMN in (names := [name.strip() for name in rows[0][1]]):
        column, rows = names.index(COLUMN), rows[1:]
    return [(place, row[column] if column < len(row) else "nothing") for place, row in rows]


def _seconds(path: Path, place: str, cell: Any) -> float:
    try:
        value = math.nan if isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not 0 <= value <= LAST_S:
        raise UsageError(
            "a trace of arrivals holds seconds",
            where=f"{path}, {place}",
            expected=f"0 to {LAST_S:.0e}, from the stream's begin; a header names the column {COLUMN}",
            found=str(cell)[:60],
        )
    return value


def _first(trace: tuple[float, ...], videos: int | None, path: str) -> tuple[float, ...]:
    if videos is not None and videos > len(trace):
        raise UsageError(
            "the trace of arrivals has fewer videos than were asked for",
            where=path,
            expected=f"{_count(videos)}",
            found=f"{len(trace)}",
            fix="leave --videos out to take all of it",
        )
    return trace if videos is None else trace[: _count(videos)]


def _count(videos: int | None) -> int:
    if videos is None or videos < 1:
        raise UsageError("a stream has one video at least", found=str(videos))
    if videos > VIDEOS_MAX:
        raise UsageError(
            "these are too many videos to simulate", expected=f"{VIDEOS_MAX:,} at most", found=f"{videos:,}"
        )
    return videos


def _per_hour(text: str, rate: str) -> float:
    try:
        value = float(rate)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and 1e-6 <= value <= 1e9):
        raise UsageError("this is no rate of arrivals", expected="videos per hour, above 0, as poisson:5.3", found=text)
    return value


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)


def check_arrivals(arrivals_s: Sequence[float]) -> None:
    """Raises UsageError unless there are some, finite, not negative and ascending."""
    if not arrivals_s:
        raise UsageError("a stream has one video at least", found="no arrivals")
    if not all(math.isfinite(a) for a in arrivals_s) or arrivals_s[0] < 0:
        raise UsageError("arrivals are seconds from 0 on", found=str(list(arrivals_s[:3])))
    if any(b < a for a, b in pairwise(arrivals_s)):
        raise UsageError("arrivals go back in time", fix="sort them")
