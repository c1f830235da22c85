"""What `hvdc_runner` refuses, with which status and words, and what is kept."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device_runtime.runner.small import EXECUTIONS, VIDEOS, assert_equal
from tests.device_runtime.runs import (
    Runner,
    stream_of,
)


def refused(runner: Runner, output: Path, mode: str, *more: object, status: int, words: str) -> None:
    done = runner.run(output, mode, *more)
    assert done.status == status, done.said
    assert words in done.report["error"]["what"]
    assert words in done.said
    assert not output.exists() or list(output.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "more", "words"),
    [
        ("fast", (), "--mode does not take fast"),
        ("npu", ("--cut", 3), "have no effect in mode npu"),
        ("dp", ("--gpu-block-s", 1, "--npu-block-s", 1), "have no effect in mode dp"),
        ("hetero", ("--cut", "many"), "--cut does not take many"),
        ("hetero", ("--cut", -1), "--cut does not take -1"),
        ("hetero", ("--cut", EXECUTIONS + 1), "is beyond the 12 blocks of a video"),
        ("hetero", ("--gpu-block-s", 1), "rates belong together"),
        ("hetero", ("--gpu-block-s", 0, "--npu-block-s", 1), "do not place a cut"),
        ("hetero", ("--gpu-block-s", "nan", "--npu-block-s", 1), "--gpu-block-s does not take nan"),
        ("hetero", ("--cut", 1, "--decode-s", 1), "rates have no effect beside a given --cut"),
        ("npu", ("--threads", 2**33), "--threads does not take"),
        ("npu", ("--threads",), "--threads needs a value"),
        ("npu", ("--fast",), "there is no option --fast"),
        ("npu", ("more",), "more is one argument too many"),
        ("npu", ("--npu-cpus", "0-"), "0- is no list of processors"),
        ("npu", ("--npu-cpus", "5000"), "5000 is no list of processors"),
        ("npu", ("--npu-cpus", "0-1023"), "can be used"),
        ("gpu", ("--gpu-cpus", "0-1023"), "can be used"),
        ("gpu", ("--gpu-import", "magic"), "--gpu-import does not take magic"),
        ("gpu", ("--gpu-cpus", "0,"), "0, is no list of processors"),
        ("npu", ("--npu-cpus", ""), "--npu-cpus does not take an empty value"),
        ("gpu", ("--device", ""), "--device does not take an empty value"),
        ("gpu", ("--gpu-silence-s", 0), "--gpu-silence-s does not take 0"),
        ("npu", ("--with-parent", 1), "did not start this one"),
    ],
)
def test_options_that_cannot_be_carried_out(
    runner: Runner, mode: str, more: tuple[object, ...], words: str, tmp_path: Path
) -> None:
    done = runner.run(tmp_path / "out", mode, *more)
    assert done.status == 2, done.said
    assert words in done.said
    assert done.report["error"]["kind"] == "usage"
    assert words in done.report["error"]["what"]
    assert not any("weights" in event.get("text", "") for event in done.events)
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("given", "cpus", "words"), [("small.hvdc", "5000", "5000 is no list"), ("nowhere", "0", "nowhere cannot be used")]
)
def test_a_worker_that_cannot_start_tells_its_owner(runner: Runner, given: str, cpus: str, words: str) -> None:
    """Before it hears anything; this test is the owner."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = "import os, sys; os.dup2(int(sys.argv[1]), 3, inheritable=True); os.execv(sys.argv[2], sys.argv[2:])"
    worker = [str(runner.program), "--worker", str(runner.artifact.with_name(given)), "--gpu-cpus", cpus]
    with mine, its:
        command = [sys.executable, "-c", code, str(its.fileno()), *worker]
        done = subprocess.run(command, pass_fds=[its.fileno()], check=False)
        assert done.returncode == 1
        assert words.encode() in mine.recv(4096)


