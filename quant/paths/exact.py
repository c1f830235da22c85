"""The NPU's arithmetic to the bit: exact sums that are rounded once, and functions of FP32 operations in a fixed order.

What a runtime computes with these definitions depends on no order of summation, no library and no device. By public
sources the matrix unit of Hexagon adds products of FP16 numbers so, in a wide fixed-point accumulator.

Attention is the flash form, over pieces of `KEY_PIECE` keys in order. For each row, with a maximum ``m`` from −∞, and
``total``, ``sum`` from 0, all FP32:

- ``s = fp16(q · k)``; ``m' = max(m, s …)``; ``p = fp16(exp2((s − m') · scale))``, ``scale = fp32(log2 e / √head_dim)``;
- ``factor = exp2((m − m') · scale)``; ``sum = sum · factor + Σ p``, in `LANES` partial sums: key i to number i mod
  `LANES`, in order, and then these in order from 0;
- ``total = total · factor + fp32(Σ p · v)``, that sum exact; ``m = m'``.

At the end ``o = fp16(total / sum)``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

KEY_PIECE = 512
LANES = 16

EXP2_SERIES = (
    1.52527338e-5, 1.54035304e-4, 1.33335581e-3, 9.61812911e-3, 5.55041087e-2, 2.40226507e-1, 6.93147181e-1, 1.0,
)  # fmt: skip
"""(ln 2)^k / k! in FP32, k = 7 … 0."""
GELU_CUBIC = 0.044715
GELU_FACTOR = -2.30220819
"""−2 · √(2/π) · log2(e)."""

OUTPUTS_AT_ONCE = 1 << 22
"""Elements of a product that are computed together."""
EXACT_SIZE = 31.0
"""Σ|a·b| below which FP64 sums are exact: less than 32 by more than it is itself rounded."""
UNIT_BITS = 48
"""Every product of two FP16 numbers is a multiple of 2^-48."""


def exact_matmul(a: Tensor, b: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
    """``a · bᵀ`` of FP16 ``[…, m, k]`` and ``[…, n, k]``: the exact sums, rounded once, to FP16 or FP32.

    FP64 sums are exact where ``Σ|a·b|`` is below 32: all are multiples of 2^-48. Elsewhere they are off by less than
    ``k · 2^-52 · Σ|a·b|`` in whatever order they were added (Higham, Accuracy and Stability of Numerical Algorithms,
    (3.5)); where the ends of that interval round to different numbers, the sum is made again in integers.
    """
    wide = b.double().transpose(-1, -2)
    largest = wide.abs().amax(dim=-2, keepdim=True)
    rows = max(1, OUTPUTS_AT_ONCE // max(1, math.prod(wide.shape[:-2]) * wide.shape[-1]))
    parts = [
        _rounded_product(a[..., start : start + rows, :], b, wide, largest, dtype)
        for start in range(0, a.shape[-2], rows)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)


def _rounded_product(a: Tensor, b: Tensor, wide: Tensor, largest: Tensor, dtype: torch.dtype) -> Tensor:
    left = a.double()
    sums = left @ wide + 0.0  # a sum of nothing but −0 is 0, as in an accumulator that begins at 0
    size = left.abs().sum(dim=-1, keepdim=True) * largest
    out = rounded(sums, dtype)
    if bool((size <= EXACT_SIZE).all()):
        return out
    error = torch.where(size > EXACT_SIZE, size * (a.shape[-1] * 2.0**-51), 0.0)  # twice, for the interval's own ends
    low, high = _bits(rounded(sums - error, dtype)), _bits(rounded(sums + error, dtype))
    for place in torch.nonzero((low != high) & torch.isfinite(sums)).tolist():
        *batch, row, column = place
        exact = _integer_sum(a[(*batch, row)], b[(*batch, column)])
        out[tuple(place)] = rounded(torch.tensor([exact], dtype=torch.float64, device=out.device), dtype)[0]
    return out


def _bits(x: Tensor) -> Tensor:
    return x.view(torch.int16 if x.dtype == torch.float16 else torch.int32)


def _integer_sum(x: Tensor, y: Tensor) -> float:
    """``Σ x · y`` of FP16 vectors in FP64, rounded to odd: cut off, and the last bit set if anything was."""
    halves = [(vector.double() * 2.0 ** (UNIT_BITS // 2)).long().tolist() for vector in (x, y)]
    total = sum(p * q for p, q in zip(*halves, strict=True))
    cut = max(0, abs(total).bit_length() - 53)
    kept = abs(total) >> cut
    odd = kept | (kept << cut != abs(total))
    return math.copysign(math.ldexp(odd, cut - UNIT_BITS), total)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """FP64 to FP32 or FP16, to nearest even, rounded once: torch narrows to FP16 by way of FP32, which rounds twice.

    So FP64 is rounded to odd first, to FP32's 24 bits; that and one more rounding to 22 bits or fewer are one rounding.
    Source: Boldo and Melquiond, Emulation of FMA and correctly rounded sums (2008), theorem 3.
    """
    if dtype == torch.float32:
        return x.float()
    beyond = (1 << 29) - 1
    bits = x.view(torch.int64)
    return (((bits | ((bits & beyond) + beyond)) & ~beyond).view(torch.float64)).float().half()


def exp2(x: Tensor) -> Tensor:
    """2^x of FP32: the integer part by the exponent, the rest by Taylor's series, each operation rounded."""
    x = x.clamp(-127.0, 128.0)
    whole = (x + 1.5 * 2.0**23) - 1.5 * 2.0**23
    fraction = x - whole
    series = torch.full_like(x, EXP2_SERIES[0])
    for coefficient in EXP2_SERIES[1:]:
        series = series * fraction + coefficient
    power = ((whole.nan_to_num().int() + 127) << 23).view(torch.float32)  # 2^-127 becomes 0, 2^128 infinity
    return series * power


