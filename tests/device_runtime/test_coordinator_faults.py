"""What a stream does when something goes wrong: nothing is lost, nothing hangs, nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.artifacts import Spec, make_artifact
from tests.device_runtime.streams import Shape, Streams, check, check_nothing_left

SHAPE = Shape()
HETERO = {"mode": "hetero", "cut": 10, "videos": 4}
DEVICE, ARTIFACT, USAGE, MEMORY, PEER, FILE = 3, 2, 1, 4, 5, 6
"""Kinds of hvdc/failure.h."""


@pytest.fixture(scope="module")
def streams(programs: dict[str, Path]) -> Iterator[Streams]:
    with Streams(programs["hvdc_stream_check"]) as running:
        yield running


@pytest.mark.parametrize("position", range(10))
def test_a_dead_gpu_process_costs_at_most_a_step(streams: Streams, tmp_path: Path, position: int) -> None:
    """Killed in any block of video 1, which goes on where its last step was whole; those after it on the NPU alone."""
    report = streams.run(SHAPE, dir=tmp_path, die=f"1:{position}", **HETERO)
    assert report["ok"], report
    assert report["gpu_lost"]
    assert report["note"].startswith("the GPU's process is lost: the other process has closed its end")
    assert report["note"].endswith("(it was killed by signal 9); the stream goes on with the NPU alone")
    assert report["order"] == [0, 1, 2, 3]
    of = report["videos"]
    assert [v["gpu_blocks"] for v in of[1:]] == [position // SHAPE.layers * SHAPE.layers, 0, 0]
    assert of[1]["recovered"]
    assert not of[3]["recovered"]
    check(report, SHAPE, tmp_path)


@pytest.mark.parametrize("step", [0, 1])
def test_a_latent_that_is_half_written_is_not_read(streams: Streams, tmp_path: Path, step: int) -> None:
    """Killed between two tokens of the step's result: the one before it is whole."""
    report = streams.run(SHAPE, dir=tmp_path, die_in_advance=f"1:{step}", **HETERO)
    assert report["videos"][1]["gpu_blocks"] == step * SHAPE.layers
    check(report, SHAPE, tmp_path)


@pytest.mark.parametrize("step", [0, 1])
def test_a_boundary_that_was_overwritten_is_noticed(streams: Streams, tmp_path: Path, step: int) -> None:
    """Its checksum is another: the video begins again from its inputs."""
    report = streams.run(SHAPE, dir=tmp_path, scribble=f"1:{step}", **HETERO)
    assert report["videos"][1]["gpu_blocks"] == 0
    assert report["videos"][1]["recovered"]
    check(report, SHAPE, tmp_path)


@pytest.mark.parametrize("mode", ["gpu", "dp"])
def test_whole_videos_are_recovered_too(streams: Streams, tmp_path: Path, mode: str) -> None:
    report = streams.run(SHAPE, dir=tmp_path, mode=mode, videos=5, die="1:9", npu_us=500, gpu_us=300)
    assert report["ok"], report
    assert report["gpu_lost"]
    assert sorted(report["order"]) == list(range(5))
    assert report["videos"][1]["gpu_blocks"] == 8
    check(report, SHAPE, tmp_path)


def test_an_engine_that_refuses_is_a_lost_gpu_with_its_own_words(streams: Streams, tmp_path: Path) -> None:
    report = streams.run(SHAPE, dir=tmp_path, gpu_fails="1:6", **HETERO)
    assert "the GPU refuses block 6" in report["note"]
    assert "it ended with status 1" in report["note"]
    check(report, SHAPE, tmp_path)


def test_a_worker_that_just_ends_is_lost(streams: Streams, tmp_path: Path) -> None:
    report = streams.run(SHAPE, dir=tmp_path, exit="2:3", **HETERO)
    assert "it ended with status 0" in report["note"]
    check(report, SHAPE, tmp_path)


def test_a_worker_that_hangs_is_killed(streams: Streams, tmp_path: Path) -> None:
    report = streams.run(SHAPE, dir=tmp_path, hang="1:5", silence_s=0.3, **HETERO)
    assert "it has been silent for 0.3 s (it was killed by signal 9)" in report["note"]
    check(report, SHAPE, tmp_path)


