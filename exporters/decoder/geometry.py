"""The structure of Wan 2.1's VAE decoder as data: its steps in order, their weights, and their feature caches.

Everything that depends on the structure walks `stages`: the expected tensors, the caches, and the graphs.
Source: ``WanDecoder3d`` of diffusers (models/autoencoders/autoencoder_kl_wan.py) and Wan2.1's wan/modules/vae.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

CACHE, NEXT_CACHE = "cache.", "next_cache."
"""What the names of caches begin with, where a graph reads and where it writes them."""

CACHE_FRAMES = 2
"""Frames that a causal convolution of three taps remembers: ``CACHE_T`` in both sources."""

FRAME_CHANNELS = 3
"""Red, green and blue."""

Shape = tuple[int, ...]
Kind = Literal["affine", "conv_in", "resnet", "attention", "upsample", "head"]


@dataclass(frozen=True)
class DecoderGeometry:
    """The sizes that determine a decoder.

    ``dim_mult`` are the channels of the up blocks in units of ``base_dim``, last block first, as the configuration of
    diffusers and Wan has them. ``temporal_upsample`` says of each up block but the last, first block first, if it
    doubles the frames. An up block has ``num_res_blocks + 1`` residual blocks. The middle block always has one
    attention between two residual blocks.
    """

    base_dim: int = 96
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    temporal_upsample: tuple[bool, ...] = (True, True, False)

    def __post_init__(self) -> None:
        """Raises ValueError for sizes that make no decoder."""
        counts = {"base_dim": self.base_dim, "z_dim": self.z_dim, "num_res_blocks": self.num_res_blocks}
        bad = [f"{name} = {value}" for name, value in counts.items() if value < 1]
        if bad:
            raise ValueError(f"{bad[0]} is not positive")
        if not self.dim_mult or min(self.dim_mult) < 1:
            raise ValueError(f"dim_mult = {list(self.dim_mult)} is not one positive multiple for each up block")
        if len(self.temporal_upsample) != len(self.dim_mult) - 1:
            raise ValueError(
                f"{len(self.temporal_upsample)} temporal upsampling flags for {len(self.dim_mult)} up blocks, "
                f"of which all but the last have one"
            )
        odd = [width for width in self.widths[:-1] if width % 2]
        if odd:
            raise ValueError(f"an up block has {odd[0]} channels, which its upsampling cannot halve")

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of the up blocks, first block first."""
        return tuple(self.base_dim * multiple for multiple in reversed(self.dim_mult))

    @property
    def spatial_scale(self) -> int:
        """Frame pixels per latent pixel, in height and in width: 8 for Wan 2.1."""
        return 1 << (len(self.dim_mult) - 1)

    @property
    def temporal_scale(self) -> int:
        """Frames per latent frame after the first: 4 for Wan 2.1."""
        return 1 << sum(self.temporal_upsample)

    def frames(self, latent_frames: int) -> int:
        """Frames of a clip of ``latent_frames``: the first latent frame becomes one, each later one
        `temporal_scale`."""
        return 1 + self.temporal_scale * (latent_frames - 1) if latent_frames else 0


@dataclass(frozen=True)
class Step:
    """One step of the decoder: ``width`` channels go in, ``out`` come out.

    ``name`` is its module in diffusers, without ``decoder.``. ``in_time``: an upsampling that doubles the frames too.
    """

    kind: Kind
    name: str
    width: int
    out: int
    in_time: bool = False


@dataclass(frozen=True)
class Stage:
    """A run of steps at one resolution, which only its last step may raise.

    ``scale`` is the resolution that it works at, in units of the latent's. ``frames`` is how many frames it works on
    in a `later` graph (always one in a `first` graph).
    """

    name: str
    scale: int
    frames: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Cache:
    """The last two input frames of one causal convolution, float32 ``shape`` = [1, C, 2, h, w].

    ``name`` is the convolution's module without ``decoder.``.
    """

    name: str
    shape: Shape

    @property
    def input_name(self) -> str:
        """The name of the cache where a graph reads it."""
        return f"{CACHE}{self.name}"

    @property
    def output_name(self) -> str:
        """The name of the cache where a graph writes it; a graph's values have one name each."""
        return f"{NEXT_CACHE}{self.name}"

    @property
    def values(self) -> int:
        return math.prod(self.shape)


