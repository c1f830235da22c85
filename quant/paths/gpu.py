"""The GPU's arithmetic: INT8 weights and activations, exact INT32 accumulation, FP16 residual stream.

- GEMM: ``x_q = clip(round_half_even(x / s_x), ±127)``; ``y = acc · (s_x · s_j) + b`` in FP32, without fused
  multiply-add.
- adapter: A reads the same x_q; its hidden has a scale ``s_h`` of its own; ``y = base + acc_B · (s_h · s_B)``.
- attention: scores ``fp16(acc · (s_q · s_k / √head_dim))``; ``e = exp(score − rowmax)`` in FP32;
  ``p = round_half_even(127 · e)`` as INT8; ``o = (Σ p · v_q) · s_v / Σ p``. Quantising *normalised* probabilities would
  round nearly all of 20,280 of them to zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from quant.fused import fused
from quant.gemms import ADAPTED, DETAIL, hidden_of
from quant.integer import int8_matmul, quantize_activations
from quant.paths.arithmetic import At
from quant.paths.fp32 import SCORE_ELEMENTS, head_groups, join_heads, query_rows, split_heads
from quant.paths.weights import Weights
from quant.scales import Scales


@dataclass(frozen=True)
class Quantized:
    """Activations as INT8 ``[m, channels]`` with their scale."""

    codes: Tensor
    scale: Tensor
    """FP32, one number."""


class GpuArithmetic:
    """INT8 GEMMs with calibrated activation scales."""

    exact_norms = True
    residual_dtype = torch.float16

    def __init__(self, weights: Weights, scales: Scales) -> None:
        self.weights = weights
        self.scales = scales

    def operand(self, at: At, name: str, x: Tensor) -> Quantized:
        scale = torch.tensor(self.scales.of(at.step, at.block, name), dtype=torch.float32, device=x.device)
        return Quantized(quantize_activations(x, scale), scale)

    def linear(self, at: At, linear: str, operand: Quantized) -> Tensor:
        y = self._gemm(at.weight(linear), operand) + self.weights.values(at.weight(linear, "bias"))
        if at.expert != DETAIL or linear not in ADAPTED:
            return y
        hidden = self._gemm(at.weight(linear, "lora_A.weight"), operand)
        return y + self._gemm(at.weight(linear, "lora_B.weight"), self.operand(at, hidden_of(linear), hidden))

    def _gemm(self, weight: str, operand: Quantized) -> Tensor:
        """``acc · (s_x · s_j)``: FP32 ``[m, n]``. The product converts the integers to FP32, to nearest."""
        acc = int8_matmul(operand.codes, self.weights.codes(weight))
        return acc * (operand.scale * self.weights.scales(weight))

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")

    def attention(self, at: At, attn: str, query: Quantized, key: Quantized, value: Quantized) -> Tensor:
        q, k, v = (split_heads(x.codes, self.weights.shape.heads) for x in (query, key, value))
        factor = query.scale * key.scale / math.sqrt(q.shape[-1])
        out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
        for heads in head_groups(q):
            # A row of ones under the values' columns: the same product then gives Σ p, for a 128th of its cost.
            columns, keys = F.pad(v[heads].transpose(-1, -2), (0, 0, 0, 1), value=1.0), k[heads]
            if not q.is_cuda:  # a CPU multiplies in FP32: converted once, not for each part
                columns, keys = columns.float(), keys.float()
            rows = query_rows(q[heads].shape[0], k.shape[1], SCORE_ELEMENTS[q.device.type])
            for start in range(0, q.shape[1], rows):
                part = q[heads, start : start + rows]
                p = _probabilities(_scores(int8_matmul(part, keys), factor))
                sums = int8_matmul(p, columns)
                out[heads, start : start + rows] = sums[..., :-1] * value.scale / sums[..., -1:]
        return join_heads(out)


@fused
def _scores(acc: Tensor, factor: Tensor) -> Tensor:
    """``fp16(acc · factor)``, a function of its own because a compiler leaves out a rounding within one."""
    return (acc.float() * factor).half()


@fused
def _probabilities(scores: Tensor) -> Tensor:
    """``round_half_even(127 · exp(score − rowmax))`` as INT8."""
    wide = scores.float()
    return torch.round(torch.exp(wide - wide.amax(dim=-1, keepdim=True)) * 127.0).to(torch.int8)
