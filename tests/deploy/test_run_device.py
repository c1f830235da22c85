"""From an artifact to clips on a device: deployed, tried, run, pulled. One real path on one machine.

The device is a Linux one of this machine's kind that speaks adb: what it executes is the runtime as it is built here,
with this machine's OpenCL. No phone takes part.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.adb_peer import Peer
from tests.cli.runs import needs_gpu
from tests.commands import Result, hvdc
from tests.deploy.artifacts import deployed, files_of

pytest.importorskip("av")
pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.usefixtures("runtime_cache")

OPENCL = [Path(folder) / "libOpenCL.so.1" for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
                                                         "/usr/lib64", "/usr/lib")]  # fmt: skip


@pytest.fixture
def runtime_cache(runtimes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))


@pytest.fixture
def clips(runnable_artifact: Path, runtime_cache: None, tmp_path: Path) -> Path:
    """An artifact with the runtime for this machine in it."""
    copy = Path(shutil.copytree(runnable_artifact, tmp_path / "clips.hvdc"))
    done = hvdc("runtime", "build", "--into", copy, "-q")
    assert done.status == 0, done.err
    return copy


@pytest.fixture
def board(plugged: Callable[..., Peer]) -> Peer:
    """A Linux device."""
    found = [path for path in OPENCL if path.exists()]
    return plugged(properties={}, machine=None, libraries={"libOpenCL.so.1": found[0]} if found else {})


@pytest.fixture
def ready(clips: Path, board: Peer) -> Path:
    """The artifact, deployed."""
    done = deployed(clips, "--force", "--no-run", "-q")
    assert done.status == 0, done.err
    return clips


def run(artifact: Path, embeds: Path, out: Path, *more: object) -> Result:
    done = hvdc("run", "--device", "auto", artifact, "--prompts", embeds, "-o", out, *more)
    assert "Traceback" not in done.err
    assert "unexpected" not in done.err
    return done


def facts(done: Result) -> Any:
    assert done.status == 0, done.err
    return done.json()


def results(out: Path) -> dict[str, bytes]:
    return files_of(out / "results")


def runs(board: Peer) -> Path:
    return board.phone.target / "hvdc" / "artifacts" / "clips" / "runs"


def test_deployed_tried_run_and_pulled(clips: Path, board: Peer, embeds: Path, tmp_path: Path) -> None:
    report = facts(deployed(clips, "--force", "--json"))
    tried = {t["name"]: (t["state"], t["text"]) for t in report["smoke_test"]}
    assert tried["programs"] == ("ok", "the device executes them")
    assert tried["artifact"] == ("ok", "the runtime's reader opens it there")
    assert tried["npu block"][0] == "ok", tried
    if board.phone.libraries and tried["GPU dot products"][0] != "not tried":
        assert tried["GPU dot products"][0] == tried["gpu block"][0] == tried["both at once"][0] == "ok", tried
    assert tried["DSP self-test"] == ("not tried", "there is no libcdsprpc.so on the device")
    assert any("no libcdsprpc.so" in text for text in report["does_not_fit"])

    there = facts(run(clips, embeds, tmp_path / "there", "--mode", "npu", "--format", "gif", "--json"))
    here = hvdc("run", clips, "--prompts", embeds, "-o", tmp_path / "here", "--mode", "npu", "--no-decode", "--json")
    assert there["where"].startswith(f"{board.serial}: ")
    assert len(facts(here)["videos"]) == 3
    assert results(tmp_path / "there") == results(tmp_path / "here"), "the same program on the same machine"
    assert (tmp_path / "there" / "video-000002.gif").exists()

    (kept,) = runs(board).iterdir()
    assert sorted(path.name for path in kept.iterdir()) == ["report.json", "run.log"], "results went with the pull"
    assert hvdc("deploy", "--pull-logs", tmp_path / "logs").status == 0
    log = (tmp_path / "logs" / f"clips-{kept.name}-run.log").read_text()
    assert '"event": "finished", "video": 2' in log
    again = run(clips, embeds, tmp_path / "there", "--mode", "npu", "--format", "gif", "--json", "--resume")
    assert [video["skipped"] for video in facts(again)["videos"]] == [True] * 3


@needs_gpu
def test_both_engines_and_a_trace(ready: Path, board: Peer, embeds: Path, tmp_path: Path) -> None:
    given = ("--cut", 5, "--no-decode", "--prompts-limit", 2, "--trace", tmp_path / "trace.json")
    done = facts(run(ready, embeds, tmp_path / "out", *given, "--json"))
    assert [video["gpu_blocks"] for video in done["videos"]] == [5, 5]
    assert json.loads((tmp_path / "trace.json").read_text())
    assert (board.phone.target / "hvdc" / "kernels").is_dir()


def test_a_cable_that_is_pulled_costs_no_video(ready: Path, board: Peer, embeds: Path, tmp_path: Path) -> None:
    board.faults.cut_after(2500, 3000, 2000, 1500, 4000, 1000)
    done = run(ready, embeds, tmp_path / "out", "--mode", "npu", "--no-decode", "--json")
    assert len(facts(done)["videos"]) == 3
    assert board.faults.cuts >= 4
    assert len(results(tmp_path / "out")) == 3


def test_a_phone_that_does_not_come_back(
    ready: Path, board: Peer, embeds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had finished is taken by the same command with --resume."""
    monkeypatch.setattr("hvdc.pipeline.run_device.WAIT_S", 0.5)
    board.faults.cut_after(9000, away_s=1e9)
    done = run(ready, embeds, tmp_path / "out", "--mode", "npu", "--no-decode")
    assert done.status == 5
    assert "the device was lost" in done.err
    assert "again again" not in done.err
    board.faults.leave(0.0)
    done = run(ready, embeds, tmp_path / "out", "--mode", "npu", "--no-decode", "--json", "--resume")
    if done.status == 2:  # nothing of the first run was kept here
        done = run(ready, embeds, tmp_path / "out", "--mode", "npu", "--no-decode", "--json")
    assert len(facts(done)["videos"]) == 3


