"""What the CPU does around the blocks: tokens from a latent, text projection, head, Euler step.

Values are FP32; sums are FP64 and rounded once, so that a runtime gives the same bits whatever order it adds in.

A latent ``[channels, frames, rows, columns]`` is kept as tokens ``[M, patch_volume · channels]`` from the first step to
the last ("the running latent"): M in order frame, row, column, and within a token the order of the head's output, patch
first, channel last. The patch embedding reads the same order (its weight is stored channel first).
Source: Wan2.1 wan/modules/model.py `unpatchify`; diffusers `WanTransformer3DModel`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from quant.gemms import SEMANTIC
from quant.paths.weights import Weights
from quant.source import Shape

Grid = tuple[int, int, int]
"""Token positions: (frames, rows, columns)."""


class GridError(ValueError):
    """A latent that the model cannot cut into tokens."""


def token_grid(latent: tuple[int, ...], shape: Shape) -> Grid:
    """Token positions of a latent ``(frames, rows, columns)``. Raises GridError."""
    for size, patch, axis in zip(latent, shape.patch, ("frames", "rows", "columns"), strict=True):
        if size < 1 or size % patch:
            raise GridError(f"a latent of {size} {axis} does not divide into patches of {patch}")
        if size // patch > shape.rope_max_positions:
            raise GridError(f"{size // patch} positions in {axis} are more than the model's {shape.rope_max_positions}")
    t, h, w = (size // patch for size, patch in zip(latent, shape.patch, strict=True))
    return t, h, w


def to_tokens(latent: Tensor, shape: Shape) -> Tensor:
    """``[C, T, H, W]`` to ``[M, patch_volume · C]``."""
    t, h, w = token_grid(tuple(latent.shape[1:]), shape)
    pt, ph, pw = shape.patch
    x = latent.reshape(-1, t, pt, h, ph, w, pw)
    return x.permute(1, 3, 5, 2, 4, 6, 0).reshape(t * h * w, -1)


def to_latent(tokens: Tensor, grid: Grid, shape: Shape) -> Tensor:
    """``[M, patch_volume · C]`` to ``[C, T, H, W]``: the inverse of `to_tokens`."""
    (t, h, w), (pt, ph, pw) = grid, shape.patch
    x = tokens.reshape(t, h, w, pt, ph, pw, -1)
    return x.permute(6, 0, 3, 1, 4, 2, 5).reshape(-1, t * pt, h * ph, w * pw)


def initial_noise(seed: int, channels: int, latent: Grid) -> Tensor:
    """FP32 ``[C, T, H, W]`` from torch's CPU generator: the same on every machine, and what DCM's pipeline draws."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn((channels, *latent), generator=generator, dtype=torch.float32)


def embed_tokens(weights: Weights, tokens: Tensor) -> Tensor:
    """Patch embedding: the running latent to the first hidden state ``[M, width]`` FP32."""
    weight = weights.values("patch_embedding.weight")  # [width, C, pt, ph, pw]
    matrix = weight.permute(0, 2, 3, 4, 1).reshape(weight.shape[0], -1)
    return exact_linear(tokens, matrix, weights.values("patch_embedding.bias"))


def project_text(weights: Weights, expert: str, embeds: Tensor) -> Tensor:
    """An expert's own text projection: ``[text_tokens, text_width]`` to ``[text_tokens, width]`` FP32."""
    prefix = "condition_embedder" if expert == SEMANTIC else "condition_embedder_lora"

    def linear(name: str, x: Tensor) -> Tensor:
        full = f"{prefix}.text_embedder.{name}"
        return exact_linear(x, weights.values(f"{full}.weight"), weights.values(f"{full}.bias"))

    return linear("linear_2", F.gelu(linear("linear_1", embeds.float()).double(), approximate="tanh").float())


def velocity(weights: Weights, step: int, expert: str, hidden: Tensor) -> Tensor:
    """An expert's own head: hidden ``[M, width]`` to the velocity of the running latent, FP32."""
    shift, scale = weights.head_table[step]
    x = layer_norm(hidden.float(), weights.shape.eps) * (1.0 + scale) + shift
    name = "proj_out" if expert == SEMANTIC else "proj_out_lora"
    return exact_linear(x, weights.values(f"{name}.weight"), weights.values(f"{name}.bias"))


def exact_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x Wᵀ + b`` of FP32 tensors, summed in FP64 and rounded once."""
    return F.linear(x.double(), weight.double(), bias.double()).float()


def layer_norm(
    x: Tensor, eps: float, gain: Tensor | None = None, bias: Tensor | None = None, *, exact: bool = True
) -> Tensor:
    """Layer norm over the last axis of FP32 ``x``.

    ``exact``: mean and deviation are those of exact sums, each rounded to FP32 once, so that no code of an engine
    depends on the order in which it adds. Else they are torch's own, which cost a third on a GPU.
    """
    if not exact:
        return F.layer_norm(x, x.shape[-1:], gain, bias, eps)
    mean = x.mean(dim=-1, keepdim=True, dtype=torch.float64)
    variance = (_mean_square(x) - mean.square()).clamp_min(0.0)
    normed = (x - mean.float()).mul_((1.0 / torch.sqrt(variance + eps)).float())
    return normed if gain is None or bias is None else normed.mul_(gain).add_(bias)


def rms_norm(x: Tensor, gain: Tensor, eps: float, *, exact: bool = True) -> Tensor:
    """Root-mean-square norm over the last axis (all channels, before they are split into heads); as `layer_norm`."""
    if not exact:
        return F.rms_norm(x, x.shape[-1:], gain, eps)
    return (x * (1.0 / torch.sqrt(_mean_square(x) + eps)).float()).mul_(gain)


def _mean_square(x: Tensor) -> Tensor:
    """FP64 ``[…, 1]``, without a copy of FP32 ``x`` in FP64."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float64)
    return norm.square().div_(x.shape[-1])


def rope_rotations(weights: Weights, grid: Grid) -> Tensor:
    """complex64 ``[M, head_dim / 2]``: exp(i · position · frequency) per adjacent channel pair, from float64 angles."""
    angles = [
        torch.arange(size, dtype=torch.float64)[:, None] * torch.tensor(frequencies)[None, :]
        for size, frequencies in zip(grid, weights.rope_frequencies, strict=True)
    ]
    (t, h, w), (at, ah, aw) = grid, angles
    whole = torch.cat(
        [
            at[:, None, None, :].expand(t, h, w, -1),
            ah[None, :, None, :].expand(t, h, w, -1),
            aw[None, None, :, :].expand(t, h, w, -1),
        ],
        dim=-1,
    ).reshape(math.prod(grid), -1)
    return torch.polar(torch.ones_like(whole), whole).to(torch.complex64).to(weights.device)


def rotate(x: Tensor, rotations: Tensor, heads: int) -> Tensor:
    """RoPE of FP32 ``[M, width]``: each adjacent channel pair of each head turned as a complex number."""
    pairs = torch.view_as_complex(x.reshape(x.shape[0], heads, -1, 2))
    return torch.view_as_real(pairs * rotations[:, None, :]).reshape(x.shape)
