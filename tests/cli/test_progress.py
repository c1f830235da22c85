"""Progress: how long something will take is said once that is known, and a pipe is not flooded."""

from __future__ import annotations

import re

import pytest

from hvdc.cli import output
from hvdc.cli.output import FEW, FIRST, Bar, Lines

GIB = 1 << 30


class Clock:
    """Time that tests make."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(output.time, "monotonic", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_first_small_files_foretell_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """A KiB in 50 ms, of which most is the start of something else, would mean that a GiB takes 15 hours."""
    lines = Lines()
    lines.start("sending", GIB, 3)
    lines.advance(1 << 10)
    clock.now_s += 0.05
    lines.item_done("small")
    lines.advance(GIB // 2)
    clock.now_s += 4.95
    lines.item_done("large")
    lines.advance(GIB)
    lines.item_done("all")
    first, second, last = capsys.readouterr().err.splitlines()
    assert "left" not in first
    assert second.endswith("  5 s left")
    assert last.endswith(" s left")


def test_what_has_not_begun_has_no_end(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    lines.start("sending", GIB, 2)
    clock.now_s += 60
    lines.item_done("empty")
    assert "left" not in capsys.readouterr().err


def test_many_files_are_a_line_a_second(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    lines, count = Lines(), 500
    lines.start("checking", count << 20, count)
    for i in range(count):
        clock.now_s += 0.01
        lines.advance(1 << 20)
        lines.item_done(f"file {i}")
    said = capsys.readouterr().err.splitlines()
    assert 5 + FIRST <= len(said) <= 6 + FIRST
    assert all(line.startswith(f"checking {i}/") for i, line in enumerate(said[:FIRST], 1)), "it goes"
    assert said[-1].startswith(f"checking {count}/{count} file {count - 1}  {count}/{count} MiB"), (
        "the last one is there"
    )
    lines.start("checking", FEW << 20, FEW)
    for i in range(FEW):
        lines.item_done(f"file {i}")
    assert len(capsys.readouterr().err.splitlines()) == FEW


def test_a_bar_waits_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    bar = Bar()
    bar.start("sending", GIB, 10)
    assert bar._bar is not None
    for _ in range(3):
        bar.advance(1 << 10)
        bar.item_done("small")
        bar._bar.refresh()
    bar.finish()
    drawn = capsys.readouterr().err
    assert "-:--:--" in drawn
    assert not re.search(r"\d:\d\d:\d\d", drawn)