def test_a_busy_npu_does_not_hide_a_silent_gpu(streams: Streams, tmp_path: Path) -> None:
    """News of the NPU comes all the time; the GPU's silence is noticed all the same."""
    report = streams.run(SHAPE, dir=tmp_path, hang="1:0", silence_s=0.2, npu_us=50_000, **{**HETERO, "cut": 2})
    assert report["gpu_lost"]
    first, second = report["videos"][:2]
    assert second["waiting_s"] > 0.1, "it was taken over before the NPU had time for it"
    assert first["finished_s"] < second["finished_s"]
    check(report, SHAPE, tmp_path)


def test_a_worker_without_work_may_be_silent(streams: Streams) -> None:
    """The NPU takes far longer than the timeout; the worker waits for a slot and owes nothing."""
    report = streams.run(SHAPE, mode="hetero", cut=1, videos=3, npu_us=30_000, silence_s=0.25)
    assert report["ok"], report
    assert not report["gpu_lost"]


def test_the_stream_stops_with_the_gpu_if_asked_to(streams: Streams, tmp_path: Path) -> None:
    """What is finished stays; resuming does the rest, here without the fault."""
    report = streams.run(SHAPE, dir=tmp_path, die="2:1", stop_when_lost=1, **HETERO)
    assert not report["ok"]
    assert report["kind"] == PEER
    assert report["failure"].endswith("the stream stops, as it was asked to")
    check(report, SHAPE, tmp_path)
    again = streams.run(SHAPE, dir=tmp_path, resume=1, **HETERO)
    assert again["finished"] + again["skipped"] == 4
    assert [v["gpu_blocks"] for v in again["videos"]] == [10] * 4
    check(again, SHAPE, tmp_path)


HOW = ["flip", "truncate", "empty", "lengthen", "repeat", "close"]


@pytest.mark.parametrize("number", [1, 2, 8, 20, 35])
@pytest.mark.parametrize("how", HOW)
def test_a_damaged_message_of_the_worker_is_noticed(streams: Streams, tmp_path: Path, how: str, number: int) -> None:
    """1 is READY: then the stream does not start. Later ones are blocks and handoffs: it goes on without the GPU."""
    report = streams.run(SHAPE, dir=tmp_path, proxy=f"{how}:worker:{number}", **HETERO)
    started = number > 1 or how == "repeat"  # the first of the two is right
    assert report["ok"] == started, report
    assert report["gpu_lost"] == started
    if not started:
        assert report["failure"].startswith("the GPU's process could not start")
    check(report, SHAPE, tmp_path)


@pytest.mark.parametrize("how", ["drop", "swap"])
@pytest.mark.parametrize("number", [5, 21])
def test_a_lost_message_is_noticed_by_the_next_one(streams: Streams, tmp_path: Path, how: str, number: int) -> None:
    report = streams.run(SHAPE, dir=tmp_path, proxy=f"{how}:worker:{number}", silence_s=1, **HETERO)
    assert "its number is not the next one" in report["note"]
    check(report, SHAPE, tmp_path)


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("how", HOW)
def test_a_damaged_message_of_the_owner_is_refused_by_the_worker(
    streams: Streams, tmp_path: Path, how: str, number: int
) -> None:
    """0 greets, 1 and 2 are the slots, then come assignments."""
    report = streams.run(SHAPE, dir=tmp_path, proxy=f"{how}:owner:{number}", **HETERO)
    assert report["ok"] == report["gpu_lost"], report
    check(report, SHAPE, tmp_path)


STARTING = [*(("owner", n) for n in range(7)), *(("worker", n) for n in range(4))]
"""HELLO, OFFER, three FILEs, two SLOTs; WELCOME, READY, TAKEN, READY."""


