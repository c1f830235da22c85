"""hvdc's own paths on the shipped model: FP32 is the reference's to rounding, and the engines are near it."""

from __future__ import annotations

import pytest
import torch

from examples.moving_shapes.evaluate import MISTAKES
from examples.moving_shapes.generate import MODEL, denoise
from exporters.checkpoint import open_checkpoint
from exporters.schedule import make_schedule
from hvdc.pipeline.sources import CheckpointSource
from quant.paths.trajectory import Trajectory, fp32, npu
from quant.paths.weights import Weights
from tests.examples.conftest import SAMPLE_PROMPTS, Sampled

SAME = 1e-5
"""‖z − z_ref‖ / ‖z_ref‖ of two FP32 implementations; a mistake moves them thousands of times as far."""


def distance(found: torch.Tensor, due: torch.Tensor) -> float:
    return float((found - due).norm() / due.norm())


@pytest.fixture(scope="module")
def weights() -> Weights:
    with open_checkpoint(MODEL / "transformer") as checkpoint:
        held = Weights(CheckpointSource(checkpoint, make_schedule()))
        for name in checkpoint.tensors:
            held.values(name)
        held.source.tables  # noqa: B018 - read while the file is open
        return held


@pytest.mark.parametrize("clip", range(len(SAMPLE_PROMPTS)))
def test_fp32_is_the_models_own_result(weights: Weights, sampled: Sampled, clip: int) -> None:
    path = Trajectory(fp32(weights), sampled.text[clip].float(), (5, 16, 16))
    assert distance(path.generate(sampled.noise[clip]), sampled.latents[clip]) < SAME


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_of_a_runtime_would_be_seen(weights: Weights, sampled: Sampled, mistake: str) -> None:
    wrong = denoise(sampled.transformer, sampled.noise[:1], sampled.text[:1], **MISTAKES[mistake])
    path = Trajectory(fp32(weights), sampled.text[0].float(), (5, 16, 16))
    assert distance(wrong[0], path.generate(sampled.noise[0])) > 1000 * SAME


def test_the_npus_arithmetic_makes_nearly_the_same_clip(sampled: Sampled) -> None:
    with open_checkpoint(MODEL / "transformer") as checkpoint:
        path = npu(Weights(CheckpointSource(checkpoint, make_schedule())))
        found = Trajectory(path, sampled.text[0].float(), (5, 16, 16)).generate(sampled.noise[0])
    assert distance(found, sampled.latents[0]) < 0.1
