"""The NPU's arithmetic: INT8 weights widened to FP16, FP16 operands, wide accumulation, FP32 residual stream.

A widened weight is ``fp16(fp32(q · s))``: the product is rounded to FP32 first. A GEMM's result is
``fp16(float(fp16(acc)) + b)``; an adapter's two GEMMs are FP16 and its output is added in FP32 and narrowed. Attention
is one pass over the keys in the flash form: scores ``fp16(acc)``, probabilities ``fp16(exp((score − rowmax) /
√head_dim))`` unnormalised, ``o = fp16(Σ p · v / Σ p)``.

`quant.paths.exact` defines each of these to the bit: ``acc`` is the exact sum, rounded once, and attention, its
exponential and the GELU are FP32 operations in a fixed order. ``NpuArithmetic(weights, exact=True)`` computes so, as
an NPU that adds exactly does, and a runtime with exact sums. Without it the same numbers are approached by what is
fast here: sums in FP32 or on tensor cores, the row's largest score from the start, the library's functions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from quant.fused import fused
from quant.gemms import ADAPTED, DETAIL, hidden_of
from quant.paths import exact
from quant.paths.arithmetic import At
from quant.paths.fp32 import SCORE_ELEMENTS, join_heads, query_rows, split_heads
from quant.paths.weights import Weights


class NpuArithmetic:
    """FP16 GEMMs over widened INT8 weights. ``exact``: to the bit as an NPU, some times slower."""

    exact_norms = True
    residual_dtype = torch.float32

    def __init__(self, weights: Weights, *, exact: bool = False) -> None:
        self.weights = weights
        self.exact = exact

    def operand(self, at: At, name: str, x: Tensor) -> Tensor:
        return x.half()

    def linear(self, at: At, linear: str, operand: Tensor) -> Tensor:
        acc = self._matmul(operand, self.weights.widened(at.weight(linear)))
        y = (acc.float() + self.weights.values(at.weight(linear, "bias"))).half()
        if at.expert != DETAIL or linear not in ADAPTED:
            return y
        hidden = self._matmul(operand, self.weights.widened(at.weight(linear, "lora_A.weight")))
        hidden = self.operand(at, hidden_of(linear), hidden)
        more = self._matmul(hidden, self.weights.widened(at.weight(linear, "lora_B.weight")))
        return (y.float() + more.float()).half()

    def _matmul(self, a: Tensor, b: Tensor) -> Tensor:
        return exact.exact_matmul(a, b) if self.exact else fp16_matmul(a, b)

    def gelu(self, x: Tensor) -> Tensor:
        return exact.gelu(x.float()).half() if self.exact else F.gelu(x, approximate="tanh")

    def attention(self, at: At, attn: str, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (split_heads(x, self.weights.shape.heads) for x in (query, key, value))
        if self.exact:
            return join_heads(exact.attention(q, k, v))
        if not q.is_cuda:  # a CPU multiplies in FP32: widened once, not for each part
            k, v = k.float(), v.float()
        out = torch.empty(q.shape, dtype=torch.float16, device=q.device)
        rows = query_rows(q.shape[0], k.shape[1], SCORE_ELEMENTS[q.device.type])
        for start in range(0, q.shape[1], rows):
            weight = _weights_of_values(fp16_matmul(q[:, start : start + rows], k), 1.0 / math.sqrt(q.shape[-1]))
            total = weight.sum(dim=-1, keepdim=True, dtype=torch.float32)
            out[:, start : start + rows] = wide_matmul(weight, v.transpose(-1, -2)) / total
        return join_heads(out)


@fused
def _weights_of_values(scores: Tensor, scale: float) -> Tensor:
    """``fp16(exp((score − rowmax) · scale))``, computed in FP32."""
    wide = scores.float()
    return torch.exp((wide - wide.amax(dim=-1, keepdim=True)) * scale).half()


def wide_matmul(a: Tensor, b: Tensor) -> Tensor:
    """``a · bᵀ`` of FP16 operands, or of their FP32 values; products exact, accumulated in FP32, not narrowed."""
    if a.is_cuda:
        return torch.matmul(a.float(), b.float().transpose(-1, -2))
    return a.float() @ b.float().transpose(-1, -2)


def fp16_matmul(a: Tensor, b: Tensor) -> Tensor:
    """``fp16(a · bᵀ)``: FP16 ``[…, m, k]`` and ``[…, n, k]``, accumulated in FP32, rounded once."""
    if a.is_cuda:
        if torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction:
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        return torch.matmul(a, b.transpose(-1, -2))
    return wide_matmul(a, b).half()
