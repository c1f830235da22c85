"""The fp32 path is diffusers' model: velocity of both experts, trajectory, token order, noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from exporters.model import TINY, Geometry
from quant.paths import trajectory as paths
from quant.paths.host import (
    GridError,
    embed_tokens,
    initial_noise,
    project_text,
    rope_rotations,
    rotate,
    to_latent,
    to_tokens,
    token_grid,
    velocity,
)
from quant.paths.trajectory import State, Trajectory, fp32
from quant.paths.weights import Weights
from tests.exporters.models import Values
from tests.quant.models import (
    LATENT,
    ONE_EXPERT,
    difference,
    drawn,
    generated,
    prompt,
    published,
    schedule_for,
    tensors_of,
    weights_of,
)

BOUND = 1e-4
"""‖Δ‖ / ‖ref‖. Two FP32 orders of summation, through two blocks; found: below 1e-6."""

GRIDS = [(1, 2, 2), (2, 6, 8), (2, 14, 8), (1, 6, 10), (3, 6, 12), (5, 4, 2)]
"""Latents of 1, 24, 56 (24 modulo 32), 15, 54 and 10 tokens."""


@torch.no_grad()
def one_velocity(weights: Weights, step: int, embeds: Tensor, latent: Tensor) -> Tensor:
    """The model's output of one step, before it moves the latent."""
    run = Trajectory(fp32(weights), embeds, tuple(latent.shape[1:]))  # type: ignore[arg-type]
    layers, seen = weights.shape.layers, []
    run.run(State(step * layers, to_tokens(latent, weights.shape)), layers, seen=lambda _, hidden: seen.append(hidden))
    tokens = velocity(weights, step, weights.steps[step].expert, seen[-1])
    return to_latent(tokens, token_grid(tuple(latent.shape[1:]), weights.shape), weights.shape)


@torch.no_grad()
def reference(tensors: Values, geometry: Geometry, step: int, embeds: Tensor, latent: Tensor) -> Tensor:
    at = schedule_for(geometry)[step]
    model = published(tensors, geometry, at.expert)
    output: Tensor = model(latent[None], torch.tensor([at.timestep]), embeds[None], return_dict=False)[0]
    return output[0]


@pytest.mark.parametrize("latent", GRIDS)
@pytest.mark.parametrize("step", [0, 2, 3, 5])
def test_velocity_of_both_experts(
    step: int, latent: tuple[int, int, int], tensors: Values, weights: Weights, embeds: Tensor
) -> None:
    x = drawn(step, latent)
    expected = reference(tensors, TINY, step, embeds, x)
    assert difference(one_velocity(weights, step, embeds, x), expected) < BOUND


def test_the_bound_tells_the_experts_and_the_adapter_apart(tensors: Values, weights: Weights, embeds: Tensor) -> None:
    x = drawn()
    detail = one_velocity(weights, 3, embeds, x)
    assert difference(one_velocity(weights, 2, embeds, x), detail) > 100 * BOUND
    silent = {n: v * 0 if ".lora_B." in n else v for n, v in tensors.items()}
    assert difference(one_velocity(weights_of(silent), 3, embeds, x), detail) > 100 * BOUND
    halved = {n: v / 2 if ".lora_B." in n else v for n, v in tensors.items()}  # as with alpha / rank = 1
    assert difference(one_velocity(weights_of(halved), 3, embeds, x), detail) > 100 * BOUND


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize(
    "geometry",
    [ONE_EXPERT, replace(TINY, cross_attn_norm=False), replace(TINY, layers=1, rank=5), replace(TINY, eps=1e-2)],
    ids=["one expert", "no cross_attn_norm", "one block, rank 5", "another eps"],
)
def test_velocity_of_other_models(geometry: Geometry, step: int) -> None:
    tensors = tensors_of(geometry, seed=3)
    weights, embeds, x = weights_of(tensors, geometry), prompt(4, geometry), drawn(5)
    assert difference(one_velocity(weights, step, embeds, x), reference(tensors, geometry, step, embeds, x)) < BOUND


def test_one_expert_takes_all_steps(embeds: Tensor) -> None:
    assert {step.expert for step in weights_of(tensors_of(ONE_EXPERT), ONE_EXPERT).steps} == {"semantic"}


@pytest.mark.parametrize("geometry", [TINY, ONE_EXPERT], ids=["two experts", "one expert"])
@torch.no_grad()
def test_a_trajectory_is_eulers_method_on_the_flow(geometry: Geometry, embeds: Tensor) -> None:
    """x += v · (σ_next − σ), σ = t / 1000, 0 at the end; the detail expert from t = 949 on."""
    tensors = tensors_of(geometry)
    x = drawn()
    start = x.clone()
    models = {expert: published(tensors, geometry, expert) for expert in geometry.experts}
    times = [1000.0, 992.0, 982.0, 949.0, 905.0, 810.0]
    sigmas = [np.float32(t) / np.float32(1000) for t in times] + [np.float32(0)]
    for i, t in enumerate(times):
        model = models["detail" if t <= 978 and "detail" in models else "semantic"]
        v = model(x[None], torch.tensor([t]), embeds[None], return_dict=False)[0][0]
        x = x + v * float(sigmas[i + 1] - sigmas[i])
    found = generated(fp32(weights_of(tensors, geometry)), embeds, start)
    assert found.shape == start.shape
    assert found.dtype == torch.float32
    assert difference(found, x) < BOUND
    assert difference(start, x) > 0.1, "the trajectory moves"


