"""Tiny checkpoints and artifacts that many tests read and none changes, and small file systems to fill."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exporters.model import TINY
from exporters.synth import write_checkpoint
from tests import calibrations
from tests.commands import compiled
from tests.exporters.models import GEOMETRY

RAGGED = replace(GEOMETRY, width=140, ffn_width=200, rank=5, text_width=40)
"""No size of a weight is a multiple of 32, so every tensor is padded."""


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preset ``tiny`` as DCM's single file, bf16."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.safetensors"
    return write_checkpoint(path, TINY, layout="dcm", dtype="bf16").path


@pytest.fixture(scope="session")
def tiny_artifact(tiny_checkpoint: Path) -> Path:
    return compiled(tiny_checkpoint, tiny_checkpoint.with_name("tiny.hvdc"))


@pytest.fixture(scope="session")
def ragged_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose every size pads, as DCM's single file, fp32."""
    path = tmp_path_factory.mktemp("ragged") / "ragged.safetensors"
    return write_checkpoint(path, RAGGED, layout="dcm", dtype="f32").path


@pytest.fixture(scope="session")
def ragged_artifact(ragged_checkpoint: Path) -> Path:
    return compiled(ragged_checkpoint, ragged_checkpoint.with_name("ragged.hvdc"))


@pytest.fixture(scope="session")
def slow_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty-four blocks: enough files that a compile can be stopped in the middle."""
    path = tmp_path_factory.mktemp("slow") / "slow.safetensors"
    return write_checkpoint(path, replace(TINY, layers=24, width=128, heads=1), layout="dcm", dtype="bf16").path


@pytest.fixture(scope="session")
def watched_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of `tests.calibrations`, with both experts in one file."""
    return calibrations.write_model(tmp_path_factory.mktemp("watched") / "model")


@pytest.fixture(scope="session")
def embeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three prompts for it."""
    return calibrations.write_embeds(tmp_path_factory.mktemp("embeds") / "embeds.safetensors")


@pytest.fixture(scope="session")
def calibration(watched_checkpoint: Path, embeds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibrated with all prompts, seed 0 and DCM's six steps."""
    return calibrations.calibrated(watched_checkpoint, embeds, tmp_path_factory.mktemp("calibration") / "c.safetensors")


@pytest.fixture
def known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrating does not measure the CPU, which takes longer than the calibrations of tests."""
    monkeypatch.setattr("hvdc.pipeline.cost._cpu_flops", lambda: 1e12)


@pytest.fixture
def calibration_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `compile --prompts` keeps calibrations: a folder that is not there yet."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HVDC_CACHE_DIR", str(folder))
    return folder / "calibrations"


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """``mounted(size_bytes, *options)`` mounts an empty tmpfs; skips where mounting is not permitted."""
    places: list[Path] = []

    def mount(size_bytes: int, *options: str) -> Path:
        place = tmp_path / f"mount-{len(places)}"
        place.mkdir()
        what = ",".join([f"size={size_bytes}", *options])
        if os.geteuid() != 0 or shutil.which("mount") is None:
            pytest.skip("mounting a small file system needs root and the program mount")
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", what, "none", place], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"mounting a small file system is not permitted here: {done.stderr.strip()}")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", place], check=True)