@pytest.mark.parametrize("how", [*HOW, "drop"])
def test_damage_while_weights_are_passed_is_refused_at_the_start(streams: Streams, tmp_path: Path, how: str) -> None:
    """Nothing hangs, nothing is executed with weights that were not agreed on, nothing stays mapped."""
    artifact = make_artifact(tmp_path / "a.hvdc", Spec(calibrated=True))
    for who, number in STARTING:
        report = streams.run(
            SHAPE, mode="hetero", cut=2, videos=2, artifact=artifact, start_s=0.3, proxy=f"{how}:{who}:{number}"
        )
        # A message that comes twice is right the first time: the second one may be met after the start.
        assert report["gpu_lost"] if report["ok"] else "could not start" in report["failure"], (who, number, report)
        assert how == "repeat" or not report["ok"], (who, number, report)
        check_nothing_left(report)


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "a cut outside": ({"mode": "hetero", "cut": 13}, USAGE, "cuts are 0 to 12"),
    "no videos": ({"videos": 0}, USAGE, "no videos"),
    "too many slots": ({"slots": 17}, USAGE, "at most 16"),
    "a negative timeout": ({"silence_s": -1}, USAGE, "0 or more seconds"),
    "no steps": ({"steps": 0}, USAGE, "no trajectory"),
    "no tokens": ({"tokens": 0}, USAGE, "no size of a model"),
    "sizes that overflow": ({"tokens": 4294967295}, USAGE, "no size of a model"),
    "no directory": ({"dir": "/nonexistent/out"}, FILE, "cannot be written to /nonexistent/out"),
    "nothing to resume": ({"resume": 1}, USAGE, "no directory to resume from"),
    "no place for the trace": ({"trace": "/nonexistent/t.json"}, FILE, "/nonexistent/t.json cannot be written"),
    "more memory than there is": ({"tokens": 16_000_000, "width": 65536}, MEMORY, "MiB are available"),
    "no device": ({"mode": "gpu", "open_fails": 1}, DEVICE, "could not start: there is no OpenCL device"),
    "a worker that ends at once": (
        {"mode": "gpu", "refuses": 1},
        USAGE,
        "the worker does not even begin",
    ),
    "a worker that ends unasked": (
        {"mode": "gpu", "refuses": 2},
        USAGE,
        "the worker does not even begin",
    ),
    "a worker that never is ready": ({"mode": "gpu", "open_hangs": 1, "start_s": 0.3}, PEER, "silent for 0.3 s"),
    "inputs": ({"load_fails": 1, "videos": 3}, FILE, "inputs of video 1"),
    "the NPU": ({"npu_fails": "1:7", "videos": 3}, DEVICE, "the NPU refuses block 7"),
    "the decoder": ({"decode_fails": 0}, DEVICE, "the decoder refuses video 0"),
    "no artifact": ({"artifact": "/nonexistent/a.hvdc"}, ARTIFACT, "/nonexistent/a.hvdc"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_said_in_a_sentence(streams: Streams, case: str) -> None:
    settings, kind, message = REFUSED[case]
    sizes = {k: settings[k] for k in ("steps", "tokens", "width") if k in settings}
    rest = {k: v for k, v in settings.items() if k not in sizes}
    report = streams.run(Shape(**sizes), **{"videos": 2, "mode": "npu", **rest})
    assert not report["ok"]
    assert report["kind"] == kind
    assert message in report["failure"]
    check_nothing_left(report)


def test_a_failing_stream_keeps_what_is_finished(streams: Streams, tmp_path: Path) -> None:
    report = streams.run(SHAPE, dir=tmp_path, npu_fails="2:7", mode="npu", videos=4)
    assert not report["ok"]
    assert report["finished"] == 2
    check(report, SHAPE, tmp_path)


def test_an_uncalibrated_artifact_is_for_the_npu_alone(streams: Streams, tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path / "a.hvdc", Spec())
    refused = streams.run(SHAPE, mode="hetero", cut=1, artifact=artifact)
    assert refused["kind"] == ARTIFACT
    assert "needs activation scales for the GPU and the artifact has none" in refused["failure"]
    assert streams.run(SHAPE, mode="npu", artifact=artifact)["ok"]
    assert streams.run(SHAPE, mode="hetero", cut=0, artifact=artifact)["ok"]


def test_weights_that_do_not_fit_are_refused(streams: Streams, tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path / "a.hvdc", Spec(calibrated=True))
    report = streams.run(SHAPE, mode="npu", artifact=artifact, limit_kib=8)
    assert report["kind"] == MEMORY
    assert "the weights take" in report["failure"]
    check_nothing_left(report)


def test_results_that_are_there_are_not_overwritten(streams: Streams, tmp_path: Path) -> None:
    streams.run(SHAPE, mode="npu", videos=1, dir=tmp_path)
    before = (tmp_path / "video-000000.safetensors").read_bytes()
    report = streams.run(SHAPE, mode="npu", videos=2, dir=tmp_path, seed=1)
    assert not report["ok"]
    assert "is there already" in report["failure"]
    assert (tmp_path / "video-000000.safetensors").read_bytes() == before
