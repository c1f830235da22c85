"""What several tests of commands share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hvdc.pipeline import decoder_build
from hvdc.pipeline.decoder_encodings import Quantised
from hvdc.pipeline.decoder_measured import Measured
from hvdc.pipeline.latents_file import latents_sha256
from quant.decoder.ranges import Ranges
from quant.decoder.sensitivity import Sensitivity


@pytest.fixture
def runtime_cache(runtimes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's cache is the one that all tests build the runtime into."""
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder that is not there yet."""
    return tmp_path / "out"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An artifact that is not there yet."""
    return tmp_path / "a.hvdc"


@pytest.fixture
def known_encodings(tiled_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Measuring is left out: whatever the latents, the encodings are those of the artifact. The latents given."""
    held = Quantised.from_json((tiled_artifact / "decoder" / "encodings.json").read_text())
    seen: list[np.ndarray] = []

    def measure(decoder, latents, progress):
        seen.append(latents)
        return Measured(Ranges({}, 0), Sensitivity({}, {}, (), 0))

    def choose(decoder, latents, measured, budget, say):
        return replace(held, latents_sha256=latents_sha256(latents), clips=len(latents))

    monkeypatch.setattr(decoder_build, "measure_decoder", measure)
    monkeypatch.setattr(decoder_build, "choose", choose)
    return seen


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the transformer nor the decoder."""

    def never(*arguments: object, **more: object) -> None:
        raise AssertionError("something was computed")

    monkeypatch.setattr("hvdc.pipeline.activations.calibrate_open", never)
    monkeypatch.setattr(decoder_build, "measure_decoder", never)
    monkeypatch.setattr(decoder_build, "_built", never)