def stages(geometry: DecoderGeometry) -> tuple[Stage, ...]:
    """``mid``, ``up0``, ``up1``, …: the whole decoder in order, with the post-quant convolution in front."""
    widths = geometry.widths
    top, last = widths[0], len(widths) - 1
    mid = (
        Step("affine", "post_quant_conv", geometry.z_dim, geometry.z_dim),
        Step("conv_in", "conv_in", geometry.z_dim, top),
        Step("resnet", "mid_block.resnets.0", top, top),
        Step("attention", "mid_block.attentions.0", top, top),
        Step("resnet", "mid_block.resnets.1", top, top),
    )
    out = [Stage("mid", 1, 1, mid)]
    width, scale, frames = top, 1, 1
    for i, block_width in enumerate(widths):
        steps = []
        for j in range(geometry.num_res_blocks + 1):
            steps.append(Step("resnet", f"up_blocks.{i}.resnets.{j}", width, block_width))
            width = block_width
        if i == last:
            steps.append(Step("head", "conv_out", width, FRAME_CHANNELS))
            out.append(Stage(f"up{i}", scale, frames, tuple(steps)))
            break
        in_time = geometry.temporal_upsample[i]
        steps.append(Step("upsample", f"up_blocks.{i}.upsamplers.0", width, width // 2, in_time))
        out.append(Stage(f"up{i}", scale, frames, tuple(steps)))
        width, scale, frames = width // 2, 2 * scale, 2 * frames if in_time else frames
    return tuple(out)


def tensor_shapes(geometry: DecoderGeometry) -> dict[str, Shape]:
    """The decoder's tensors under diffusers' names, in the order of the computation, with their shapes."""
    shapes: dict[str, Shape] = {}
    for stage in stages(geometry):
        for step in stage.steps:
            shapes |= _tensors_of(step)
    return shapes


def _tensors_of(step: Step) -> dict[str, Shape]:
    name, width, out = f"decoder.{step.name}", step.width, step.out
    if step.kind == "affine":
        return _conv(step.name, out, width, 1, 1, 1)
    if step.kind == "conv_in":
        return _conv(name, out, width, 3, 3, 3)
    if step.kind == "head":
        return {"decoder.norm_out.gamma": (width, 1, 1, 1)} | _conv(name, out, width, 3, 3, 3)
    if step.kind == "attention":
        return (
            {f"{name}.norm.gamma": (width, 1, 1)}
            | _conv(f"{name}.to_qkv", 3 * width, width, 1, 1)
            | _conv(f"{name}.proj", width, width, 1, 1)
        )
    if step.kind == "upsample":
        in_time = _conv(f"{name}.time_conv", 2 * width, width, 3, 1, 1) if step.in_time else {}
        return in_time | _conv(f"{name}.resample.1", out, width, 3, 3)
    shortcut = _conv(f"{name}.conv_shortcut", out, width, 1, 1, 1) if width != out else {}
    return (
        {f"{name}.norm1.gamma": (width, 1, 1, 1)}
        | _conv(f"{name}.conv1", out, width, 3, 3, 3)
        | {f"{name}.norm2.gamma": (out, 1, 1, 1)}
        | _conv(f"{name}.conv2", out, out, 3, 3, 3)
        | shortcut
    )


def _conv(name: str, out: int, width: int, *kernel: int) -> dict[str, Shape]:
    return {f"{name}.weight": (out, width, *kernel), f"{name}.bias": (out,)}


def caches(geometry: DecoderGeometry, rows: int, columns: int) -> tuple[Cache, ...]:
    """The feature caches of a tile of ``rows`` × ``columns`` latent pixels, in the order of the computation.

    One for every convolution over three frames; the 1×1×1 ones need none. The order is that of diffusers'
    ``feat_map``, which also counts a slot for each shortcut that is never filled.
    """
    return tuple(cache for stage in stages(geometry) for cache in caches_of(stage, rows, columns))


def caches_of(stage: Stage, rows: int, columns: int) -> tuple[Cache, ...]:
    """The caches of one stage."""
    place = (CACHE_FRAMES, stage.scale * rows, stage.scale * columns)
    found: list[tuple[str, int]] = []
    for step in stage.steps:
        if step.kind in ("conv_in", "head"):
            found.append((step.name, step.width))
        elif step.kind == "resnet":
            found += [(f"{step.name}.conv1", step.width), (f"{step.name}.conv2", step.out)]
        elif step.kind == "upsample" and step.in_time:
            found.append((f"{step.name}.time_conv", step.width))
    return tuple(Cache(name, (1, channels, *place)) for name, channels in found)
