"""Kernels that compute something else give another answer, by more than is allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hvdc.artifact.answer import Float32Array
from hvdc.artifact.answer_records import (
    AnswerEngine,
)  # fmt: skip
from hvdc.artifact.reader import open_artifact
from hvdc.pipeline.answer import LIMITS, computed, grid_of, questions_of, relative
from quant.paths.gpu import GpuArithmetic
from quant.paths.npu import NpuArithmetic


def toward_zero(x: torch.Tensor) -> torch.Tensor:
    """FP16 by cutting off."""
    near = x.half()
    return torch.where(near.float().abs() > x.abs(), torch.nextafter(near, torch.zeros_like(near)), near)


def _other_linear(change: Callable[..., torch.Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        for arithmetic in (NpuArithmetic, GpuArithmetic):
            before = arithmetic.linear

            def linear(self: Any, at: Any, name: str, operand: Any, before: Any = before) -> torch.Tensor:
                return change(before, self, at, name, operand)

            monkeypatch.setattr(arithmetic, "linear", linear)

    return patch


def _set(target: str, value: object) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(target, value)


def _no_adapter(before: Any, self: Any, at: Any, name: str, operand: Any) -> torch.Tensor:
    result: torch.Tensor = before(self, replace(at, expert="semantic"), name, operand)
    return result


def _cut_off(before: Any, self: Any, at: Any, name: str, operand: Any) -> torch.Tensor:
    y: torch.Tensor = before(self, at, name, operand)
    return y if y.dtype != torch.float16 else torch.nextafter(y, torch.zeros_like(y))


def _codes_cut_off(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.trunc(x.float() / scale).clamp(-127, 127).to(torch.int8)


def _probabilities_cut_off(scores: torch.Tensor) -> torch.Tensor:
    wide = scores.float()
    return torch.floor(torch.exp(wide - wide.amax(-1, keepdim=True)) * 127.0).to(torch.int8)


NPU, GPU = AnswerEngine.NPU, AnswerEngine.GPU
WRONG_KERNELS: dict[str, tuple[set[AnswerEngine], Callable[[pytest.MonkeyPatch], object]]] = {
    "no adapter": ({NPU, GPU}, _other_linear(_no_adapter)),
    "results one unit too small": ({NPU}, _other_linear(_cut_off)),
    "activations cut off": ({GPU}, _set("quant.paths.gpu.quantize_activations", _codes_cut_off)),
    "probabilities cut off": ({GPU}, _set("quant.paths.gpu._probabilities", _probabilities_cut_off)),
    "no rotation": ({NPU, GPU}, _set("quant.paths.block.rotate", lambda x, rotations, heads: x)),
    "no modulation": ({NPU, GPU}, _set("quant.paths.block.modulate", lambda x, shift, scale: x)),
    "ReLU for GELU": (
        {NPU, GPU},
        lambda patch: [patch.setattr(a, "gelu", lambda self, x: x.relu()) for a in (NpuArithmetic, GpuArithmetic)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_KERNELS)
def test_wrong_kernels_are_seen(case: str, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far off as they are, no limit lets them through: of the answers of an engine at least one is beyond it."""
    engines, patch = WRONG_KERNELS[case]
    with open_artifact(small) as artifact:
        grid = grid_of(artifact)
        due = {q: computed(artifact, grid, q) for q in questions_of(artifact)}
        patch(monkeypatch)
        for engine in engines:
            shares = [relative(computed(artifact, grid, q), due[q], q.hidden(grid)) for q in due if q.engine == engine]
            assert max(shares) > LIMITS[engine], shares


def test_no_answer_is_off_by_nothing() -> None:
    one: Float32Array = np.ones((2, 2), np.float32)
    assert relative(one, one, 0 * one) == 0
    assert relative(2 * one, one, 0 * one) == 1
