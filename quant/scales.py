"""Activation scales as a table: one FP32 number for each step, block and GEMM input."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

ABSENT = np.float32(0.0)
"""In place of a scale where the input does not exist: an adapter's hidden in a semantic step."""


@dataclass(frozen=True)
class Scales:
    """``table`` float32 ``[steps, layers, inputs]``; ``inputs`` names its last axis."""

    table: npt.NDArray[np.float32]
    inputs: tuple[str, ...]
    _column: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_column", {name: i for i, name in enumerate(self.inputs)})

    def of(self, step: int, block: int, name: str) -> float:
        """One scale. Raises KeyError for an input that this table does not have at that step."""
        value = self.table[step, block, self._column[name]]
        if value == ABSENT:
            raise KeyError(f"{name} has no scale at step {step}: it does not exist there")
        return float(value)
