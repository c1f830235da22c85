"""Faults while `hvdc_runner` decodes: what is kept, and what is said."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.device_runtime.decoding.small import (
    CUT,
    PIECES,
    RATES,
    VIDEOS,
    assert_decoded,
    frames,
    needs_gpu,
    times,
)
from tests.device_runtime.runs import Runner, children_of, outcome, wait_for


@pytest.mark.parametrize("after", [0, 11, 23])
def test_a_frame_that_is_not_decoded(after: int, runner: Runner, decoding: tuple[object, ...], tmp_path: Path) -> None:
    """The video before it is whole, the latent of its own is kept; a resumed stream does what is left."""
    output = tmp_path / "out"
    done = runner.run(output, "npu", *decoding, env={"STAND_IN": f"execute=1100 after={after}"})
    video, frame = after // PIECES, after % 2
    assert done.status == 5
    assert done.report["error"]["what"].startswith(f"video {video} cannot be decoded: the NPU does not execute graph ")
    assert f"on latent frame {frame}: error 1100" in done.report["error"]["what"]
    names = {path.name for path in output.iterdir()}
    assert names == {
        *(f"video-{i:06d}.ppm" for i in range(video)), *(f"video-{i:06d}.safetensors" for i in range(video + 1))
    }  # fmt: skip
    rest = runner.finished(output, "npu", *decoding, "--resume")
    assert [(v["skipped"], v["kept"]) for v in rest.report["videos"]] == [(i < video, i == video) for i in range(3)]
    assert_decoded(runner, output)


def test_a_library_that_prints_holds_nothing_up(runner: Runner, decoding: tuple[object, ...], tmp_path: Path) -> None:
    """It is loaded in the process of the NPU, and says its line when a pipe that nobody reads is full already."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    with (tmp_path / "report").open("w+b") as report:
        command = runner.command(tmp_path / "out", "npu", *decoding)
        child = subprocess.Popen(command, stdout=report, stderr=writer)
        os.close(writer)
        assert child.wait(timeout=60) == 0
        os.close(reader)
        report.seek(0)
        assert json.load(report)["finished"] == len(VIDEOS)
    assert_decoded(runner, tmp_path / "out")


@pytest.mark.parametrize("on_stop", ["abandon", "finish"])
def test_a_signal_while_it_decodes(on_stop: str, runner: Runner, decoding: tuple[object, ...], tmp_path: Path) -> None:
    output = tmp_path / "out"
    with runner.started(output, "npu", *decoding, "--on-stop", on_stop) as child:
        wait_for(child, "decoding")
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=60)
    done = outcome(child.returncode, out, err)
    assert (done.status, done.report["stopped"]) == (130, True)
    finished = int(on_stop == "finish")
    assert done.report["finished"] == finished
    names = {"video-000000.safetensors", *(["video-000000.ppm"] if finished else [])}
    assert {path.name for path in output.iterdir()} == names
    rest = runner.finished(output, "npu", *decoding, "--resume")
    assert (rest.report["skipped"], rest.report["videos"][0]["kept"]) == (finished, not finished)
    assert_decoded(runner, output)


@pytest.mark.parametrize(
    ("mode", "more"),
    [("npu", ()), pytest.param("hetero", ("--cut", CUT), marks=needs_gpu),
     pytest.param("hetero", ("--policy", "adaptive", *RATES), marks=needs_gpu)],
    ids=["npu", "hetero", "adaptive"],
)  # fmt: skip
def test_killed_at_random_moments(
    mode: str, more: tuple[object, ...], runner: Runner, decoding: tuple[object, ...], tmp_path: Path
) -> None:
    """Whatever has its name is whole, and stays as it is."""
    output, rng, kept = tmp_path / "out", random.Random(mode), dict[str, int]()
    for _ in range(5):
        with runner.started(output, mode, *more, *decoding, "--resume") as child:
            seen = 0
            for line in child.stderr or ():
                seen += '"event": "decoding"' in line
                if seen and rng.random() < 0.2:
                    break
            child.kill()
            child.communicate()
        held = times(output, "video-*")
        assert {name: held[name] for name in kept} == kept
        kept = held
        for path in output.glob("video-*.ppm"):
            assert frames(runner, output, int(path.stem[-6:])).pixels.std() > 0
    runner.finished(output, mode, *more, *decoding, "--resume")
    held = times(output, "video-*")
    assert {name: held[name] for name in kept} == kept
    assert_decoded(runner, output)


def test_a_full_disk(
    runner: Runner, decoding: tuple[object, ...], mounted: Callable[..., Path], tmp_path: Path
) -> None:
    """Room for one video, and for the latent of the next."""
    place = mounted(96 << 10)
    output = place / "out"
    done = runner.run(output, "npu", *decoding)
    assert done.status == 1
    assert done.report["error"]["kind"] == "file"
    assert "video-000001.ppm cannot be written: No space left on device" in done.report["error"]["what"]
    assert {path.name for path in output.iterdir()} == {
        "video-000000.ppm", "video-000000.safetensors", "video-000001.safetensors"
    }  # fmt: skip
    subprocess.run(["mount", "-o", "remount,size=1m", place], check=True)
    rest = runner.finished(output, "npu", *decoding, "--resume")
    assert [(v["skipped"], v["kept"]) for v in rest.report["videos"]] == [(True, False), (False, True), (False, False)]
    assert_decoded(runner, output)


@needs_gpu
def test_a_gpu_process_that_dies_while_the_npu_decodes(
    runner: Runner, decoding: tuple[object, ...], tmp_path: Path
) -> None:
    with runner.started(tmp_path / "out", "hetero", "--cut", CUT, *decoding) as child:
        wait_for(child, "decoding")
        [worker] = children_of(child.pid)
        os.kill(worker, signal.SIGKILL)
        out, err = child.communicate(timeout=100)
    done = outcome(child.returncode, out, err)
    assert (done.status, done.report["gpu_lost"], done.report["finished"]) == (0, True, 3), done.said
    assert_decoded(runner, tmp_path / "out")
