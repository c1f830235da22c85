"""What `hvdc inspect`, `hvdc validate` and `hvdc diff` say of activation scales."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.commands import hvdc
from tests.fixtures.make import FOLDER, compile_fixture, fixture_scales

CALIBRATED = FOLDER / "1.1" / "tiny.hvdc"
LINE = (
    "activations  percentile 99.5 scales of 3 GEMM inputs, from 3 prompts × 2 seeds at 5 × 32×32, not the artifact's "
    "size, in bf16; smoothed with strength 0.5 at attn1.input"
)


@pytest.mark.parametrize("verb", ["inspect", "validate"])
def test_a_calibrated_artifact_says_from_what(verb: str) -> None:
    assert LINE in hvdc(verb, CALIBRATED).out
    facts = hvdc(verb, CALIBRATED, "--json").json()["activations"]
    assert facts == {"calibrated": True, "text": LINE.removeprefix("activations  ")}


@pytest.mark.parametrize("verb", ["inspect", "validate"])
def test_an_uncalibrated_artifact_says_what_it_cannot_run_on(verb: str, tiny_artifact: Path) -> None:
    text = hvdc(verb, tiny_artifact).out
    assert "activations  uncalibrated: runs on the NPU (FP16 activations) but not on the GPU" in text
    assert "compile with --prompts or --calibration" in text
    assert hvdc(verb, tiny_artifact, "--json").json()["activations"]["calibrated"] is False


def test_scales_are_shown_by_input_and_step() -> None:
    text = hvdc("inspect", CALIBRATED, "--scales").out
    assert "attn1.input" in text
    assert "0.0156 … 0.0625" in text
    rows = hvdc("inspect", CALIBRATED, "--scales", "--json").json()
    assert [row["name"] for row in rows] == ["attn1.input", "attn2.text", "attn1.to_q.lora_hidden"]
    assert rows[0]["min_max"][0] == [1 / 64, 4 / 64]
    assert rows[2]["min_max"] == [None, None, None, *([v / 64, (v + 3) / 64] for v in (21, 27, 33))]


def test_no_scales_to_show(tiny_artifact: Path) -> None:
    done = hvdc("inspect", tiny_artifact, "--scales")
    assert done.status == 2
    assert "no activation scales" in done.err
    assert "compile with --prompts or --calibration" in done.err
    assert hvdc("inspect", CALIBRATED, "--scales", "--memory").status == 2


def test_validate_names_what_it_cannot_compare(tmp_path: Path) -> None:
    source, artifact = FOLDER / "1.1" / "source.safetensors", tmp_path / "unsmoothed.hvdc"
    compile_fixture(source, artifact, activations=replace(fixture_scales(), smoothing_strength=None, smoothing={}))
    done = hvdc("validate", "--deep", "--against", source, artifact, "-q")
    assert done.status == 0
    assert "not compared: calibration.activation_scales; calibration measured" in done.out
    facts = hvdc("validate", "--against", source, artifact, "--json").json()
    assert facts["tensors_measured"] == ["calibration.activation_scales"]
