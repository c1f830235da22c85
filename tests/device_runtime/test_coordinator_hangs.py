"""Calls of the NPU's engine, or of its decoder, that never return: the stream says so and gives its process up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.device_runtime.runs import children_of, is_running
from tests.device_runtime.streams import Shape, kept, latent, shared_columns, words

SHAPE = Shape()
DEVICE = 3
"""Of enum hvdc_failure_kind."""
HANGS = 6
"""Exit status of `hvdc_stream_check`."""
LIMIT_S = 1.0
"""Far above what any other call takes, sanitized and on a busy machine."""
SAID = "a call of the NPU's engine, or of the decoder, has not returned within 1.0 s"


def started(program: Path, **more: object) -> subprocess.Popen[str]:
    command = [str(program), "run", *words(SHAPE, **more)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(child: subprocess.Popen[str]) -> dict[str, Any]:
    """The report of one that gives its NPU up."""
    out, err = child.communicate(timeout=60)
    assert "Sanitizer" not in err, err
    assert child.returncode == HANGS, (out, err)
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert report["npu_hangs"]
    return report


@pytest.fixture(scope="module")
def program(programs: dict[str, Path]) -> Path:
    return programs["hvdc_stream_check"]


MODES: dict[str, dict[str, object]] = {
    "npu": {},
    "hetero": {"cut": 7},
    "dp": {"gpu_us": 30_000},
    "gpu": {},
    "hetero-tensor": {"share": 0.5},
}


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_does_not_return_ends_the_process(program: Path, mode: str, tmp_path: Path) -> None:
    """Finished videos are there, and a stream that resumes makes the others."""
    video = 2 if mode == "dp" else 1  # the NPU's second one
    fault: dict[str, object] = {"decode_hangs": video} if mode == "gpu" else {"npu_hangs": f"{video}:9"}
    given: dict[str, object] = {"dir": tmp_path, "mode": mode, "videos": 3, **MODES[mode]}
    report = ended(started(program, **given, **fault, npu_silence_s=LIMIT_S))
    assert (report["ok"], report["kind"]) == (False, DEVICE)
    assert report["failure"] == f"{SAID} in video {video}; finished videos are kept"
    done = [held for held in report["videos"] if held["finished_s"] > 0]
    assert done[0]["video"] == 0
    columns = shared_columns(SHAPE, 0.5) if mode == "hetero-tensor" else None
    for held in done:
        found, _ = kept(tmp_path, held["video"])
        assert (found == latent(SHAPE, 0, held["video"], held["gpu_blocks"], columns)).all()
    there = len(list(tmp_path.glob("video-*.safetensors")))
    # A latent is kept before it is decoded, also one that waits for a decoder that never comes to it.
    assert there == {"gpu": 3, "dp": 2}.get(mode, len(done))
    again = started(program, **given, resume=1)
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    report = json.loads(out.splitlines()[-1])
    assert (report["skipped"], report["finished"]) == (there, 3 - there)


def test_its_worker_ends_with_it(program: Path) -> None:
    with started(program, mode="hetero", cut=3, videos=9, npu_hangs="1:9", npu_silence_s=LIMIT_S) as child:
        workers: list[int] = []
        while not workers and child.poll() is None:
            workers = children_of(child.pid)
        ended(child)
    assert workers
    assert not any(is_running(worker) for worker in workers)


def test_stopping_does_not_wait_for_it_either(program: Path) -> None:
    """Asked to drop everything, while the call is in its first moments."""
    with started(program, mode="npu", videos=3, npu_hangs="1:9", npu_silence_s=LIMIT_S, on_stop=1) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("event blocks 1 9"):
                break
        child.send_signal(signal.SIGTERM)
        report = ended(child)
    assert report["failure"].startswith(SAID)


def test_slow_calls_and_an_npu_without_work_are_no_fault(program: Path) -> None:
    """Each call is within the limit and all together are not; the GPU takes longer than the limit for each video."""
    slow = {"mode": "hetero", "cut": 4, "videos": 2, "npu_us": 250_000, "gpu_us": 400_000, "npu_silence_s": 1.2}
    child = started(program, **slow)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, (out, err)


def test_waiting_for_a_slice_is_not_the_npus_silence(program: Path) -> None:
    """A worker that hangs has a limit of its own, which is longer here."""
    more = {
        "mode": "hetero-tensor",
        "share": 0.5,
        "videos": 2,
        "hang": "1:5",
        "silence_s": 2.0,
        "npu_silence_s": LIMIT_S,
    }
    child = started(program, **more)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, (out, err)
    report = json.loads(out.splitlines()[-1])
    assert report["gpu_lost"]
    assert report["finished"] == 2


def test_without_a_limit_it_is_waited_for(program: Path) -> None:
    with started(program, mode="npu", videos=2, npu_hangs="1:9") as child:
        time.sleep(1.0)
        assert child.poll() is None
        os.kill(child.pid, signal.SIGKILL)
