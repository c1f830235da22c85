"""Histograms of magnitudes over logarithmic bins that never have to be rescaled, so that counts simply add.

A bin is a range of FP32 bit patterns: 16 bins an octave, 32 octaves, from 2^-16 to 2^16. The first also takes what is
smaller, zeros included, the last what is larger.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]

BINS_PER_OCTAVE = 16
BINS = 32 * BINS_PER_OCTAVE
SHIFT = 23 - 4
"""FP32 bit patterns (sign cleared) >> this number consecutively the bins."""
FIRST = (127 - 16) << 4
"""The bin number, so counted, of 2^-16."""


def edges() -> Float32Array:
    """``[BINS + 1]``: bin i holds magnitudes in ``[edges[i], edges[i + 1])``; its first edge counts as 0."""
    bits = (np.arange(BINS + 1, dtype=np.uint32) + np.uint32(FIRST)) << np.uint32(SHIFT)
    values: Float32Array = bits.view(np.float32).copy()
    values[0] = 0.0
    return values


def middles() -> Float32Array:
    """``[BINS]``: a magnitude that stands for its bin."""
    e = edges()
    middle: Float32Array = (e[:-1] + e[1:]) * np.float32(0.5)
    middle[0] = 0.0
    return middle


def share_below(counts: Int64Array, limit: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The share of ``counts [..., BINS]`` whose magnitude is below ``limit [...]``; within a bin, linearly."""
    e = edges().astype(np.float64)
    inside = np.clip((limit[..., None] - e[:-1]) / (e[1:] - e[:-1]), 0.0, 1.0)
    total = np.maximum(counts.sum(axis=-1), 1)
    share: npt.NDArray[np.float64] = (counts * inside).sum(axis=-1) / total
    return share
