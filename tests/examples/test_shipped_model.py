"""The files in `examples/moving_shapes/model`: what they are, that they work, and that mistakes show."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open

from examples.moving_shapes.checker import check
from examples.moving_shapes.evaluate import MISTAKES, distances
from examples.moving_shapes.generate import MODEL, WEIGHTS, denoise
from examples.moving_shapes.scenes import PROMPTS
from examples.moving_shapes.shapes import load_prompts, prompt_embeddings
from exporters.checkpoint import open_checkpoint
from exporters.model import Geometry
from exporters.prompts import read_prompts
from tests.examples.conftest import SAMPLE_PROMPTS, Sampled

GEOMETRY = Geometry(
    layers=4,
    width=256,
    ffn_width=768,
    heads=2,
    text_width=64,
    in_channels=16,
    out_channels=16,
    patch=(1, 2, 2),
    freq_dim=256,
    text_tokens=16,
    rank=16,
    alpha_over_rank=2.0,
)

LEAST_DISTANCE = {
    "semantic expert in all steps": 0.2,
    "adapter off": 0.1,
    "adapter scale 1, not 2": 0.04,
    "semantic head in detail steps": 0.03,
    "semantic embedder in detail steps": 0.05,
    "the wrong schedule": 0.05,
}
"""What each mistake moves the latents by at least, far above what rounding does in fp32 (below 1e-4)."""


@pytest.mark.parametrize("path", [MODEL / "transformer", MODEL / "transformer" / WEIGHTS])
def test_the_product_opens_the_transformer_without_options(path) -> None:
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.geometry == GEOMETRY
        assert checkpoint.report.layout == "dcm"
        assert checkpoint.report.ignored == ()
        assert checkpoint.report.stored_dtypes == {"F16": len(checkpoint.tensors)}


def test_the_vae_is_diffusers_own() -> None:
    from diffusers import AutoencoderKLWan

    vae = AutoencoderKLWan.from_pretrained(MODEL / "vae", low_cpu_mem_usage=False)
    with safe_open(MODEL / "vae" / WEIGHTS, "pt") as file:
        assert set(file.keys()) == set(vae.state_dict())
    assert len(vae.config.latents_mean) == len(vae.config.latents_std) == 16
    assert min(vae.config.latents_std) > 0


def test_prompts_are_the_360_of_training() -> None:
    prompts, embeddings = load_prompts(MODEL / "prompts.safetensors")
    assert prompts == list(PROMPTS)
    assert torch.equal(embeddings, prompt_embeddings())
    read = read_prompts(MODEL / "prompts.safetensors", text_tokens=GEOMETRY.text_tokens, text_width=GEOMETRY.text_width)
    with read:
        assert read.texts == PROMPTS


def test_sizes_stay_small() -> None:
    sizes = {path.relative_to(MODEL).as_posix(): path.stat().st_size for path in MODEL.rglob("*.safetensors")}
    assert sizes.keys() == {f"transformer/{WEIGHTS}", f"vae/{WEIGHTS}", "prompts.safetensors"}
    assert sum(sizes.values()) < 18e6


def test_generated_clips_show_what_is_asked_for(sampled: Sampled) -> None:
    with torch.no_grad():
        clips = torch.cat([sampled.vae.decode(z[None]) for z in sampled.latents]).numpy()
    for clip, prompt in zip(clips, SAMPLE_PROMPTS, strict=True):
        result = check(clip, prompt)
        assert result["all"] == 1.0, (prompt, result)
        assert result["iou"] > 0.75, (prompt, result)


def test_another_prompt_gives_another_clip(sampled: Sampled) -> None:
    other = denoise(sampled.transformer, sampled.noise[:1], sampled.text[1:2])
    assert distances(other, sampled.latents[:1])[0] > 0.5


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_moves_the_latents(mistake: str, sampled: Sampled) -> None:
    latents = denoise(sampled.transformer, sampled.noise[:2], sampled.text[:2], **MISTAKES[mistake])
    assert distances(latents, sampled.latents[:2])[0] > LEAST_DISTANCE[mistake]


def test_another_batch_size_does_not(sampled: Sampled) -> None:
    alone = denoise(sampled.transformer, sampled.noise[:1], sampled.text[:1])
    assert distances(alone, sampled.latents[:1])[0] < 1e-4