def test_what_is_missing_is_named(runner: Runner) -> None:
    def said(*arguments: object) -> str:
        done = subprocess.run([str(runner.program), *map(str, arguments)], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        return done.stderr

    assert "ARTIFACT is missing" in said()
    assert "STREAM is missing" in said(runner.artifact)
    assert "-o OUT is missing" in said(runner.artifact, runner.stream)
    assert "--mode is missing" in said(runner.artifact, runner.stream, "-o", "out")


def test_help_names_every_option(runner: Runner) -> None:
    done = subprocess.run([str(runner.program), "--help"], capture_output=True, text=True, check=True)
    source = (Path(__file__).parents[3] / "device_runtime" / "runner" / "src" / "options.c").read_text()
    options = set(re.findall(r'^    \{"(-[a-z-]+)",', source, re.MULTILINE)) - {"--help", "-h", "--worker", "--timer"}
    assert len(options) > 15
    assert [option for option in options if not re.search(rf"(?<![\w-]){option}\b", done.stdout)] == []
    assert "Exit statuses:" in done.stdout


def test_a_stream_of_another_artifact(runner: Runner, uncalibrated: Path, tmp_path: Path) -> None:
    other = Runner(runner.program, uncalibrated, runner.stream, runner.kernels)
    refused(other, tmp_path / "out", "npu", status=2, words="was written for another artifact")


@pytest.mark.parametrize("mode", ["gpu", "hetero", "dp", "hetero-tensor"])
def test_an_artifact_without_activation_scales(
    runner: Runner, uncalibrated: Path, embeds: Path, mode: str, tmp_path: Path
) -> None:
    stream = stream_of(tmp_path / "stream", uncalibrated, embeds, VIDEOS)
    other = Runner(runner.program, uncalibrated, stream, runner.kernels)
    refused(other, tmp_path / "out", mode, status=2, words="has no activation scales")
    assert other.finished(tmp_path / "npu", "npu").report["finished"] == 3


def test_a_damaged_artifact_and_none(runner: Runner, tmp_path: Path) -> None:
    damaged = shutil.copytree(runner.artifact, tmp_path / "damaged.hvdc")
    region = damaged / "regions" / "block-000.bin"
    data = bytearray(region.read_bytes())
    data[1000] ^= 1
    region.write_bytes(data)
    other = Runner(runner.program, damaged, runner.stream, runner.kernels)
    refused(other, tmp_path / "out", "npu", status=4, words="block-000.bin")
    nowhere = Runner(runner.program, tmp_path / "nowhere", runner.stream, runner.kernels)
    refused(nowhere, tmp_path / "out", "npu", status=4, words="nowhere")


def test_no_stream(runner: Runner, tmp_path: Path) -> None:
    other = Runner(runner.program, runner.artifact, tmp_path, runner.kernels)
    refused(other, tmp_path / "out", "npu", status=1, words="stream.bin cannot be opened")


@pytest.mark.parametrize("mode", ["gpu", "hetero", "hetero-tensor"])
def test_no_opencl_device(runner: Runner, mode: str, tmp_path: Path) -> None:
    """`hetero` without a cut and `hetero-tensor` without a share ask the timer's process, `gpu` the worker's."""
    refused(runner, tmp_path / "out", mode, "--device", "no such device", status=5, words="no such device")


def test_an_output_that_cannot_be_made(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = runner.run(tmp_path / "file" / "out", "npu")
    assert (done.status, "cannot be made" in done.said) == (1, True)


def test_results_that_are_whole_are_kept(runner: Runner, on_npu: Path, tmp_path: Path) -> None:
    runner.finished(tmp_path / "out", "npu")
    first, path = (tmp_path / "out" / f"video-{video:06d}.safetensors" for video in range(2))
    before = first.stat().st_mtime_ns
    done = runner.run(tmp_path / "out", "npu")
    assert (done.status, "is there already" in done.said) == (1, True)
    done = runner.finished(tmp_path / "out", "npu", "--resume")
    assert (done.report["finished"], done.report["skipped"]) == (0, 3)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    done = runner.finished(tmp_path / "out", "npu", "--resume")
    assert (done.report["finished"], done.report["skipped"]) == (1, 2)
    assert_equal(tmp_path / "out", on_npu)
    assert first.stat().st_mtime_ns == before
