"""The tensors of a test artifact, with made-up values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvdc.artifact import manifest as m
from hvdc.artifact.calibration import Calibration, Clip, GemmInput, Smoothing
from hvdc.artifact.decoder import Backend
from layouts.grid import TileGrid, pack
from layouts.order import HMX_INT8_K4
from layouts.regions import align_up

ATTENTION = tuple(f"{attn}.{part}" for attn in ("attn1", "attn2") for part in ("to_q", "to_k", "to_v", "to_out.0"))
FFN = ("ffn.net.0.proj", "ffn.net.2")
KINDS = (
    "attention_base", "ffn_base", "base_scale", "adapter", "block_other", "host", "schedule", "calibration", "decoder"
)  # fmt: skip
SITE = "ffn.net.2"
"""Where a calibrated test artifact's weights are smoothed."""


@dataclass(frozen=True)
class Spec:
    """Sizes of a test artifact."""

    layers: int = 2
    width: int = 64
    ffn_width: int = 80
    heads: int = 1
    rank: int = 16
    linears: int = 8
    """How many of a block's attention linears there are."""
    seed: int = 0
    calibrated: bool = False
    decoder: Backend | None = None
    """None: there is no decoder."""


@dataclass(frozen=True)
class Blob:
    """A tensor with its stored bytes, before it has a place."""

    name: str
    kind: m.TensorKind
    dtype: m.DTypeName
    shape: tuple[int, ...]
    padded: tuple[int, ...]
    data: bytes
    tiled: bool = False
    linear: str | None = None
    block: int | None = None
    expert: m.Expert | None = None
    scale: str | None = None


def _weight(rng: np.random.Generator, name: str, kind: m.TensorKind, n: int, k: int, **more: Any) -> list[Blob]:
    """A quantised weight and its scale."""
    grid = TileGrid(HMX_INT8_K4, n, k)
    q = rng.integers(-127, 128, (n, k), np.int8)
    scales = np.ones(grid.padded_n, "<f4")  # padding columns have scale 1
    scales[:n] = rng.uniform(1e-3, 2e-2, n)
    weight = Blob(
        name, kind, "int8", (n, k), (grid.padded_n, grid.padded_k), pack(HMX_INT8_K4, q).tobytes(), True,
        scale=f"{name}_scale", **more,
    )  # fmt: skip
    scale_kind: m.TensorKind = "adapter" if kind == "adapter" else "base_scale"
    return [
        weight,
        Blob(f"{name}_scale", scale_kind, "float32", (n,), (grid.padded_n,), scales.tobytes(), **more),
    ]


def _floats(
    rng: np.random.Generator,
    name: str,
    kind: m.TensorKind,
    shape: tuple[int, ...],
    padded: tuple[int, ...] | None = None,
    **more: Any,
) -> Blob:
    """An FP32 tensor; vectors of a block are padded to whole tiles."""
    if padded is None:
        padded = (align_up(shape[0], 32),) if kind in ("attention_base", "block_other") else shape
    data = np.zeros(padded, "<f4")
    data[tuple(slice(s) for s in shape)] = rng.standard_normal(shape)
    return Blob(name, kind, "float32", shape, padded, data.tobytes(), **more)


def block_blobs(rng: np.random.Generator, s: Spec, block: int) -> Iterator[Blob]:
    shapes = dict.fromkeys(ATTENTION[: s.linears], (s.width, s.width))
    shapes |= {FFN[0]: (s.ffn_width, s.width), FFN[1]: (s.width, s.ffn_width)}
    weights, scales, biases = [], [], []
    for linear, (n, k) in shapes.items():
        name = f"blocks.{block}.{linear}"
        kind: m.TensorKind = "ffn_base" if linear in FFN else "attention_base"
        weight, scale = _weight(rng, f"{name}.weight", kind, n, k, linear=linear, block=block)
        bias_kind: m.TensorKind = "block_other" if linear in FFN else "attention_base"
        weights.append(weight)
        scales.append(scale)
        biases.append(_floats(rng, f"{name}.bias", bias_kind, (n,), linear=linear, block=block))
    yield from (*weights, *scales, *biases)
    for norm in ("attn1.norm_q.weight", "norm2.bias"):
        yield _floats(rng, f"blocks.{block}.{norm}", "block_other", (s.width,), block=block)


