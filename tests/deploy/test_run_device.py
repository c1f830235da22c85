"""From an artifact to clips on a device: deployed, tried, run, pulled. One real path on one machine.

The device is a Linux one of this machine's kind that speaks adb: what it executes is the runtime as it is built here,
with this machine's OpenCL and the stand-in of FastRPC's library. No phone takes part.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import pytest

from device_runtime.build import why_not
from tests.adb_peer import Peer
from tests.commands import Result, hvdc
from tests.deploy.artifacts import deployed, files_of

pytest.importorskip("av")
pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.usefixtures("runtime_cache")


@pytest.fixture
def runtime_cache(runtimes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))


@pytest.fixture
def artifact(runnable_artifact: Path, runtime_cache: None, tmp_path: Path) -> Path:
    """With the runtime for this machine in it."""
    copy = Path(shutil.copytree(runnable_artifact, tmp_path / "clips.hvdc"))
    done = hvdc("runtime", "build", "--into", copy, "-q")
    assert done.status == 0, done.err
    return copy


@pytest.fixture
def board(plugged: Callable[..., Peer]) -> Peer:
    """A Linux device."""
    opencl = find_library("OpenCL")
    found = [path for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib") if opencl
             for path in [Path(folder) / opencl] if path.exists()]  # fmt: skip
    libraries = {"libOpenCL.so.1": found[0]} if found else {}
    return plugged(properties={}, machine=None, libraries=libraries)


def run(artifact: Path, embeds: Path, out: Path, *more: object) -> Result:
    done = hvdc("run", "--device", "auto", artifact, "--prompts", embeds, "-o", out, *more)
    assert "Traceback" not in done.err
    assert "unexpected" not in done.err
    return done


def facts(done: Result) -> Any:
    assert done.status == 0, done.err
    return done.json()


def test_deployed_tried_run_and_pulled(artifact: Path, board: Peer, embeds: Path, tmp_path: Path) -> None:
    assert why_not("host") == ""
    done = deployed(artifact, "--force", "--json")
    assert done.status == 0, done.err
    report = done.json()
    tried = {t["name"]: (t["state"], t["text"]) for t in report["smoke_test"]}
    assert tried["programs"] == ("ok", "the device executes them")
    assert tried["artifact"][0] == "ok"
    assert tried["npu block"][0] == "ok", tried
    assert tried["DSP self-test"][0] == "not tried"
    assert any("no libcdsprpc.so" in text for text in report["forced"])
    again = facts(run(artifact, embeds, tmp_path / "there", "--mode", "npu", "--no-decode", "--json"))
    here = hvdc("run", artifact, "--prompts", embeds, "-o", tmp_path / "here", "--mode", "npu", "--no-decode", "--json")
    assert again["where"].startswith(board.serial)
    there = files_of(tmp_path / "there" / "results")
    assert len(there) == len(facts(here)["videos"]) == 3
    assert there == files_of(tmp_path / "here" / "results")
