"""The float reference: FP32 throughout, or BF16 / FP16 operands of the GEMMs with an FP32 residual stream.

It is what the other arithmetics are measured against, and what calibration watches.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from quant.gemms import ADAPTED, DETAIL, hidden_of
from quant.paths.arithmetic import At
from quant.paths.weights import Weights


class Watcher(Protocol):
    """What is shown every GEMM operand and output on its way."""

    def operand(self, at: At, name: str, x: Tensor) -> None:
        """An input ``[m, channels]``, as the GEMM reads it."""
        ...

    def output(self, at: At, name: str, y: Tensor) -> None:
        """An output ``[m, n]``."""
        ...

    def scores(self, at: At, attn: str, query: Tensor, key: Tensor) -> None:
        """The two operands ``[heads, rows, head_dim]`` of a score matrix that never exists as a whole."""
        ...


SDPA = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Fastest first where the device and dtype have it."""


class FloatArithmetic:
    """FP32, or a narrower dtype at the GEMMs. ``watcher`` is shown what passes."""

    exact_norms = False
    residual_dtype = torch.float32

    def __init__(
        self, weights: Weights, gemm_dtype: torch.dtype = torch.float32, watcher: Watcher | None = None
    ) -> None:
        self.weights = weights
        self.gemm_dtype = gemm_dtype
        self.watcher = watcher

    def operand(self, at: At, name: str, x: Tensor) -> Tensor:
        x = x.to(self.gemm_dtype)
        if self.watcher is not None:
            self.watcher.operand(at, name, x)
        return x

    def linear(self, at: At, linear: str, operand: Tensor) -> Tensor:
        weight = self.weights.values(at.weight(linear), self.gemm_dtype)
        y = F.linear(operand, weight, self.weights.values(at.weight(linear, "bias"), self.gemm_dtype))
        if self.watcher is not None:
            self.watcher.output(at, f"{linear}.output", y)
        if at.expert != DETAIL or linear not in ADAPTED:
            return y
        hidden = F.linear(operand, self.weights.values(at.weight(linear, "lora_A.weight"), self.gemm_dtype))
        hidden = self.operand(at, hidden_of(linear), hidden)
        more = F.linear(hidden, self.weights.values(at.weight(linear, "lora_B.weight"), self.gemm_dtype))
        if self.watcher is not None:
            self.watcher.output(at, f"{linear}.lora_output", more)
        return y + more

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")

    def attention(self, at: At, attn: str, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (split_heads(x, self.weights.shape.heads) for x in (query, key, value))
        if self.watcher is not None:
            self.watcher.scores(at, attn, q, k)
        with sdpa_kernel(SDPA, set_priority=True):
            out = F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        return join_heads(out)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """``[m, width]`` to ``[heads, m, head_dim]``."""
    return x.reshape(x.shape[0], heads, -1).transpose(0, 1)


def join_heads(x: Tensor) -> Tensor:
    """``[heads, m, head_dim]`` to ``[m, width]``."""
    return x.transpose(0, 1).reshape(x.shape[1], -1)


def head_groups(x: Tensor) -> list[slice]:
    """Which heads of ``[heads, m, head_dim]`` to take at once: all on a CPU; one on a GPU, whose INT8 product has no
    batch."""
    return [slice(h, h + 1) for h in range(x.shape[0])] if x.is_cuda else [slice(0, x.shape[0])]


SCORE_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 29}
"""Attention scores that exist at once where they are computed in parts."""


def query_rows(heads: int, keys: int, budget_elements: int) -> int:
    """How many query rows of attention to take at once so that all heads' scores stay within a budget.

    Rows are independent, so the result does not depend on it.
    """
    return max(1, budget_elements // (heads * keys))
