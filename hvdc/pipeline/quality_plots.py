"""The figures of an evaluation."""

from __future__ import annotations

from pathlib import Path

from hvdc.pipeline.evaluate import Evaluation
from hvdc.pipeline.plots import absmax_heat_map, error_along_trajectory, histograms


def draw(evaluation: Evaluation, folder: Path) -> tuple[Path, ...]:
    """Write the figures that the evaluation has data for into a prepared folder; returns their paths."""
    curves = {
        row.path: row.curve.sqnr_db for row in evaluation.rows if row.curve is not None and row.curve.failed is None
    }
    written = []
    if curves:
        written.append(folder / "error.png")
        error_along_trajectory(curves, evaluation.steps, evaluation.layers, written[0])
    if evaluation.calibrated is not None:
        statistics = evaluation.calibrated.statistics
        names = [i.name for i in statistics.inputs]
        written.append(folder / "absmax.png")
        absmax_heat_map(statistics.absmax, names, written[-1])
        for mode, scales in evaluation.scales.items():
            written.append(folder / f"histograms-{mode}.png")
            histograms(statistics.histogram, scales.table, names, written[-1])
    return tuple(written)
