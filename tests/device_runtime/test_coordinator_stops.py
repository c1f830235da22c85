"""A stream that is asked to stop, abandoned or killed: what is finished is kept, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.device_runtime.streams import Shape, check, kept, latent, words

SHAPE = Shape()


class Owner:
    """`hvdc_stream_check run` as a process to be signalled."""

    def __init__(self, program: Path, *arguments: str) -> None:
        self.process = subprocess.Popen([program, "run", *arguments], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self._lines = self.process.stdout

    def wait_for(self, event: str) -> None:
        for line in self._lines:
            if line.startswith(f"event {event}"):
                return
        raise AssertionError(f"no {event}")

    def children(self) -> list[int]:
        of = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in of.read_text().split()]

    def end(self) -> dict[str, Any]:
        """Its report."""
        *_, last = self._lines
        self.process.wait(timeout=30)
        report: dict[str, Any] = json.loads(last)
        return report


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has reaped yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def wait_until(true: Callable[[], bool]) -> None:
    for _ in range(2000):
        if true():
            return
        time.sleep(0.005)
    raise AssertionError("it took more than 10 s")


SLOW = words(SHAPE, mode="hetero", cut=5, videos=6, gpu_us=5000, npu_us=5000)


def test_asked_to_stop_it_finishes_what_has_begun(programs: dict[str, Path], tmp_path: Path) -> None:
    owner = Owner(programs["hvdc_stream_check"], *SLOW, f"dir={tmp_path}")
    owner.wait_for("blocks")
    owner.process.send_signal(signal.SIGTERM)
    report = owner.end()
    assert report["ok"]
    assert report["stopped"]
    assert 0 < report["finished"] < 6
    assert owner.process.returncode == 0
    check(report, SHAPE, tmp_path)


def test_asked_to_stop_it_does_not_begin_what_a_policy_holds(programs: dict[str, Path], tmp_path: Path) -> None:
    """By rates that are far off the GPU would wait for long; the first video is decoded meanwhile."""
    believed = {"policy": "deadline", "gpu_s": 2, "npu_s": 1, "decode_s": 60, "deadline_s": 5000, "from_start": 1}
    given = words(SHAPE, mode="hetero", videos=3, decode_us=1_500_000, dir=tmp_path, **believed)
    owner = Owner(programs["hvdc_stream_check"], *given)
    owner.wait_for("cut 1")
    owner.process.send_signal(signal.SIGTERM)
    report = owner.end()
    assert report["ok"], report
    assert (report["stopped"], report["finished"]) == (True, 1)
    check(report, SHAPE, tmp_path)
    again = Owner(programs["hvdc_stream_check"], *given, "resume=1").end()
    assert (again["skipped"], again["finished"]) == (1, 2)
    check(again, SHAPE, tmp_path)


def test_asked_to_stop_before_it_has_started_it_stops(programs: dict[str, Path]) -> None:
    """The worker is opening a device that never answers."""
    owner = Owner(programs["hvdc_stream_check"], *SLOW, "open_hangs=1")
    wait_until(lambda: len(owner.children()) == 1)
    (worker,) = owner.children()
    # It has become the worker, and its owner waits for it: only then are signals blocked and the stream's to hear.
    wait_until(lambda: b"worker" in Path(f"/proc/{worker}/cmdline").read_bytes())
    owner.process.send_signal(signal.SIGTERM)
    report = owner.end()
    assert report["ok"]
    assert report["stopped"]
    assert report["finished"] == 0
    assert gone(worker)


@pytest.mark.parametrize("signals", [1, 2], ids=["asked to abandon", "asked twice"])
def test_asked_to_abandon_it_keeps_only_what_is_finished(
    programs: dict[str, Path], tmp_path: Path, signals: int
) -> None:
    owner = Owner(programs["hvdc_stream_check"], *SLOW, f"dir={tmp_path}", f"on_stop={2 - signals}")
    owner.wait_for("finished")
    worker = owner.children()
    for _ in range(signals):
        owner.process.send_signal(signal.SIGINT)
        owner.wait_for("stopping")
    report = owner.end()
    assert report["ok"]
    assert report["stopped"]
    assert 0 < report["finished"] < 6
    assert len(worker) == 1
    assert gone(worker[0])
    check(report, SHAPE, tmp_path)


def test_a_latent_that_is_finished_as_it_is_abandoned_is_kept(programs: dict[str, Path], tmp_path: Path) -> None:
    """The last step's latent is written while the stream is asked to stop: the block before it is the last event."""
    given = words(SHAPE, mode="npu", videos=2, host_us=150_000, decodes=0, dir=tmp_path, on_stop=1)
    owner = Owner(programs["hvdc_stream_check"], *given)
    owner.wait_for(f"blocks 0 {SHAPE.executions}")
    owner.process.send_signal(signal.SIGTERM)
    report = owner.end()
    assert report["ok"], report
    assert (report["stopped"], report["finished"]) == (True, 1)
    assert report["videos"][0]["finished_s"] > 0
    check(report, SHAPE, tmp_path)


def test_a_video_that_was_the_last_one_is_no_stopped_stream(programs: dict[str, Path], tmp_path: Path) -> None:
    given = words(SHAPE, mode="npu", videos=1, host_us=150_000, decodes=0, dir=tmp_path, on_stop=1)
    owner = Owner(programs["hvdc_stream_check"], *given)
    owner.wait_for(f"blocks 0 {SHAPE.executions}")
    owner.process.send_signal(signal.SIGTERM)
    report = owner.end()
    assert (report["ok"], report["stopped"], report["finished"]) == (True, False, 1)
    check(report, SHAPE, tmp_path)


