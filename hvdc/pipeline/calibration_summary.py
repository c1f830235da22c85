"""What a person should know about a calibration: the channels that set scales, large outputs, silent inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hvdc.pipeline.calibration_file import Calibrated
from quant.calibration.modes import DEFAULT_PERCENTILE, Mode, activation_scales, all_zero
from quant.calibration.outliers import LargeOutput, Outlier, large_outputs, outliers
from quant.calibration.statistics import Statistics
from quant.gemms import FP16_WARNING

WARNED_ABOVE = FP16_WARNING
"""``large_outputs`` are above this."""


@dataclass(frozen=True)
class Summary:
    """Each list with the worst first."""

    statistics: Statistics
    outliers: list[Outlier]
    large_outputs: list[LargeOutput]
    all_zero: list[tuple[int, int, str]]
    """(step, block, GEMM input)"""

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "gemm_inputs": len(self.statistics.inputs),
            "absmax": {
                i.name: self.statistics.channel_absmax[i.name].max(axis=-1).astype(float).tolist()
                for i in self.statistics.inputs
            },
            # JSON has no infinity: null where most channels are silent
            "outliers": [o.__dict__ | {"ratio": o.ratio if math.isfinite(o.ratio) else None} for o in self.outliers],
            "large_outputs": [o.__dict__ | {"engine": o.engine} for o in self.large_outputs],
            "all_zero": [{"step": step, "block": block, "input": name} for step, block, name in self.all_zero],
        }


def summarize(calibrated: Calibrated, mode: Mode = "per-step", percentile: float = DEFAULT_PERCENTILE) -> Summary:
    """With the scales of a mode."""
    statistics, steps = calibrated.statistics, calibrated.provenance.steps
    scales = activation_scales(statistics, steps, mode, percentile)
    return Summary(
        statistics, outliers(statistics, steps, scales), large_outputs(statistics), all_zero(statistics, steps)
    )