def gelu(x: Tensor) -> Tensor:
    """The tanh form of FP32: ``x / (1 + e^(−2u))``, ``u = √(2/π) · (x + 0.044715 x³)``."""
    return x / (1.0 + exp2(GELU_FACTOR * (x + GELU_CUBIC * x * x * x)))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """FP16 ``[heads, m, head_dim]`` and ``[heads, l, head_dim]`` twice, to FP16 ``[heads, m, head_dim]``."""
    scale = float(torch.tensor(1.4426950408889634 / math.sqrt(q.shape[-1]), dtype=torch.float32))
    rows = max(1, OUTPUTS_AT_ONCE // (q.shape[0] * KEY_PIECE))
    values = v.transpose(-1, -2)
    return torch.cat([_attended(q[:, i : i + rows], k, values, scale) for i in range(0, q.shape[1], rows)], dim=1)


def _attended(q: Tensor, k: Tensor, values: Tensor, scale: float) -> Tensor:
    most = torch.full((*q.shape[:2], 1), -math.inf, device=q.device)
    total, weight = torch.zeros(q.shape, device=q.device), torch.zeros_like(most)
    for start in range(0, k.shape[1], KEY_PIECE):
        piece = slice(start, start + KEY_PIECE)
        scores = exact_matmul(q, k[:, piece]).float()
        before, most = most, torch.fmax(most, torch.where(scores.isnan(), -math.inf, scores).amax(-1, keepdim=True))
        p = exp2((scores - most) * scale).half()
        factor = exp2((before - most) * scale)
        weight = weight * factor + _sum_in_lanes(p)
        total = total * factor + exact_matmul(p, values[..., piece], torch.float32)
    return (total / weight).half()


def _sum_in_lanes(p: Tensor) -> Tensor:
    """FP32 ``[…, 1]`` of FP16 ``[…, keys]``."""
    padded = F.pad(p.float(), (0, -p.shape[-1] % LANES))
    lanes = padded.view(*p.shape[:-1], -1, LANES)
    partial = lanes[..., 0, :]
    for i in range(1, lanes.shape[-2]):
        partial = partial + lanes[..., i, :]
    out: Tensor = partial[..., :1]
    for lane in range(1, LANES):
        out = out + partial[..., lane : lane + 1]
    return out
