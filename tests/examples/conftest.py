"""The shipped model, loaded once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from examples.moving_shapes.dit import MovingShapesTransformer
from examples.moving_shapes.generate import MODEL, LatentVae, denoise, load_transformer, load_vae, seeded_noise
from examples.moving_shapes.shapes import load_prompts
from tests.quant.models import one_thread

SAMPLE_PROMPTS = (
    "a red circle moving left on dark background",
    "a yellow square moving down on grey background",
    "a blue cross holding still on gradient background",
    "a white triangle moving right on dark background",
)


@dataclass(frozen=True)
class Sampled:
    """Four prompts, and what the model makes of them in fp32."""

    transformer: MovingShapesTransformer
    vae: LatentVae
    text: Tensor
    noise: Tensor
    latents: Tensor


@pytest.fixture(scope="session")
def sampled() -> Sampled:
    transformer = load_transformer(MODEL / "transformer")
    prompts, embeddings = load_prompts(MODEL / "prompts.safetensors")
    text = embeddings[[prompts.index(prompt) for prompt in SAMPLE_PROMPTS]]
    noise = seeded_noise(range(len(SAMPLE_PROMPTS)))
    return Sampled(transformer, load_vae(MODEL / "vae"), text, noise, denoise(transformer, noise, text))


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    """On a busy machine, threads that wait for each other cost more than they save on tensors of this size."""
    with one_thread():
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
