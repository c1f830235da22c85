"""Calibrating into a folder of a test's own."""

from __future__ import annotations

from pathlib import Path

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
