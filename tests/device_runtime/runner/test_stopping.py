"""How `hvdc_runner` stops: signals, processes that are killed or hang, and what is there afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.device_runtime.runner.small import assert_equal, needs_gpu
from tests.device_runtime.runs import (
    Runner,
    children_of,
    is_running,
    outcome,
    wait_for,
)


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.01)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("on_stop", ["finish", "abandon"])
def test_a_signal_keeps_what_is_finished(long: Runner, how: int, on_stop: str, tmp_path: Path) -> None:
    with long.started(tmp_path / "out", "npu", "--on-stop", on_stop) as child:
        wait_for(child, "finished")
        child.send_signal(how)
        out, err = child.communicate(timeout=60)
    done = outcome(child.returncode, out, err)
    assert done.status == 130
    assert done.report["stopped"]
    assert 0 < done.report["finished"] < 400
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [f"video-{video:06d}.safetensors" for video in range(done.report["finished"])]


@needs_gpu
def test_a_stopped_stream_goes_on_as_if_nothing_had_happened(some: Runner, tmp_path: Path) -> None:
    with some.started(tmp_path / "out", "hetero", "--cut", 5, "--on-stop", "abandon") as child:
        wait_for(child, "finished")
        [worker] = children_of(child.pid)
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=60)
    wait_until_gone(worker)
    stopped = outcome(child.returncode, out, err)
    assert (stopped.status, stopped.report["stopped"]) == (130, True)
    rest = some.finished(tmp_path / "out", "hetero", "--cut", 5, "--resume")
    assert rest.report["finished"] + rest.report["skipped"] == 60
    some.finished(tmp_path / "whole", "hetero", "--cut", 5)
    assert_equal(tmp_path / "out", tmp_path / "whole", tuple(range(60)))


@needs_gpu
def test_a_signal_while_engines_are_timed(runner: Runner, tmp_path: Path) -> None:
    """Nothing has begun, so that there is nothing to finish."""
    with runner.started(tmp_path / "out", "hetero", "--kernel-cache", tmp_path) as child:
        wait_for(child, "note")
        wait_for(child, "note")
        deadline = time.monotonic() + 30
        while not (timers := children_of(child.pid)) and time.monotonic() < deadline:
            time.sleep(0.001)
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=60)
    wait_until_gone(timers[0])
    done = outcome(child.returncode, out, err)
    assert done.status == 130
    assert "stopped while the engines were timed" in done.said
    assert list((tmp_path / "out").iterdir()) == []


@needs_gpu
def test_a_killed_owner_takes_its_worker_with_it(long: Runner, tmp_path: Path) -> None:
    with long.started(tmp_path / "out", "hetero", "--cut", 6) as child:
        wait_for(child, "finished")
        [worker] = children_of(child.pid)
        child.kill()
        wait_until_gone(worker)


@needs_gpu
@pytest.mark.parametrize("loss", ["go-on", "stop"])
def test_a_killed_gpu_process(some: Runner, loss: str, tmp_path: Path) -> None:
    with some.started(tmp_path / "out", "hetero", "--cut", 6, "--on-gpu-loss", loss) as child:
        wait_for(child, "finished")
        [worker] = children_of(child.pid)
        os.kill(worker, signal.SIGKILL)
        out, err = child.communicate(timeout=100)
    done = outcome(child.returncode, out, err)
    if loss == "stop":
        assert done.status == 1
        assert "killed by signal 9" in done.said
        return
    assert done.status == 0, done.said
    assert done.report["gpu_lost"]
    assert done.report["finished"] == 60
    assert {v["gpu_blocks"] for v in done.report["videos"]} >= {0, 6}


SILENCE_S = 4


@needs_gpu
@pytest.mark.parametrize(
    ("mode", "more", "event"),
    [
        ("hetero", ("--cut", 6), "finished"),
        ("gpu", ("--on-gpu-loss", "stop"), "finished"),
        ("dp", ("--on-gpu-loss", "stop"), "finished"),
        ("hetero-tensor", ("--gpu-share", 0.5, "--on-gpu-loss", "stop"), "blocks"),
    ],
)
@pytest.mark.usefixtures("on_gpu")  # kernels are compiled
def test_a_gpu_process_that_hangs(
    some: Runner, mode: str, more: tuple[object, ...], event: str, tmp_path: Path
) -> None:
    with some.started(tmp_path / "out", mode, "--gpu-silence-s", SILENCE_S, *more) as child:
        wait_for(child, event)
        [worker] = children_of(child.pid)
        os.kill(worker, signal.SIGSTOP)
        out, err = child.communicate(timeout=100)
    wait_until_gone(worker)
    done = outcome(child.returncode, out, err)
    assert f"silent for {SILENCE_S}.0 s" in (done.said if "stop" in more else done.report["note"])
    if "stop" in more:
        assert done.status == 1
    else:
        assert (done.status, done.report["gpu_lost"], done.report["finished"]) == (0, True, 60)


@needs_gpu
def test_a_gpu_process_that_hangs_while_it_is_timed(runner: Runner, tmp_path: Path) -> None:
    """In its first moments: it has twice as long to open its device."""
    with runner.started(tmp_path / "out", "hetero", "--gpu-silence-s", 6) as child:
        deadline = time.monotonic() + 60
        while not (timers := children_of(child.pid)) and time.monotonic() < deadline:
            time.sleep(0.001)
        while b"--timer" not in Path(f"/proc/{timers[0]}/cmdline").read_bytes():  # a copy of its owner so far
            time.sleep(0.001)
        os.kill(timers[0], signal.SIGSTOP)
        out, err = child.communicate(timeout=100)
    wait_until_gone(timers[0])
    done = outcome(child.returncode, out, err)
    assert done.status == 5
    assert "has executed no block within 12.0 s" in done.report["error"]["what"]
    assert any("opens its device and compiles kernels for" in event.get("text", "") for event in done.events)


def test_it_ends_with_the_process_that_started_it(long: Runner, tmp_path: Path) -> None:
    """As `hvdc run` starts it: killed, it leaves nothing behind."""
    code = (
        "import os, subprocess, sys\n"
        "command = [*sys.argv[1:], '--with-parent', str(os.getpid())]\n"
        "child = subprocess.Popen(command, stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    output = tmp_path / "out"
    command = [sys.executable, "-c", code, *long.command(output, "npu")]
    with (
        (tmp_path / "said").open("w") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as parent,
    ):
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        deadline = time.monotonic() + 60
        while not list(output.glob("video-*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        parent.kill()
        wait_until_gone(pid)
    assert 0 < len(list(output.iterdir())) < 400
