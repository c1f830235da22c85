"""What tests of measuring share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import calibrations
from tests.adb_peer.fixtures import adb_program, adb_server, device, peer, plugged

__all__ = ["adb_program", "adb_server", "device", "peer", "plugged"]


@pytest.fixture(scope="session")
def calibrated_artifact(watched_checkpoint: Path, calibration: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two blocks, six steps, eight tokens, with activation scales and without a decoder."""
    output = tmp_path_factory.mktemp("calibrated") / "small.hvdc"
    assert calibrations.run_compile(watched_checkpoint, output, "--calibration", calibration, "-q").status == 0
    return output


@pytest.fixture
def artifact(calibrated_artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(calibrated_artifact, tmp_path / "a.hvdc"))
