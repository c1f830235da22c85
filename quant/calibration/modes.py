"""From statistics to scales. All modes give one scale to each step, block and GEMM input; they differ in its value.

- ``per-step``: largest magnitude of that step / 127. The schedule is fixed, so this costs a float a step.
- ``global``: largest magnitude over all steps / 127: the paper's, section 4.4.
- ``percentile``: a magnitude that a given percentage of the sampled values of that step stays within / 127, rounded up
  to the edge of a bin; larger ones are clipped.
- ``mse``: of a grid of clipping points of that step, the one with the least expected squared error.

What is an expert's and not a step's has one scale for the expert in each mode.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from quant.calibration.histogram import edges, middles
from quant.calibration.statistics import Float32Array, Int64Array, Statistics, exists
from quant.gemms import GemmInput
from quant.scales import ABSENT, Scales
from quant.source import Step
from quant.weights import QMAX, SMALLEST_SCALE

Mode = Literal["global", "per-step", "percentile", "mse"]
MODES: tuple[Mode, ...] = get_args(Mode)
DEFAULT_PERCENTILE = 99.9

_CLIP_STEPS = 48
"""Clipping points that `mse` tries: the largest magnitude times 2^(-i / 16)."""

NEEDS_HISTOGRAM: tuple[Mode, ...] = ("percentile", "mse")


def activation_scales(
    statistics: Statistics, steps: tuple[Step, ...], mode: Mode, percentile: float = DEFAULT_PERCENTILE
) -> Scales:
    """Scales of a mode. An input that was all zeros gets scale 1 (`all_zero` lists them)."""
    absmax = statistics.absmax
    if mode == "global":
        limit = over_steps(absmax, statistics.inputs, steps)
    elif mode == "percentile":
        limit = np.minimum(_percentile(statistics.histogram, percentile), absmax)
    elif mode == "mse":
        limit = _least_error(statistics.histogram, absmax)
    else:
        limit = absmax
    scales = (limit / np.float32(QMAX)).astype(np.float32)
    scales[scales < SMALLEST_SCALE] = 1.0
    there = exists(statistics.inputs, steps)
    table = np.where(there[:, None, :], scales, ABSENT)
    return Scales(np.ascontiguousarray(table, np.float32), tuple(i.name for i in statistics.inputs))


def over_steps(absmax: Float32Array, inputs: tuple[GemmInput, ...], steps: tuple[Step, ...]) -> Float32Array:
    """The largest magnitude over all steps; over those of an expert for what is the expert's."""
    out = np.broadcast_to(absmax.max(axis=0), absmax.shape).copy()
    for n, i in enumerate(inputs):
        if i.per == "expert":
            out[:, :, n] = absmax[:, :, n]
    return out


def all_zero(statistics: Statistics, steps: tuple[Step, ...]) -> list[tuple[int, int, str]]:
    """``(step, block, input)`` of the inputs that never held anything but zeros."""
    silent = (statistics.absmax == 0.0) & exists(statistics.inputs, steps)[:, None, :]
    return [(int(s), int(b), statistics.inputs[int(i)].name) for s, b, i in np.argwhere(silent)]


def _percentile(histogram: Int64Array, percentile: float) -> Float32Array:
    """Upper edge of the bin in which the percentile lies: at most a 16th above it. The last bin has no upper edge."""
    total = histogram.sum(axis=-1, keepdims=True)
    reached = np.cumsum(histogram, axis=-1) >= total * (percentile / 100.0)
    upper: Float32Array = np.append(edges()[1:-1], np.float32(np.inf))[reached.argmax(axis=-1)]
    return np.where(total[..., 0] > 0, upper, np.float32(0.0))


def _least_error(histogram: Int64Array, absmax: Float32Array) -> Float32Array:
    """Σ counts · error² over the bins: (x − clip)² beyond the clipping point, s² / 12 within, x² where x rounds to
    0."""
    x = middles().astype(np.float64)
    best = np.full(absmax.shape, np.inf)
    limit = absmax.copy()
    counts = histogram.astype(np.float64)
    for i in range(_CLIP_STEPS):
        clip = absmax.astype(np.float64) * 2.0 ** (-i / 16.0)
        step = clip / QMAX
        error = _squared_error(x, clip[..., None], step[..., None])
        total = np.einsum("...b,...b->...", counts, error)
        better = total < best
        best = np.where(better, total, best)
        limit = np.where(better, clip.astype(np.float32), limit)
    return limit


def _squared_error(
    x: npt.NDArray[np.float64], clip: npt.NDArray[np.float64], step: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    return np.where(x > clip, (x - clip) ** 2, np.where(x < step / 2.0, x**2, step**2 / 12.0))
