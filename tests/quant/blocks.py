"""Block executions that the paths of both engines are tested at."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from exporters.model import TINY
from quant.paths.arithmetic import At
from quant.paths.weights import Weights
from tests.exporters.models import Values
from tests.quant import oracle
from tests.quant.oracle import Model

GRIDS = [(2, 3, 4), (1, 4, 8), (3, 3, 6), (2, 6, 6)]
"""24, 32, 54 and 72 tokens."""
PLACES = [At(1, 0, "semantic"), At(4, 1, "detail")]

FLOAT_BOUND = 4e-6
"""Of the largest magnitude. Norms, modulation, RoPE and GELU of 256 channels in FP32 against float64, from the same
inputs: a handful of roundings of 2^-24, and torch's tanh."""


def hidden_state(m: int, seed: int = 0) -> Tensor:
    """As between blocks: some channels much larger than the others."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((m, TINY.width)) * rng.lognormal(0, 0.7, TINY.width)
    return torch.from_numpy(x.astype(np.float32))


def model_of(tensors: Values, weights: Weights, at: At, grid: tuple[int, int, int]) -> Model:
    adaln = weights.source.tables.adaln[at.step, at.block]
    return Model(dict(oracle.local(tensors, at.block)), adaln, at.expert == "detail", grid)
