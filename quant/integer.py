"""INT8 matrix products with exact INT32 results, on CPU and CUDA.

PyTorch's own INT8 matmul on a CPU is some 50 times slower than its float32 one. Products of two INT8 codes are
at most 2^14, so a float32 GEMM over up to 1024 of them is exact (all partial sums stay within 2^24, whatever the
order); longer rows are split and the parts added as integers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from quant.fused import fused

EXACT_K = 1024
"""Codes are at most 127 in magnitude: 1024 · 127² < 2^24."""


def int8_matmul(a: Tensor, b: Tensor) -> Tensor:
    """``a · bᵀ``: INT8 ``[…, m, k]`` and ``[…, n, k]`` (codes within ±127) to INT32 ``[…, m, n]``, exact.

    On a CPU the codes may also come as float32, which saves converting them again.
    """
    if a.is_cuda:
        if a.ndim == 2:
            return _int_mm(a, b)
        parts = [int8_matmul(x, y) for x, y in zip(a, b, strict=True)]
        return parts[0][None] if len(parts) == 1 else torch.stack(parts)  # stacking copies
    out: Tensor | None = None
    for start in range(0, a.shape[-1], EXACT_K):
        part = a[..., start : start + EXACT_K].float() @ b[..., start : start + EXACT_K].float().transpose(-1, -2)
        out = part.int() if out is None else out.add_(part.int())
    assert out is not None  # noqa: S101 - k is positive
    return out


def _int_mm(a: Tensor, b: Tensor) -> Tensor:
    """`torch._int_mm` with its limits met: more than 16 rows, k and n multiples of 8; b's own layout is what it
    likes."""
    (m, k), n = a.shape, b.shape[0]
    rows, inner, cols = max(m, 17) - m, -k % 8, -n % 8
    if rows or inner:
        a = F.pad(a, (0, inner, 0, rows))
    if cols or inner:
        b = F.pad(b, (0, inner, 0, cols))
    out = torch._int_mm(a.contiguous(), b.contiguous().t())
    return out[:m, :n] if rows or cols else out


def quantize_activations(x: Tensor, scale: Tensor) -> Tensor:
    """``clip(round_half_even(x / scale), −127, 127)`` as INT8; x of any float dtype, scale FP32."""
    return _nearest(x.float() / scale)  # the division stands alone: compiled, it would not be rounded to nearest


@fused
def _nearest(x: Tensor) -> Tensor:
    return torch.round(x).clamp(-127.0, 127.0).to(torch.int8)
