"""DCM-Wan2.1 as data: its geometry, the canonical name and shape of every tensor.

Canonical names are diffusers' (`WanTransformer3DModel`), plus what DCM adds for its detail expert:
`condition_embedder_lora.*`, `proj_out_lora.*`, and two factors for each attention linear,
`….lora_A.weight` [rank, in] and `….lora_B.weight` [out, rank].
Nothing here is specific to the 1.3B size: every shape follows from a `Geometry`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from exporters.errors import CheckpointError

HEAD_DIM = 128
"""Channels of one attention head in every published Wan model; used when no config tells otherwise."""

ATTENTION_LINEARS = tuple(
    f"{attn}.{proj}" for attn in ("attn1", "attn2") for proj in ("to_q", "to_k", "to_v", "to_out.0")
)
"""The eight linears of a block that the detail expert adapts, in canonical order."""

FFN_LINEARS = ("ffn.net.0.proj", "ffn.net.2")
"""The feed-forward pair of a block: up, then down."""

TEXT_EMBEDDER = "text_embedder"
TIME_EMBEDDER_LINEARS = ("time_embedder.linear_1", "time_embedder.linear_2", "time_proj")

EMBEDDER = {"semantic": "condition_embedder", "detail": "condition_embedder_lora"}
"""Each expert's own time and text embedding block."""

HEAD = {"semantic": "proj_out", "detail": "proj_out_lora"}
"""Each expert's own output head. The head's modulation (`scale_shift_table`) is shared."""


@dataclass(frozen=True)
class Geometry:
    """Sizes of one DCM-Wan2.1-shaped model. Channels unless a unit is named.

    ``rank`` is 0 for a model with the semantic expert only. ``alpha_over_rank`` scales the adapter:
    ``y = W x + b + alpha_over_rank * B (A x)``.
    """

    layers: int
    width: int
    ffn_width: int
    heads: int
    text_width: int
    in_channels: int
    out_channels: int
    patch: tuple[int, int, int]
    freq_dim: int
    cross_attn_norm: bool = True
    text_tokens: int = 512
    eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_max_positions: int = 1024
    rank: int = 0
    alpha_over_rank: float = 0.0

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def patch_volume(self) -> int:
        t, h, w = self.patch
        return t * h * w

    @property
    def experts(self) -> tuple[str, ...]:
        return ("semantic", "detail") if self.rank else ("semantic",)

    @property
    def rope_axis_dims(self) -> tuple[int, int, int]:
        """Channels of a head rotated by frame, row and column position: 44, 42, 42 of 128.

        Source: diffusers `WanRotaryPosEmbed`: h = w = 2 * (head_dim // 6), t the rest.
        """
        hw = 2 * (self.head_dim // 6)
        return (self.head_dim - 2 * hw, hw, hw)

    def linear_shape(self, linear: str) -> tuple[int, int]:
        """``(out, in)`` of a block's linear, as PyTorch stores its weight."""
        if linear == "ffn.net.0.proj":
            return (self.ffn_width, self.width)
        if linear == "ffn.net.2":
            return (self.width, self.ffn_width)
        if linear in ATTENTION_LINEARS:
            return (self.width, self.width)
        raise CheckpointError(f"{linear!r} is not a linear of a Wan block")


def _linear(name: str, out: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (out, inner)
    yield f"{name}.bias", (out,)


def _embedder(prefix: str, g: Geometry) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _linear(f"{prefix}.time_embedder.linear_1", g.width, g.freq_dim)
    yield from _linear(f"{prefix}.time_embedder.linear_2", g.width, g.width)
    yield from _linear(f"{prefix}.time_proj", 6 * g.width, g.width)
    yield from _linear(f"{prefix}.text_embedder.linear_1", g.width, g.text_width)
    yield from _linear(f"{prefix}.text_embedder.linear_2", g.width, g.width)


def norm_gains(g: Geometry, block: str) -> list[str]:
    """Names of a block's norm parameters, ``width`` channels each: qk gains, then the affine cross-attention norm."""
    names = [f"{block}.{attn}.{norm}.weight" for attn in ("attn1", "attn2") for norm in ("norm_q", "norm_k")]
    return names + ([f"{block}.norm2.weight", f"{block}.norm2.bias"] if g.cross_attn_norm else [])


def _block(block: str, g: Geometry) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{block}.scale_shift_table", (1, 6, g.width)
    for name in norm_gains(g, block):
        yield name, (g.width,)
    for linear in (*ATTENTION_LINEARS, *FFN_LINEARS):
        yield from _linear(f"{block}.{linear}", *g.linear_shape(linear))


def base_tensors(g: Geometry) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of the semantic expert's tensors: 825 of them for Wan2.1-T2V-1.3B."""
    out: dict[str, tuple[int, ...]] = {"scale_shift_table": (1, 2, g.width)}
    out["patch_embedding.weight"] = (g.width, g.in_channels, *g.patch)
    out["patch_embedding.bias"] = (g.width,)
    out.update(_embedder(EMBEDDER["semantic"], g))
    for block in range(g.layers):
        out.update(_block(f"blocks.{block}", g))
    out.update(_linear(HEAD["semantic"], g.out_channels * g.patch_volume, g.width))
    return out


def detail_tensors(g: Geometry) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of what the detail expert adds: 480 factors + 12 tensors at 1.3B; {} if rank is 0."""
    out: dict[str, tuple[int, ...]] = {}
    if not g.rank:
        return out
    for block in range(g.layers):
        for linear in ATTENTION_LINEARS:
            n, k = g.linear_shape(linear)
            out[f"blocks.{block}.{linear}.lora_A.weight"] = (g.rank, k)
            out[f"blocks.{block}.{linear}.lora_B.weight"] = (n, g.rank)
    out.update(_embedder(EMBEDDER["detail"], g))
    out.update(_linear(HEAD["detail"], g.out_channels * g.patch_volume, g.width))
    return out


def canonical_tensors(g: Geometry) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every tensor of the model: 1,317 for DCM-Wan2.1."""
    return {**base_tensors(g), **detail_tensors(g)}


DCM_WAN21_1_3B = Geometry(
    layers=30,
    width=1536,
    ffn_width=8960,
    heads=12,
    text_width=4096,
    in_channels=16,
    out_channels=16,
    patch=(1, 2, 2),
    freq_dim=256,
    rank=128,
    alpha_over_rank=2.0,
)
"""DCM-Wan2.1 (Wan2.1-T2V-1.3B with DCM's rank-128 detail expert, alpha 256)."""

TINY = Geometry(
    layers=2,
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
"""A model small enough for tests and demos that still has two experts, 128-channel heads and ragged-free tiles."""

PRESETS = {"dcm-wan2.1-1.3b": DCM_WAN21_1_3B, "tiny": TINY}
