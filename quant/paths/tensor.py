"""Both engines in every linear: the GPU's arithmetic for its first columns, the NPU's for the others and for the rest.

It is the paper's baseline, the split that HeteroInfer (Chen et al., 2025) makes of every GEMM of a language model. The
split is at tiles' edges. What enters a linear is FP16, as the NPU multiplies it; the GPU quantises that. What the GPU
gives is narrowed to FP16, as the NPU's results are. Attention's own GEMMs, which have no weights, are the NPU's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from quant.paths.arithmetic import At
from quant.paths.gpu import GpuArithmetic
from quant.paths.npu import NpuArithmetic
from quant.paths.weights import Weights
from quant.scales import Scales

TILE_COLUMNS = 32
"""Columns of a tile, in every tile order."""


@dataclass(frozen=True)
class Operand:
    """What enters a GEMM: its name in `quant.gemms`, and FP16 ``[m, channels]``."""

    name: str
    half: Tensor


def gpu_columns(columns: int, share: float) -> int:
    """How many of a linear's columns are the GPU's: the share to the nearest edge of a tile, a half upwards.

    Raises ValueError for a share outside [0, 1].
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a share of {share} of the columns: it is 0 to 1")
    tiles = -(-columns // TILE_COLUMNS)
    return min(columns, TILE_COLUMNS * math.floor(share * tiles + 0.5))


class TensorArithmetic:
    """Linears split by columns, with the NPU's residual stream. ``share``: of the GPU, 0 to 1; ``exact``: of the NPU's
    arithmetic."""

    exact_norms = True
    residual_dtype = torch.float32

    def __init__(self, weights: Weights, scales: Scales, share: float, *, exact: bool = False) -> None:
        self.weights = weights
        self.share = share
        self._gpu = GpuArithmetic(weights, scales)
        self._npu = NpuArithmetic(weights, exact=exact)

    def operand(self, at: At, name: str, x: Tensor) -> Operand:
        return Operand(name, self._npu.operand(at, name, x))

    def linear(self, at: At, linear: str, operand: Operand) -> Tensor:
        columns = len(self.weights.values(at.weight(linear, "bias")))
        split = gpu_columns(columns, self.share)
        parts = []
        if split > 0:
            codes = self._gpu.operand(at, operand.name, operand.half)
            parts.append(self._gpu.linear(at, linear, codes)[:, :split].half())
        if split < columns:
            parts.append(self._npu.linear(at, linear, operand.half)[:, split:])
        return torch.cat(parts, dim=1)

    def gelu(self, x: Tensor) -> Tensor:
        return self._npu.gelu(x)

    def attention(self, at: At, attn: str, query: Operand, key: Operand, value: Operand) -> Tensor:
        return self._npu.attention(at, attn, query.half, key.half, value.half)
