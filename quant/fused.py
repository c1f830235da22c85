"""Chains of elementwise operations that run as one kernel on a GPU, and as written on a CPU."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def fused(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``function`` of tensors, compiled where its first argument is on a GPU.

    A compiled function keeps the roundings to what it returns, not those within (PyTorch leaves them out), and sums in
    an order of its own. So a chain ends where it rounds, and what must be the same to the bit has no sums.
    Where PyTorch cannot compile (no Triton, no C compiler), the chain runs as written, some times slower; a warning
    says so once.
    """
    compiled: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*args: Any) -> Tensor:
        nonlocal compiled
        if not args[0].is_cuda or compiled is function:
            return function(*args)
        if compiled is None:
            compiled = torch.compile(function)
        try:
            out: Tensor = compiled(*args)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a missing compiler raises: the chain itself has no way to fail
            warnings.warn(f"not compiled, so slower: {type(error).__name__}: {error}"[:300], stacklevel=2)
            compiled = function
            return function(*args)
        return out

    return call
