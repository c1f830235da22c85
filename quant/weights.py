"""The weight quantiser: symmetric INT8, one FP32 scale per output column.

``s_j = max_k |W[j, k]| / 127`` in FP32; ``q = clip(round_half_even(W[j, k] / s_j), -127, 127)``; −128 never appears.
A column whose maximum / 127 is below 2⁻¹²⁶ (zero included) gets ``s_j = 1`` and zeros.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Int8Array = npt.NDArray[np.int8]

QMAX = 127
SMALLEST_SCALE = np.float32(2.0**-126)
"""Below this a scale would be subnormal, which engines may flush to zero."""


class NonFiniteError(ValueError):
    """A weight holds NaN or Inf. ``row`` and ``col`` locate the first one in the rows that were given."""

    def __init__(self, row: int, col: int, value: float) -> None:
        super().__init__(f"weight [{row}, {col}] is {value}")
        self.row = row
        self.col = col
        self.value = value


def column_scales(rows: Float32Array) -> Float32Array:
    """``[n]`` FP32 scales of ``rows`` ``[n, k]``. Raises NonFiniteError.

    The maximum of |W| is taken as max(max, −min): two reductions that write nothing, cheaper than a pass for |W|.
    NaN and Inf survive both, so finiteness is checked on ``n`` numbers instead of ``n · k``.
    """
    peak = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    if not np.isfinite(peak).all():
        row, col = np.argwhere(~np.isfinite(rows))[0]
        raise NonFiniteError(int(row), int(col), float(rows[row, col]))
    scales: Float32Array = peak / np.float32(QMAX)
    scales[scales < SMALLEST_SCALE] = np.float32(1.0)
    return scales


class Quantizer:
    """Quantises strips with scratch memory of its own, kept from strip to strip; one per thread."""

    def __init__(self) -> None:
        self._quotient = np.empty((0, 0), np.float32)

    def __call__(self, rows: Float32Array, out: Int8Array) -> Float32Array:
        """Quantise ``rows`` ``[n, k]`` FP32 into ``out`` ``[n, k]`` INT8; returns the ``[n]`` FP32 scales.

        Raises NonFiniteError. No clip is needed: |W| ≤ max and s = max / 127 rounded to nearest give a quotient below
        127 · (1 + 2⁻²³), which rounds to at most 127.
        """
        scales = column_scales(rows)
        if self._quotient.shape != rows.shape:
            self._quotient = np.empty(rows.shape, np.float32)
        quotient = self._quotient
        np.divide(rows, scales[:, None], out=quotient)
        np.rint(quotient, out=quotient)
        out[...] = quotient
        return scales


def quantize(weight: Float32Array) -> tuple[Int8Array, Float32Array]:
    """Quantise a whole ``[n, k]`` FP32 weight: ``(q [n, k] INT8, s [n] FP32)``. Raises NonFiniteError."""
    out = np.empty(weight.shape, np.int8)
    return out, Quantizer()(weight, out)
