"""The figures of an evaluation."""

from __future__ import annotations

from pathlib import Path

from hvdc.errors import UsageError
from hvdc.pipeline.evaluate import Evaluation
from hvdc.pipeline.plots import absmax_heat_map, error_along_trajectory, histograms


def draw(evaluation: Evaluation, folder: Path) -> tuple[Path, ...]:
    """Write the figures that the evaluation has data for; returns their paths. Raises HvdcError, UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("the folder for figures cannot be made", where=str(folder), found=str(error)) from error
    curves = {row.path: row.curve.sqnr_db for row in evaluation.rows if row.curve is not None}
    written = [folder / "error.png"]
    error_along_trajectory(curves, evaluation.steps, evaluation.layers, written[0])
    if evaluation.calibrated is not None:
        statistics = evaluation.calibrated.statistics
        names = [i.name for i in statistics.inputs]
        written += [folder / "absmax.png", *(folder / f"histograms-{mode}.png" for mode in evaluation.scales)]
        absmax_heat_map(statistics.absmax, names, written[1])
        for mode, scales in evaluation.scales.items():
            path = folder / f"histograms-{mode}.png"
            histograms(statistics.histogram, scales.table, names, path)
    return tuple(written)
