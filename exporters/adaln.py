"""Fold the time embeddings: what a model computes from the timestep alone becomes tables.

The timesteps of a compiled model are fixed, so each step's modulation is a constant. With
e = linear_2(silu(linear_1(sinusoid(t)))) and p = time_proj(silu(e)), through the embedder of the step's own
expert (Wan2.1, wan/modules/model.py; diffusers `WanTimeTextImageEmbedding`):

    adaln[step, layer] = blocks.{layer}.scale_shift_table + p     rows: shift, scale, gate of attention,
                                                                  shift, scale, gate of feed-forward
    head[step]         = scale_shift_table + e                    rows: shift, scale; e is added to both

The head uses e and not p, and its `scale_shift_table` is shared by both experts.

**Arithmetic.** Everything is computed in float64 in a fixed order (`exporters.portable_math`) and rounded to
float32 once, so the tables have the same bits on every machine. The exception is the sinusoid's *argument*,
which follows diffusers' `get_timestep_embedding` in float32: exponent, frequency and t·frequency are each
rounded. At t = 1000 these roundings move an angle by up to 6e-5 rad; the model was distilled with them, and
tables made from exact angles differ from diffusers' by about 1e-5 of the largest entry. Cosine and sine of
the rounded angle are then exact to float64.

**Frequencies** are e^exponent correctly rounded to float32, with two exceptions. Of Wan's 128 exponents, two
have a power within 0.021 units in the last place of the middle between two float32 numbers (j = 12 and 106), and
there torch takes the upper neighbour (x86-64 builds with MKL, on every instruction set) where correct
rounding takes the lower (as glibc's expf does). One unit moves those two angles by up to 3e-5 rad, and the
tables by 3e-6 of their largest entry. The tables follow torch, because that is how diffusers' model runs;
the two are written down as data in `_TORCH_ROUNDS_UP`, so the compiling machine's torch has no influence.
A torch with another exp (Arm, GPUs) may round other entries differently; there the tables agree with
diffusers to some 1e-6 only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from exporters.errors import CheckpointError
from exporters.model import EMBEDDER, Geometry, canonical_tensors
from exporters.portable_math import Float64Array, exp, linear64, rational_power, silu, sincos
from exporters.schedule import Step
from exporters.tensor import Float32Array, Tensor, check_finite

_LOG_MAX_PERIOD = np.float32(9.210340371976184)
"""ln 10000, the longest period of the sinusoid: diffusers' default, fixed for Wan. Not RoPE's theta."""

_TORCH_ROUNDS_UP = {128: (12, 106)}
"""Number of frequencies -> those that torch rounds up, against correct rounding. See the module's docstring."""


@dataclass(frozen=True)
class Tables:
    """What the steps need and no weight is needed for.

    - ``adaln``: float32 ``[steps, layers, 6, width]``.
    - ``head``: float32 ``[steps, 2, width]``.
    - ``rope_frequencies``: for the frame, row and column axis, float64 ``[rope_axis_dims[axis] / 2]``, radians
      per position. Float64, because the reference takes cosine and sine of float64 angles: at position 1023 a
      float32 frequency would move the angle by 6e-5 rad.
    - ``rope_axis_dims``: channels of a head for each axis, 44, 42, 42 of 128.
    """

    adaln: Float32Array
    head: Float32Array
    rope_frequencies: tuple[Float64Array, Float64Array, Float64Array]
    rope_axis_dims: tuple[int, int, int]


def fold_tables(geometry: Geometry, tensors: Mapping[str, Tensor], steps: Sequence[Step]) -> Tables:
    """The tables of ``steps``, from the time embedders and `scale_shift_table`s among ``tensors``.

    ``tensors`` maps canonical names; others than the needed ones may be present. Only the embedders of
    experts that ``steps`` use are read. Peak memory: the tables and about 20 MiB.

    Measured against diffusers' modules at widths 256 and 1536, max|Δ| / max|ref|: at most 6e-8 when they run in
    float64, 8e-7 when they run in float32, which is their own accumulation error.

    Raises:
        CheckpointError: no steps; a step of an expert that the geometry lacks; a needed tensor that is
            missing, has another shape, or holds a value that is not finite.
    """
    _check_steps(geometry, steps)
    shapes = canonical_tensors(geometry)

    def need(name: str) -> Tensor:
        return _need(tensors, name, shapes[name])

    width = geometry.width
    temb = np.empty((len(steps), width), dtype=np.float64)
    proj = np.empty((len(steps), 6 * width), dtype=np.float64)
    for expert in dict.fromkeys(step.expert for step in steps):
        rows = [i for i, step in enumerate(steps) if step.expert == expert]
        x = time_sinusoid([steps[i].timestep for i in rows], geometry.freq_dim)

        def linear(name: str, x: Float64Array, prefix: str = EMBEDDER[expert]) -> Float64Array:
            return linear64(need(f"{prefix}.{name}.weight"), need(f"{prefix}.{name}.bias"), x)

        temb[rows] = linear("time_embedder.linear_2", silu(linear("time_embedder.linear_1", x)))
        proj[rows] = linear("time_proj", silu(temb[rows]))

    def table(name: str) -> Float64Array:
        tensor = need(name)
        values: Float64Array = check_finite(tensor, tensor.read())[0].astype(np.float64)
        return values

    adaln = np.empty((len(steps), geometry.layers, 6, width), dtype=np.float32)
    for layer in range(geometry.layers):
        adaln[:, layer] = np.add(table(f"blocks.{layer}.scale_shift_table"), proj.reshape(-1, 6, width))
    head = np.add(table("scale_shift_table"), temb[:, np.newaxis]).astype(np.float32)
    for array in (adaln, head):
        array.setflags(write=False)
    return Tables(adaln, head, rope_frequencies(geometry), geometry.rope_axis_dims)