def test_what_the_runtime_refuses_there_is_said_here(ready: Path, board: Peer, embeds: Path, tmp_path: Path) -> None:
    done = run(ready, embeds, tmp_path / "out", "--cut", 3, "--opencl-device", "no such device", "--json")
    assert done.status == 5
    assert "no such device" in done.json()["error"]["what"]


def test_an_artifact_that_is_not_there(clips: Path, board: Peer, embeds: Path, tmp_path: Path) -> None:
    done = run(clips, embeds, tmp_path / "out")
    assert (done.status, "this artifact is not on the device" in done.err) == (5, True)
    assert "hvdc deploy ARTIFACT" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--device", "auto", "--decode-with", "emulator"), "a phone has no emulator"),
        (("--decode-with", "device"), "no phone is used"),
        (("--to", "/data/local/tmp/x"), "--to would have no effect"),
        (("--device", "auto", "--to", "/etc"), "no folder that hvdc uses"),
        (("--device", "auto", "--decode-with", "device"), "was not compiled for the NPU"),
    ],
)
def test_what_is_refused(more: tuple[str, ...], words: str, ready: Path, embeds: Path, tmp_path: Path) -> None:
    done = hvdc("run", ready, "--prompts", embeds, "-o", tmp_path / "out", *more)
    assert (done.status, words in done.err) == (2, True), done.err
    assert not (tmp_path / "out").exists()


def test_results_of_a_phone_and_of_this_machine_are_not_mixed(ready: Path, embeds: Path, tmp_path: Path) -> None:
    assert run(ready, embeds, tmp_path / "out", "--mode", "npu", "--no-decode").status == 0
    done = hvdc("run", ready, "--prompts", embeds, "-o", tmp_path / "out", "--mode", "npu", "--no-decode", "--resume")
    assert done.status == 2
    assert "rates or device" in done.err


def started(artifact: Path, embeds: Path, out: Path, *more: object) -> subprocess.Popen[str]:
    """The command as a process that a terminal's signal reaches."""
    words = ("run", "--device", "auto", artifact, "--prompts", embeds, "-o", out, "--mode", "npu", "--no-decode", *more)
    return subprocess.Popen(
        [sys.executable, "-m", "hvdc", *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def until(there: Callable[[], object]) -> None:
    end_s = time.monotonic() + 60
    while not there() and time.monotonic() < end_s:
        time.sleep(0.02)


def test_ctrl_c_stops_the_runner_there_and_keeps_what_is_finished(
    ready: Path, board: Peer, embeds: Path, tmp_path: Path
) -> None:
    videos = ("--prompts-limit", 1, "--seeds", "0:100")
    process = started(ready, embeds, tmp_path / "out", *videos)
    until(lambda: any('"finished"' in path.read_text() for path in runs(board).glob("*/run.log")))
    (folder,) = runs(board).iterdir()
    pid = int((folder / "pid").read_text())
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "run the same command with --resume to go on" in said
    assert not Path(f"/proc/{pid}").exists()
    kept = results(tmp_path / "out")
    assert 0 < len(kept) < 100
    done = facts(run(ready, embeds, tmp_path / "out", "--mode", "npu", "--no-decode", *videos, "--json", "--resume"))
    assert sum(video["skipped"] for video in done["videos"]) >= len(kept)
    assert kept.items() <= results(tmp_path / "out").items()


def test_ctrl_c_while_the_cable_is_out_does_not_wait_for_it(
    ready: Path, board: Peer, embeds: Path, tmp_path: Path
) -> None:
    board.faults.cut_after(9000, away_s=1e9)
    process = started(ready, embeds, tmp_path / "out")
    until(lambda: board.faults.cuts)
    time.sleep(1.0)
    begun_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert time.monotonic() - begun_s < 20, "it would be waited for for two minutes"