class Emits(nn.Module):
    """A head that puts out given tokens."""

    def __init__(self, tokens: Tensor) -> None:
        super().__init__()
        self.tokens = tokens

    def forward(self, x: Tensor) -> Tensor:
        return self.tokens.expand(x.shape[0], -1, -1)


@pytest.mark.parametrize("latent", GRIDS)
@torch.no_grad()
def test_tokens_become_a_latent_as_diffusers_unpatchifies(latent: tuple[int, int, int], tensors: Values) -> None:
    t, h, w = grid = token_grid(latent, TINY)
    assert grid == (latent[0], latent[1] // 2, latent[2] // 2)
    tokens = torch.arange(t * h * w * 64, dtype=torch.float32).reshape(1, t * h * w, 64)
    model = published(tensors, TINY, "semantic")
    model.proj_out = Emits(tokens)
    x = torch.zeros(1, 16, *latent)
    expected = model(x, torch.tensor([1000.0]), torch.zeros(1, 16, TINY.text_width), return_dict=False)[0][0]
    found = to_latent(tokens[0], grid, TINY)
    assert torch.equal(found, expected)
    assert torch.equal(to_tokens(found, TINY), tokens[0])


def test_a_token_is_frame_row_column_and_inside_it_the_channel_is_last() -> None:
    t, h, w = 2, 3, 4
    x = torch.randn(16, t, 2 * h, 2 * w)
    tokens = to_tokens(x, TINY)
    for m in range(t * h * w):
        frame, row, col = m // (h * w), m // w % h, m % w
        for i in range(64):
            down, right, channel = i // 32, i // 16 % 2, i % 16
            assert tokens[m, i] == x[channel, frame, 2 * row + down, 2 * col + right]


def test_other_patches_are_undone_too() -> None:
    shape = replace(TINY, patch=(2, 3, 4))
    x = torch.randn(16, 4, 9, 8)
    tokens = to_tokens(x, shape)
    assert tokens.shape == (2 * 3 * 2, 24 * 16)
    assert torch.equal(to_latent(tokens, token_grid((4, 9, 8), shape), shape), x)


@torch.no_grad()
def test_the_patch_embedding_reads_the_same_token_order(tensors: Values, weights: Weights) -> None:
    x = drawn()
    expected = published(tensors, TINY, "semantic").patch_embedding(x[None]).flatten(2).transpose(1, 2)[0]
    assert difference(embed_tokens(weights, to_tokens(x, TINY)), expected) < 1e-6


@torch.no_grad()
def test_each_expert_projects_the_text_itself(tensors: Values, weights: Weights, embeds: Tensor) -> None:
    found = {}
    for expert in ("semantic", "detail"):
        embedder = published(tensors, TINY, expert).condition_embedder.text_embedder
        found[expert] = project_text(weights, expert, embeds)
        assert difference(found[expert], embedder(embeds)) < 1e-6
    assert difference(found["semantic"], found["detail"]) > 0.1


def test_zero_rows_of_the_text_count(weights: Weights, noise: Tensor, embeds: Tensor) -> None:
    """Wan masks no text token: a prompt's padding is projected and attended like all else."""
    padded = embeds.clone()
    padded[5:] = 0
    whole = generated(fp32(weights), padded, noise)
    assert difference(generated(fp32(weights), padded[:6], noise), whole) > 1e-3


@pytest.mark.parametrize(
    ("latent", "axis"),
    [((2, 5, 8), "rows"), ((2, 6, 7), "columns"), ((0, 6, 8), "frames"), ((2, 6, 2050), "columns")],
)
def test_a_latent_that_is_no_whole_number_of_tokens_is_refused(latent: tuple[int, int, int], axis: str) -> None:
    with pytest.raises(GridError, match=axis):
        token_grid(latent, TINY)


def test_rope_turns_adjacent_pairs_by_frame_then_row_then_column(weights: Weights) -> None:
    """44, 42, 42 channels of a head; pair j of an axis turns by position · 10000^(−2j / channels)."""
    grid = t, h, w = (3, 5, 40)
    m = t * h * w
    x = torch.randn(m, 256, generator=torch.Generator().manual_seed(0))
    frame, row, col = (p.reshape(-1) for p in np.meshgrid(range(t), range(h), range(w), indexing="ij"))
    angles = np.concatenate(
        [p[:, None] * 10000.0 ** (-2 * np.arange(n // 2) / n) for p, n in ((frame, 44), (row, 42), (col, 42))], axis=1
    )
    pairs = x.numpy().astype(np.float64).reshape(m, 2, 64, 2)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    even, odd = pairs[..., 0], pairs[..., 1]
    expected = np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(m, 256)
    found = rotate(x, rope_rotations(weights, grid), 2)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=2e-6 * float(x.abs().max()))


def test_noise_is_what_torchs_cpu_generator_draws() -> None:
    """As DCM's pipeline draws it, with an axis for the batch; the seed is the released script's."""
    expected = torch.randn((1, 16, 3, 8, 6), generator=torch.Generator("cpu").manual_seed(40), dtype=torch.float32)
    found = initial_noise(40, 16, (3, 8, 6))
    assert torch.equal(found, expected[0])
    torch.manual_seed(40)
    assert torch.equal(found, torch.randn(16, 3, 8, 6))
    assert torch.equal(found, initial_noise(40, 16, (3, 8, 6)))
    assert not torch.equal(found, initial_noise(41, 16, (3, 8, 6)))


def test_noise_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    initial_noise(7, 16, LATENT)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_every_path_has_its_name(weights: Weights) -> None:
    assert fp32(weights).name == "fp32"
    assert paths.npu(weights).name == "npu"