def adapter_blobs(rng: np.random.Generator, s: Spec, block: int) -> Iterator[Blob]:
    for linear in ATTENTION[: min(s.linears, 2)]:
        for factor, shape in (("lora_A", (s.rank, s.width)), ("lora_B", (s.width, s.rank))):
            name = f"blocks.{block}.{linear}.{factor}.weight"
            yield from _weight(rng, name, "adapter", *shape, linear=linear, block=block, expert="detail")


def host_blobs(rng: np.random.Generator, s: Spec) -> Iterator[Blob]:
    yield _floats(rng, "patch_embedding.weight", "host", (s.width, 4, 1, 2, 2))
    yield _floats(rng, "patch_embedding.bias", "host", (s.width,))
    yield _floats(rng, "proj_out.weight", "host", (16, s.width), expert="semantic")
    yield _floats(rng, "padded_everywhere", "host", (2, 3, 5), padded=(3, 4, 6))


def schedule_blobs(rng: np.random.Generator, s: Spec) -> Iterator[Blob]:
    yield _floats(rng, "schedule.adaln", "schedule", (len(steps_of(s)), s.layers, 6, s.width))
    yield _floats(rng, "schedule.head", "schedule", (len(steps_of(s)), 2, s.width))
    for axis, size in zip(("frame", "row", "col"), rope_of(s), strict=True):
        table = rng.uniform(0, 1, size // 2).astype("<f8")
        name = f"schedule.rope_freqs_{axis}"
        yield Blob(name, "schedule", "float64", (size // 2,), (size // 2,), table.tobytes())


def gemm_inputs(s: Spec) -> tuple[GemmInput, ...]:
    """One of each sort."""
    both: tuple[m.Expert, ...] = ("semantic", "detail") if s.rank else ("semantic",)
    inputs = [
        GemmInput(name="attn1.input", per="step", experts=both),
        GemmInput(name="attn2.text", per="expert", experts=both),
    ]
    if s.rank:
        inputs.append(GemmInput(name="attn1.to_q.lora_hidden", per="step", experts=("detail",)))
    return tuple(inputs)


def scale_table(rng: np.random.Generator, inputs: Sequence[GemmInput], steps: Sequence[m.Expert], layers: int) -> Any:
    """A valid table of activation scales."""
    table = rng.uniform(1e-3, 1e-1, (len(steps), layers, len(inputs))).astype(np.float32)
    for step, expert in enumerate(steps):
        for column, item in enumerate(inputs):
            if item.per == "expert":
                table[step, :, column] = table[list(steps).index(expert), :, column]
            if expert not in item.experts:
                table[step, :, column] = 0
    return table


def scale_blobs(rng: np.random.Generator, s: Spec) -> Iterator[Blob]:
    table = scale_table(rng, gemm_inputs(s), [step.expert for step in steps_of(s)], s.layers)
    factors = rng.uniform(0.5, 2, (s.layers, s.ffn_width)).astype(np.float32)
    for name, data in (("calibration.activation_scales", table), (f"calibration.smooth.{SITE}", factors)):
        yield Blob(name, "calibration", "float32", data.shape, data.shape, data.astype("<f4").tobytes())


def calibration_of(s: Spec) -> Calibration:
    return Calibration(
        mode="percentile",
        percentile=99.9,
        statistics_sha256="1" * 64,
        prompts=2,
        seeds=(0, 7),
        video=Clip(frames=5, height=32, width=16),
        other_geometry=True,
        dtype="fp32",
        inputs=gemm_inputs(s),
        smoothing=Smoothing(strength=0.5, sites=(SITE,)),
    )


def rope_of(s: Spec) -> tuple[int, int, int]:
    head = s.width // s.heads
    third = 2 * (head // 6)
    return head - 2 * third, third, third


def steps_of(s: Spec) -> tuple[m.Step, ...]:
    times = (1000.0, 949.0, 810.0)
    sigmas = [np.float32(t) / np.float32(1000) for t in times] + [np.float32(0)]
    return tuple(
        m.Step(
            timestep=t,
            sigma=float(sigmas[i]),
            sigma_next=float(sigmas[i + 1]),
            step_size=float(sigmas[i + 1] - sigmas[i]),
            expert="detail" if s.rank and t < 979 else "semantic",
        )
        for i, t in enumerate(times)
    )