def time_sinusoid(timesteps: Sequence[float], freq_dim: int) -> Float64Array:
    """``[cos(t·f_j)…, sin(t·f_j)…]``, f_j = 10000^(-j / (freq_dim / 2)): float64 ``[len(timesteps), freq_dim]``.

    Source: diffusers `get_timestep_embedding` with flip_sin_to_cos, downscale_freq_shift 0. Exponent,
    frequency and angle are float32 as there; see the module's docstring.

    Raises:
        CheckpointError: an angle above 1e5, which no timestep of a Wan model gives; an odd ``freq_dim``.
    """
    if freq_dim % 2 or freq_dim < 2:
        raise CheckpointError(
            "the sinusoid of the time embedding needs an even number of channels",
            where="the model's geometry",
            expected="an even freq_dim, 256 for Wan",
            found=f"freq_dim = {freq_dim}",
            fix="check the shape of time_embedder.linear_1.weight",
        )
    half = freq_dim // 2
    exponent = np.multiply(-_LOG_MAX_PERIOD, np.arange(half, dtype=np.float32)) / np.float32(half)
    frequency = exp(exponent).astype(np.float32)
    for j in _TORCH_ROUNDS_UP.get(half, ()):
        frequency[j] = np.nextafter(frequency[j], np.float32(1.0))
    angle: npt.NDArray[np.float32] = np.multiply(np.array(timesteps, dtype=np.float32)[:, np.newaxis], frequency)
    sine, cosine = sincos(angle)
    return np.concatenate([cosine, sine], axis=1)


def rope_frequencies(geometry: Geometry) -> tuple[Float64Array, Float64Array, Float64Array]:
    """For each axis θ^(-2j/d), j = 0 … d/2 - 1, with d the axis' channels: float64, correctly rounded.

    The channel pair (2j, 2j + 1) of an axis at position p turns by p·θ^(-2j/d) radians.
    Source: Wan2.1 `rope_params`, diffusers `get_1d_rotary_pos_embed`.
    """
    frame, row, column = (
        np.array([rational_power(geometry.rope_theta, -2 * j, d) for j in range(d // 2)], dtype=np.float64)
        for d in geometry.rope_axis_dims
    )
    return frame, row, column


def _check_steps(geometry: Geometry, steps: Sequence[Step]) -> None:
    if not steps:
        raise CheckpointError(
            "there are no steps to make tables for",
            where="the schedule",
            expected="at least one step",
            found="none",
            fix="make the schedule with exporters.schedule.make_schedule",
        )
    for step in steps:
        if step.expert not in geometry.experts:
            raise CheckpointError(
                "a step of the schedule needs an expert that this model doesn't have",
                where=f"step {step.index}, timestep {step.timestep:g}",
                expected=" or ".join(geometry.experts),
                found=step.expert,
                fix="give the detail expert (--adapter), or make the schedule for the model's own experts",
            )


def _need(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None:
        raise CheckpointError(
            f"tensor {name!r} is missing",
            where="the tensors of the time embedding",
            expected=f"shape {list(shape)}",
            found="no tensor of this name",
            fix="give the complete checkpoint; the detail expert brings its own condition_embedder_lora",
        )
    if tensor.shape != shape:
        raise CheckpointError(
            f"tensor {name!r} has a shape that doesn't fit the model",
            where=tensor.origin,
            expected=str(list(shape)),
            found=str(list(tensor.shape)),
            fix="check that all files belong to one model",
        )
    return tensor
