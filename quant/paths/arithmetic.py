"""The seam between the model and an arithmetic: what an engine does differently, and the place where it does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from quant.paths.weights import Weights


@dataclass(frozen=True)
class At:
    """One block execution: which step of the schedule, which block, with which expert."""

    step: int
    block: int
    expert: str

    def weight(self, linear: str, part: str = "weight") -> str:
        """Canonical name of a tensor of this block."""
        return f"blocks.{self.block}.{linear}.{part}"


class Arithmetic(Protocol):
    """One engine's arithmetic. An operand is what enters a GEMM, in a form that only its own arithmetic reads."""

    exact_norms: bool
    """Whether norms have statistics of exact sums: where an engine is to reproduce them to the bit."""
    residual_dtype: torch.dtype
    """What the hidden state is kept in between blocks; the gated additions themselves are FP32."""

    @property
    def weights(self) -> Weights: ...

    def operand(self, at: At, name: str, x: Tensor) -> Any:
        """``x [m, channels]`` as the GEMM input ``name`` of `quant.gemms`."""
        ...

    def linear(self, at: At, linear: str, operand: Any) -> Tensor:
        """``W x + b``, plus ``B (A x)`` where the expert has an adapter: ``[m, n]``."""
        ...

    def gelu(self, x: Tensor) -> Tensor:
        """The tanh form, of what a linear gave: ``[m, n]`` to the same."""
        ...

    def attention(self, at: At, attn: str, query: Any, key: Any, value: Any) -> Tensor:
        """softmax(q kᵀ / √head_dim) v for every head: operands ``[m, width]``, ``[l, width]`` to ``[m, width]``."""
        ...
