"""Which channels set the scales, and what that costs the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from quant.calibration.histogram import share_below
from quant.calibration.statistics import Statistics, exists
from quant.gemms import FP16_WARNING, HIDDEN
from quant.scales import Scales
from quant.source import Step

FEW_BITS = 3.5
"""A value below 3.5 scales rounds to a code of magnitude 3 at most: fewer than 3 bits."""


@dataclass(frozen=True)
class Outlier:
    """The step of a block's GEMM input in which one channel stands out most.

    ``ratio``: the largest channel's maximum over the median channel's. ``few_bits``: share of values whose code has
    fewer than 3 bits (of the tokens that the histogram sampled).
    """

    block: int
    input: str
    step: int
    channel: int
    absmax: float
    ratio: float
    few_bits: float


@dataclass(frozen=True)
class LargeOutput:
    """A GEMM output, or a hidden state, that comes near the end of FP16."""

    step: int
    block: int
    output: str
    absmax: float

    @property
    def engine(self) -> Literal["NPU", "GPU"]:
        """The engine that keeps it in FP16: the NPU the outputs of its GEMMs, the GPU its residual stream."""
        return "GPU" if self.output == HIDDEN else "NPU"


def outliers(statistics: Statistics, steps: tuple[Step, ...], scales: Scales) -> list[Outlier]:
    """One for each block and GEMM input, the largest ratio first."""
    there = exists(statistics.inputs, steps)
    with np.errstate(invalid="ignore"):
        few = share_below(statistics.histogram, FEW_BITS * scales.table.astype(np.float64))
    found = []
    for n, i in enumerate(statistics.inputs):
        if not there[:, n].any():  # an expert that no step runs
            continue
        values = statistics.channel_absmax[i.name][there[:, n]]  # [steps, layers, channels]
        numbers = np.flatnonzero(there[:, n])
        peak, median = values.max(axis=-1), np.median(values, axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = peak / median  # infinite where most channels are silent
        ratio[peak == 0.0] = 0.0
        for block in range(values.shape[1]):
            at = int(ratio[:, block].argmax())
            step = int(numbers[at])
            found.append(
                Outlier(
                    block=block,
                    input=i.name,
                    step=step,
                    channel=int(values[at, block].argmax()),
                    absmax=float(peak[at, block]),
                    ratio=float(ratio[at, block]),
                    few_bits=float(few[step, block, n]),
                )
            )
    return sorted(found, key=lambda o: (-o.ratio, o.block, o.input))


def large_outputs(statistics: Statistics, limit: float = FP16_WARNING) -> list[LargeOutput]:
    """Outputs above ``limit``, the largest first."""
    places = np.argwhere(statistics.output_absmax > limit)
    found = [
        LargeOutput(int(s), int(b), statistics.outputs[int(o)], float(statistics.output_absmax[s, b, o]))
        for s, b, o in places
    ]
    return sorted(found, key=lambda o: -o.absmax)
