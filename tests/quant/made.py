"""Statistics of made-up tensors that are at hand, so that scales and outliers can be compared with the values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from exporters.model import TINY
from quant.calibration.statistics import Statistics, empty, from_arrays
from quant.calibration.watch import count
from quant.gemms import gemm_inputs
from tests.quant.models import schedule_for

Array = np.ndarray[Any, Any]
SHAPE = replace(TINY, width=128, heads=1, ffn_width=64, rank=2)
STEPS = schedule_for(SHAPE)
INPUTS = gemm_inputs(SHAPE)
NAMES = [i.name for i in INPUTS]
EXPERT_STEPS = {"semantic": (0, 1, 2), "detail": (3, 4, 5)}


def statistics_of(values: dict[tuple[int, int, str], Array]) -> Statistics:
    """Of whole tensors ``[m, channels]``; what is an expert's is given at its first step."""
    arrays = {name: array.copy() for name, array in empty(SHAPE, len(STEPS)).arrays().items()}
    for (step, block, name), x in values.items():
        item = INPUTS[NAMES.index(name)]
        at: Any = list(EXPERT_STEPS[STEPS[step].expert]) if item.per == "expert" else [step]
        arrays[f"channel_absmax.{name}"][at, block] = np.abs(x).max(axis=0)
        arrays["histogram"][at, block, NAMES.index(name)] = count(torch.from_numpy(x)).numpy()
    return from_arrays(SHAPE, len(STEPS), arrays)


def drawn_values(seed: int = 0) -> dict[tuple[int, int, str], Array]:
    """Heavy-tailed values at every place where there is an input, a different size at each."""
    rng = np.random.default_rng(seed)
    values = {}
    for i in INPUTS:
        for expert in i.experts:
            for step in EXPERT_STEPS[expert][: 1 if i.per == "expert" else None]:
                for block in range(SHAPE.layers):
                    x = rng.standard_t(3, (40, i.channels)) * rng.lognormal(0, 1)
                    values[step, block, i.name] = x.astype(np.float32)
    return values


VALUES = drawn_values()
STATISTICS = statistics_of(VALUES)


def of_an_expert(step: int, name: str) -> int:
    """The step whose tensor a scale is made of."""
    item = INPUTS[NAMES.index(name)]
    return EXPERT_STEPS[STEPS[step].expert][0] if item.per == "expert" else step


def absent(step: int, name: str) -> bool:
    return name.endswith("lora_hidden") and step < 3


def places() -> list[tuple[int, int, str]]:
    return [(s, b, n) for s in range(6) for b in range(SHAPE.layers) for n in NAMES if not absent(s, n)]
