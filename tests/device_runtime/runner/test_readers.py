"""Who reads what `hvdc_runner` says, and how slowly, or does not; and an NPU's engine that does not return."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hvdc.pipeline.stream_file import StreamVideo
from tests.device_runtime.runs import REPORTS, SANITIZERS, Runner, children_of, is_running, stream_of, why_no_gpu

VIDEOS = 40
PIPE_BYTES = 4096
"""The smallest that there is: a few lines fill it."""


@pytest.fixture(scope="session")
def runner(runner: Runner, embeds: Path) -> Runner:
    return runner.with_videos("readers", VIDEOS, embeds)


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """A small one; its ends may be closed earlier."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    try:
        yield reader, writer
    finally:
        for end in (reader, writer):
            try:
                os.close(end)
            except OSError:
                continue


def start(
    runner: Runner, output: Path, out: int, err: int, *more: object, mode: str = "npu", **environment: str
) -> subprocess.Popen[bytes]:
    command = runner.command(output, mode, *more)
    return subprocess.Popen(command, stdout=out, stderr=err, env={**os.environ, **SANITIZERS, **environment})


def read_all(end: int) -> str:
    said = b""
    while some := os.read(end, 65536):
        said += some
    return said.decode()


def events(said: str) -> list[dict[str, Any]]:
    assert not any(report in said for report in REPORTS), said
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def test_progress_that_nobody_reads_holds_nothing_up(runner: Runner, tmp_path: Path) -> None:
    """To the end of the stream; what the pipe held is whole lines."""
    with pipe() as (reader, writer), (tmp_path / "report").open("w+b") as report:
        child = start(runner, tmp_path / "out", report.fileno(), writer)
        os.close(writer)
        assert child.wait(timeout=120) == 0
        report.seek(0)
        held = json.load(report)
        said = read_all(reader)
    assert held["finished"] == VIDEOS
    assert len(list((tmp_path / "out").iterdir())) == VIDEOS
    assert said.endswith("\n")
    assert 0 < len(events(said)) < 12 * VIDEOS


def test_progress_that_does_not_fit_is_left_out_and_counted(
    runner: Runner, optimised: dict[str, Path], tmp_path: Path, embeds: Path
) -> None:
    """More than waits; when the reader comes back it is told how much it has missed, and hears of every video's end."""
    many = stream_of(tmp_path / "many", runner.artifact, embeds, [StreamVideo(i % 3, i) for i in range(300)])
    busy = Runner(optimised["hvdc_runner"], runner.artifact, many, runner.kernels)
    with pipe() as (reader, writer), (tmp_path / "report").open("w+b") as report:
        child = start(busy, tmp_path / "out", report.fileno(), writer)
        os.close(writer)
        deadline = time.monotonic() + 100
        while len(list((tmp_path / "out").glob("video-*"))) < 290 and time.monotonic() < deadline:
            time.sleep(0.01)
        said = read_all(reader)
        assert child.wait(timeout=60) == 0
        report.seek(0)
        held = json.load(report)
    heard = events(said)
    assert held["finished"] == 300
    assert held["lines_left_out"] > 0
    assert [event["video"] for event in heard if event["event"] == "finished"] == list(range(300))
    blocks = sum(event["event"] == "blocks" for event in heard)
    assert blocks + held["lines_left_out"] == 12 * 300
    assert any("lines were left out here" in event.get("text", "") for event in heard if event["event"] == "note")


def test_a_report_that_nobody_reads_is_given_up_with_a_sentence(runner: Runner, tmp_path: Path) -> None:
    with pipe() as (reader, writer), (tmp_path / "said").open("w+") as said:
        child = start(runner, tmp_path / "out", writer, said.fileno(), "--reader-silence-s", 1)
        os.close(writer)
        assert child.wait(timeout=120) == 1
        said.seek(0)
        assert "nobody has read standard output for 1.0 s; the videos are kept" in said.read()
        assert len(read_all(reader)) <= PIPE_BYTES
    assert len(list((tmp_path / "out").iterdir())) == VIDEOS


def test_a_slow_reader_gets_the_whole_report(runner: Runner, tmp_path: Path) -> None:
    """It takes longer than the limit in all, and never as long to read what fills the pipe."""
    with pipe() as (reader, writer), (tmp_path / "said").open("w+") as said:
        child = start(runner, tmp_path / "out", writer, said.fileno(), "--reader-silence-s", 3)
        os.close(writer)
        report = b""
        while some := os.read(reader, 1024):
            report += some
            time.sleep(0.4)
        assert child.wait(timeout=60) == 0
    assert len(report) > 7 * 1024
    assert len(json.loads(report)["videos"]) == VIDEOS


@pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")
@pytest.mark.parametrize("cut", ["6", "auto"])
def test_a_driver_that_prints_holds_nothing_up(runner: Runner, cut: str, tmp_path: Path) -> None:
    """PoCL says everything that it does, on the standard error of the worker, and of the process that times the GPU.
    Nobody reads it; what it had room for is there afterwards."""
    with pipe() as (reader, writer), (tmp_path / "report").open("w+b") as report:
        more = ("--cut", cut, "--gpu-silence-s", 20)
        child = start(
            runner, tmp_path / "out", report.fileno(), writer, *more, mode="hetero", POCL_DEBUG="all"
        )  # fmt: skip
        os.close(writer)
        assert child.wait(timeout=120) == 0
        report.seek(0)
        held = json.load(report)
        said = read_all(reader)
    assert (held["finished"], held["gpu_lost"]) == (VIDEOS, False), held["note"]
    assert said.endswith("\n")


@pytest.mark.parametrize("mode", ["npu", pytest.param("hetero", marks=pytest.mark.skipif(
    bool(why_no_gpu()), reason=why_no_gpu() or "there is one"))])  # fmt: skip
def test_a_reader_that_has_seen_enough_stops_the_stream(runner: Runner, mode: str, tmp_path: Path) -> None:
    """As in `hvdc_runner … 2>&1 | head`: as SIGTERM does, so that what is finished is kept and no process is left."""
    cut = ("--cut", 6) if mode == "hetero" else ()
    with pipe() as (reader, writer), (tmp_path / "report").open("w+b") as report:
        child = start(runner, tmp_path / "out", report.fileno(), writer, "--on-stop", "abandon", *cut, mode=mode)
        os.close(writer)
        said = b""
        while b'"event": "blocks"' not in said:
            said += os.read(reader, 256)
        workers = children_of(child.pid)
        os.close(reader)
        assert child.wait(timeout=60) == 130
        report.seek(0)
        held = json.load(report)
    assert len(workers) == (mode == "hetero")
    assert not any(is_running(worker) for worker in workers)
    assert held["stopped"]
    assert held["finished"] < VIDEOS
    assert len(list((tmp_path / "out").iterdir())) == held["finished"]


def test_a_report_without_a_reader_is_a_failure_that_is_said(runner: Runner, tmp_path: Path) -> None:
    with pipe() as (reader, writer), (tmp_path / "said").open("w+") as said:
        child = start(runner, tmp_path / "out", writer, said.fileno())
        os.close(writer)
        os.close(reader)
        assert child.wait(timeout=120) == 1
        said.seek(0)
        assert "the report cannot be written to standard output: Broken pipe; the videos are kept" in said.read()
    assert len(list((tmp_path / "out").iterdir())) == VIDEOS


def test_a_trace_is_no_pipe(runner: Runner, tmp_path: Path) -> None:
    """Who reads it could make the stream wait, already by not opening it."""
    os.mkfifo(tmp_path / "trace.json")
    done = runner.run(tmp_path / "out", "npu", "--trace", tmp_path / "trace.json")
    assert done.status == 1
    assert "trace.json cannot be written: No such device or address" in done.said
    reader = os.open(tmp_path / "trace.json", os.O_RDONLY | os.O_NONBLOCK)
    done = runner.run(tmp_path / "out", "npu", "--trace", tmp_path / "trace.json")
    os.close(reader)
    assert done.status == 1
    assert "trace.json cannot be written: it is a pipe" in done.said


# --- an engine that does not return ----------------------------------------------------------------------------------

SEIZE, INTERRUPT, DETACH, ANY_CHILD = 0x4206, 0x4207, 17, 0x40000000
"""Of ptrace(2) and waitpid(2)."""


def ptrace(request: int, task: int) -> bool:
    call = ctypes.CDLL(None, use_errno=True).ptrace
    call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    call.restype = ctypes.c_long
    return int(call(request, task, None, None)) == 0


def npu_thread(pid: int) -> int | None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "hvdc-npu":
            return int(task.name)
    return None


def test_an_npu_that_hangs_ends_the_process(runner: Runner, tmp_path: Path) -> None:
    """Its thread is stopped, in the middle of whatever it does."""
    limit_s = 2.0
    with (tmp_path / "report").open("w+b") as report, (tmp_path / "said").open("w+b") as said:
        more = ("--npu-silence-s", limit_s, "--threads", 1)
        child = start(runner, tmp_path / "out", report.fileno(), said.fileno(), *more)
        while not list((tmp_path / "out").glob("video-*")):
            assert child.poll() is None
            time.sleep(0.001)
        task = npu_thread(child.pid)
        assert task is not None
        if not ptrace(SEIZE, task):
            child.kill()
            child.wait()
            pytest.skip("an engine that hangs is not tested: this process may not stop another one's threads")
        assert ptrace(INTERRUPT, task)
        os.waitpid(task, ANY_CHILD)  # it is stopped
        deadline = time.monotonic() + 60
        while os.waitpid(task, ANY_CHILD | os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.01)  # until it is gone, with its process
        assert child.wait(timeout=60) == 6
        report.seek(0)
        held = json.load(report)
    assert held["error"]["kind"] == "device"
    assert f"has not returned within {limit_s} s in video" in held["error"]["what"]
    finished = len(list((tmp_path / "out").glob("video-*")))
    assert 0 < finished < VIDEOS
    again = runner.finished(tmp_path / "out", "npu", "--resume")
    assert (again.report["skipped"], again.report["finished"]) == (finished, VIDEOS - finished)
