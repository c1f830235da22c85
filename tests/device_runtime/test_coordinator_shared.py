"""Streams of mode hetero-tensor with whole-number engines: what the owner does when its partner fails, at any place."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.device_runtime.streams import Shape, Streams, check, check_nothing_left, shared_columns, words
from tests.device_runtime.test_coordinator_faults import DEVICE, HOW, MEMORY, PEER, USAGE
from tests.device_runtime.test_coordinator_stops import Owner, gone

SHAPE = Shape(width=100)
SHARED = {"mode": "hetero-tensor", "share": 0.5, "videos": 4}
COLUMNS = 64
"""Of 100: two of four tiles."""


@pytest.fixture(scope="module")
def streams(programs: dict[str, Path]) -> Iterator[Streams]:
    with Streams(programs["hvdc_stream_check"]) as running:
        yield running


@pytest.mark.parametrize("share", [0, 0.12, 0.125, 0.5, 0.9, 1])
def test_each_column_is_computed_where_it_belongs(streams: Streams, share: float, tmp_path: Path) -> None:
    report = streams.run(SHAPE, dir=tmp_path, **{**SHARED, "share": share})
    assert report["ok"], report
    assert report["order"] == [0, 1, 2, 3]
    assert {v["gpu_blocks"] for v in report["videos"]} == {SHAPE.executions if share > 0 else 0}
    check(report, SHAPE, tmp_path, columns=shared_columns(SHAPE, share))


@pytest.mark.parametrize("position", range(SHAPE.executions))
def test_a_dead_worker_costs_at_most_a_step(streams: Streams, tmp_path: Path, position: int) -> None:
    report = streams.run(SHAPE, dir=tmp_path, die=f"1:{position}", **SHARED)
    assert report["ok"], report
    assert report["note"].startswith("the GPU's process is lost: the other process")
    assert report["note"].endswith("(it was killed by signal 9); the stream goes on with the NPU alone")
    whole = position // SHAPE.layers * SHAPE.layers
    assert [v["gpu_blocks"] for v in report["videos"]] == [SHAPE.executions, whole, 0, 0]
    assert [v["recovered"] for v in report["videos"]] == [False, True, False, False]
    check(report, SHAPE, tmp_path, columns=COLUMNS)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"exit": "1:5"}, "closed its end"),
        ({"hang": "1:5", "silence_s": 0.2}, "silent for 0.2 s"),
        ({"gpu_fails": "1:5"}, "the GPU refuses block 5 (it ended with status 1)"),
    ],
    ids=["it ends", "it hangs", "it refuses"],
)
def test_a_worker_that_fails_in_other_ways(
    streams: Streams, fault: dict[str, object], words: str, tmp_path: Path
) -> None:
    report = streams.run(SHAPE, dir=tmp_path, **fault, **SHARED)
    assert report["ok"], report
    assert words in report["note"]
    assert [v["gpu_blocks"] for v in report["videos"]] == [SHAPE.executions, SHAPE.layers, 0, 0]
    check(report, SHAPE, tmp_path, columns=COLUMNS)


def test_videos_that_wait_when_it_dies_are_done_alone(streams: Streams, tmp_path: Path) -> None:
    report = streams.run(SHAPE, dir=tmp_path, die="0:7", slots=3, **SHARED)
    assert [v["gpu_blocks"] for v in report["videos"]] == [SHAPE.layers, 0, 0, 0]
    assert report["order"] == [0, 1, 2, 3]
    check(report, SHAPE, tmp_path, columns=COLUMNS)


def test_it_stops_if_that_is_asked_for(streams: Streams, tmp_path: Path) -> None:
    report = streams.run(SHAPE, dir=tmp_path, die="2:1", stop_when_lost=1, **SHARED)
    assert (report["ok"], report["kind"], report["finished"]) == (False, PEER, 2)
    check(report, SHAPE, tmp_path, columns=COLUMNS)
    again = streams.run(SHAPE, dir=tmp_path, resume=1, **SHARED)
    assert (again["skipped"], again["finished"]) == (2, 2)
    assert [v["gpu_blocks"] for v in again["videos"]] == [SHAPE.executions] * 4
    check(again, SHAPE, tmp_path, columns=COLUMNS)


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_message_is_noticed_by_either_side(streams: Streams, tmp_path: Path, how: str) -> None:
    """Owner: 0 greets, 1 is the slot, 2 the exchange, then slices. Worker: WELCOME, READY, answers."""
    for who, number in (("owner", 1), ("owner", 2), ("owner", 3), ("owner", 20), ("worker", 2), ("worker", 30)):
        place = tmp_path / f"{who}-{number}"
        place.mkdir()
        report = streams.run(SHAPE, dir=place, start_s=0.5, silence_s=0.5, proxy=f"{how}:{who}:{number}", **SHARED)
        assert report["ok"] == report["gpu_lost"], (who, number, report)
        assert number < 3 or report["ok"], (who, number, report)
        check(report, SHAPE, place, columns=COLUMNS)


@pytest.mark.parametrize(
    ("more", "kind", "words"),
    [
        ({"share": 1.5}, USAGE, "a share of 1.5 of the columns: it is 0 to 1"),
        ({"share": -1}, USAGE, "it is 0 to 1"),
        ({"share": "nan"}, USAGE, "it is 0 to 1"),
        ({"open_fails": 1}, DEVICE, "could not start: there is no OpenCL device"),
        ({"tokens": 16_000_000, "width": 30_000}, MEMORY, "MiB are available"),
    ],
)
def test_what_is_refused(streams: Streams, more: dict[str, object], kind: int, words: str) -> None:
    sizes = {name: more[name] for name in ("tokens", "width") if name in more}
    report = streams.run(Shape(**sizes), **{**SHARED, **{k: v for k, v in more.items() if k not in sizes}})  # type: ignore[arg-type]
    assert (report["ok"], report["kind"]) == (False, kind)
    assert words in report["failure"]
    check_nothing_left(report)


def test_it_can_be_abandoned_while_the_npu_waits_for_ever(programs: dict[str, Path], tmp_path: Path) -> None:
    """Nobody else would tell the NPU's thread: the worker is killed first."""
    given = words(SHAPE, **SHARED, hang="1:5", on_stop=1, dir=tmp_path)
    owner = Owner(programs["hvdc_stream_check"], *given)
    owner.wait_for("blocks 1 5")
    (worker,) = owner.children()
    owner.process.send_signal(signal.SIGTERM)
    report = owner.end()
    assert (report["ok"], report["stopped"], report["finished"]) == (True, True, 1)
    assert gone(worker)
    check(report, SHAPE, tmp_path, columns=COLUMNS)
