"""Arithmetics that keep everything that passes them, by the names of `tests.quant.oracle`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quant.paths import gpu as gpu_module
from quant.paths.arithmetic import At
from quant.paths.gpu import GpuArithmetic, Quantized
from quant.paths.npu import NpuArithmetic
from quant.paths.weights import Weights
from quant.scales import Scales

Array = np.ndarray[Any, Any]
Trace = dict[str, Array]


def _kept(x: Tensor) -> np.ndarray[Any, Any]:
    return x.detach().numpy().copy()


class TracedGpu(GpuArithmetic):
    def __init__(self, weights: Weights, scales: Scales) -> None:
        super().__init__(weights, scales)
        self.trace: Trace = {}
        self.products: list[tuple[Tensor, Tensor, Tensor]] = []
        """Every INT8 product since a linear or attention began: (a, b, a · bᵀ)."""

    def operand(self, at: At, name: str, x: Tensor) -> Quantized:
        out = super().operand(at, name, x)
        self.trace |= {f"{name} float": _kept(x), f"{name} codes": _kept(out.codes), f"{name} scale": _kept(out.scale)}
        return out

    def linear(self, at: At, linear: str, operand: Quantized) -> Tensor:
        self.products.clear()
        y = super().linear(at, linear, operand)
        for what, (_, _, acc) in zip(("", " A", " B"), self.products, strict=False):
            self.trace[f"{linear}{what} acc"] = _kept(acc)
        self.trace[f"{linear} output"] = _kept(y)
        return y

    def attention(self, at: At, attn: str, query: Quantized, key: Quantized, value: Quantized) -> Tensor:
        self.products.clear()
        out = super().attention(at, attn, query, key, value)
        (_, _, scores), (p, _, sums) = self.products
        self.trace |= {
            f"{attn} scores acc": _kept(scores),
            f"{attn} probabilities": _kept(p),
            f"{attn} weighted sums": _kept(sums[..., :-1]),
            f"{attn} sums": _kept(sums[..., -1:]),
            f"{attn} output": _kept(out),
        }
        return out

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Products are seen while this is open."""
        original = gpu_module.int8_matmul

        def seen(a: Tensor, b: Tensor) -> Tensor:
            out = original(a, b)
            self.products.append((a, b, out))
            return out

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_module, "int8_matmul", seen)
            yield


class TracedNpu(NpuArithmetic):
    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self.trace: Trace = {}

    def operand(self, at: At, name: str, x: Tensor) -> Tensor:
        out = super().operand(at, name, x)
        assert out.dtype == torch.float16
        self.trace |= {f"{name} float": _kept(x), f"{name} fp16": _kept(out)}
        return out

    def linear(self, at: At, linear: str, operand: Tensor) -> Tensor:
        y = super().linear(at, linear, operand)
        self.trace[f"{linear} output"] = _kept(y)
        return y

    def attention(self, at: At, attn: str, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = super().attention(at, attn, query, key, value)
        self.trace[f"{attn} output"] = _kept(out)
        return out


class Meeting:
    """Meets the oracle's values with a path's, and lets the oracle go on with the path's."""

    def __init__(self, trace: dict[str, Array]) -> None:
        self.trace = trace
        self.met: set[str] = set()

    def __call__(self, name: str, value: Array) -> Array:
        self.met.add(name)
        if name.startswith("hidden after"):
            return value  # its parts are to the bit, and so is what follows
        found = self.trace[name]
        assert found.shape == value.shape, name
        return self.compared(name, value, found)

    def compared(self, name: str, value: Array, found: Array) -> Array:
        """The path's value, which is as near to the oracle's as the path promises."""
        raise NotImplementedError