@pytest.mark.parametrize("mode", ["gpu", "dp"])
def test_latents_that_wait_for_the_decoder_are_kept(programs: dict[str, Path], tmp_path: Path, mode: str) -> None:
    """The GPU's, while the NPU decodes another video and the stream is abandoned: a later one only decodes them."""
    given = {"mode": mode, "videos": 3, "dir": tmp_path, "npu_us": 40_000}
    owner = Owner(programs["hvdc_stream_check"], *words(SHAPE, **given, decode_us=800_000, on_stop=1))
    gpu_video = 1
    owner.wait_for(f"handoff {gpu_video}")
    owner.process.send_signal(signal.SIGTERM)
    report = owner.end()
    assert report["ok"], report
    assert report["stopped"]
    found, metadata = kept(tmp_path, gpu_video)
    assert metadata["gpu_blocks"] == str(SHAPE.executions)
    assert np.array_equal(found, latent(SHAPE, 0, gpu_video, SHAPE.executions))


@pytest.mark.parametrize("policy", ["static", "replan"])
def test_a_latent_that_the_gpu_has_finished_unheard_says_who_made_it(
    programs: dict[str, Path], tmp_path: Path, policy: str
) -> None:
    """The GPU is done with the first video while the second one is loaded; the stream is abandoned before it hears."""
    who: dict[str, object] = {"cut": SHAPE.executions} if policy == "static" else {"gpu_s": 1e-6, "npu_s": 1}
    given = {"mode": "hetero", "policy": policy, **who, "videos": 3, "load_us": 1_000_000, "decodes": 0}
    given |= {"gpu_us": 20_000, "dir": tmp_path, "on_stop": 1}
    owner = Owner(programs["hvdc_stream_check"], *words(SHAPE, **given))
    owner.wait_for("started")
    time.sleep(1.5)  # within the second load
    owner.process.send_signal(signal.SIGTERM)
    report = owner.end()
    assert report["ok"], report
    assert (report["stopped"], report["finished"]) == (True, 1)
    assert report["videos"][0]["gpu_blocks"] == SHAPE.executions
    check(report, SHAPE, tmp_path)


def test_a_result_that_cannot_be_kept_at_the_end_is_said(programs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    given = words(SHAPE, mode="npu", videos=2, host_us=150_000, decodes=0, dir=out, on_stop=1)
    owner = Owner(programs["hvdc_stream_check"], *given)
    owner.wait_for(f"blocks 0 {SHAPE.executions}")
    out.rmdir()
    owner.process.send_signal(signal.SIGTERM)
    report = owner.end()
    assert not report["ok"]
    assert "video-000000.safetensors cannot be written: No such file or directory" in report["failure"]
    assert report["finished"] == 0


def test_the_terminals_ctrl_c_is_the_owners_to_handle(programs: dict[str, Path], tmp_path: Path) -> None:
    """Every process of a terminal gets it: the worker goes on, so that what has begun can be finished."""
    owner = Owner(programs["hvdc_stream_check"], *SLOW, f"dir={tmp_path}")
    owner.wait_for("blocks")
    for pid in (owner.process.pid, *owner.children()):
        os.kill(pid, signal.SIGINT)
    report = owner.end()
    assert report["stopped"]
    assert not report["gpu_lost"]
    check(report, SHAPE, tmp_path)


def test_a_killed_owner_leaves_no_worker_and_no_memory(programs: dict[str, Path], tmp_path: Path) -> None:
    """Its finished videos are kept; resuming does the others."""
    shared_before = set(Path("/dev/shm").iterdir())
    owner = Owner(programs["hvdc_stream_check"], *SLOW, f"dir={tmp_path}", "abort=2:8")
    owner.wait_for("finished")
    (worker,) = owner.children()
    assert owner.process.wait(timeout=30) == -signal.SIGKILL
    wait_until(lambda: gone(worker))
    assert set(Path("/dev/shm").iterdir()) <= shared_before
    assert kept(tmp_path, 0)[0].tolist() == latent(SHAPE, 0, 0, 5).tolist()
    again = Owner(programs["hvdc_stream_check"], *SLOW, f"dir={tmp_path}", "resume=1").end()
    assert again["ok"], again
    assert (again["skipped"], again["finished"]) == (2, 4)
    check(again, SHAPE, tmp_path)


def test_a_hanging_worker_dies_with_its_owner(programs: dict[str, Path]) -> None:
    owner = Owner(programs["hvdc_stream_check"], *SLOW, "hang=0:3")
    owner.wait_for("blocks 0 3")
    (worker,) = owner.children()
    owner.process.kill()
    owner.process.wait()
    wait_until(lambda: gone(worker))


def test_a_trace_of_a_killed_owner_can_be_read(programs: dict[str, Path], tmp_path: Path) -> None:
    """Chrome's array format need not be closed; the last line may be cut."""
    trace = tmp_path / "trace.json"
    owner = Owner(programs["hvdc_stream_check"], *SLOW, f"trace={trace}", "die=0:3", "abort=1:8")
    owner.process.wait(timeout=30)
    lines = trace.read_text().splitlines()[:-1]
    events = json.loads("".join(lines).rstrip(",") + "]")
    assert any("GPU's process is lost" in e["name"] for e in events)
