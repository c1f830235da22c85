"""`hvdc deploy` onto a phone that a folder plays, by the real adb."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.adb_peer import Peer
from tests.deploy.artifacts import deployed, files_of, with_runtime


@pytest.fixture
def artifact(tiny_artifact: Path, tmp_path: Path) -> Path:
    return with_runtime(Path(shutil.copytree(tiny_artifact, tmp_path / "tiny.hvdc")))


def current(peer: Peer, name: str = "tiny") -> Path:
    return peer.phone.target / "hvdc" / "artifacts" / name / "current"


def test_an_artifact_arrives_whole_and_is_tried(artifact: Path, peer: Peer) -> None:
    done = deployed(artifact)
    assert done.status == 0, done.err
    arrived = files_of(current(peer) / "artifact.hvdc")
    sent = files_of(artifact)
    left_out = {"runtime/runtime.json", "runtime/sources.tar"}
    assert arrived == {path: data for path, data in sent.items() if path not in left_out}
    assert "ok        DSP self-test: Hexagon v79: 1 checks, none failed" in done.out
    assert "nothing was sent" in deployed(artifact).out
