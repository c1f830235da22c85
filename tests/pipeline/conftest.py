"""Calibrating into a folder of a test's own; a decoder's graphs."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.calibrations import Run, run_calibrate


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where a test calibrates to."""
    return tmp_path / "c.safetensors"


@pytest.fixture
def run(watched_checkpoint: Path, embeds: Path, output: Path) -> Run:
    """Calibrate into ``output``."""
    return lambda *more: run_calibrate(watched_checkpoint, embeds, output, *more)


@pytest.fixture(scope="session")
def models(whole_artifact: Path) -> list[onnx.ModelProto]:
    return [onnx.load(whole_artifact / "decoder" / f"{name}.onnx") for name in ("first", "later")]
