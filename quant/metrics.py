"""How far quantised values are from their source."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]

HALF_STEP = 0.5 * (1 + 2.0**-16)
"""Largest error in steps: rounding to nearest, and FP32 rounding of quotient (≤ 127 · 2⁻²⁴ steps) and scale product."""


@dataclass
class ErrorMeter:
    """Collects errors of a tensor, strip by strip, in float64."""

    signal: float = 0.0
    noise: float = 0.0
    max_error_steps: float = 0.0
    """Largest |W − q · s| / s; NaN once one of them is."""
    worst: tuple[int, int] = (0, 0)
    """Its row and column."""

    def update(self, source: Float32Array, q: npt.NDArray[np.int8], scales: Float32Array, first_row: int) -> None:
        """Feed rows ``source`` ``[n, k]`` with their ``q`` ``[n, k]`` and ``scales`` ``[n]``."""
        wide = source.astype(np.float64)
        s = scales.astype(np.float64)[:, None]
        with np.errstate(all="ignore"):  # a damaged scale may be anything; what comes of it is no number, or infinite
            error = np.abs(wide - q * s)
            self.signal += float(np.square(wide).sum())
            self.noise += float(np.square(error).sum())
            steps = error / s
        peak = int(steps.argmax())  # of the first NaN, if there is one
        worst = float(steps.flat[peak])
        if not (math.isnan(self.max_error_steps) or worst <= self.max_error_steps):
            self.max_error_steps = worst
            self.worst = (first_row + peak // source.shape[1], peak % source.shape[1])

    @property
    def sqnr_db(self) -> float:
        """10 · log10(Σ W² / Σ (W − q · s)²); inf for an exact tensor."""
        if self.noise == 0.0:
            return math.inf
        return 10.0 * math.log10(self.signal / self.noise) if self.signal else -math.inf
