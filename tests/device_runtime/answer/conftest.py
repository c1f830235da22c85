"""An artifact with its answer, and the program that compares."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import calibrations
from tests.device_runtime.answer.small import Answering, attending


@pytest.fixture(scope="session")
def ask(programs: dict[str, Path], gpu_caches: Path) -> Answering:
    return Answering(programs["hvdc_bench"], gpu_caches / "ours")


@pytest.fixture(scope="session")
def small(embeds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two blocks, both experts, with activation scales. Tests change copies of it only."""
    folder = tmp_path_factory.mktemp("calibrated")
    checkpoint = calibrations.write_model(folder / "model", attending)
    calibration = calibrations.calibrated(checkpoint, embeds, folder / "c.safetensors")
    done = calibrations.run_compile(checkpoint, folder / "small.hvdc", "--calibration", calibration, "-q")
    assert done.status == 0, done.err
    return folder / "small.hvdc"


@pytest.fixture
def copy(small: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small, tmp_path / "copy.hvdc"))
