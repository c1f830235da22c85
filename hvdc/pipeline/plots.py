"""Pictures of an evaluation and of calibration statistics, as PNG. Needs matplotlib; no state of pyplot is touched."""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdc.figures import COLOURS, DASHES, new_figure
from hvdc.files import replace_file
from quant.calibration.histogram import BINS, share_below
from quant.calibration.histogram import edges as bin_edges
from quant.calibration.outliers import FEW_BITS
from quant.source import Step

__all__ = ["absmax_heat_map", "error_along_trajectory", "histograms"]

Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]

ABSENT_COLOUR = "#D9D9D9"
LARGEST_CODE = 127

_DPI = 150
_PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}


def error_along_trajectory(
    curves: Mapping[str, Sequence[float]], steps: Sequence[Step], layers: int, path: Path
) -> None:
    """The SQNR of the hidden state after each block execution, a line for each path.

    ``curves``: name of a path -> SQNR in dB of each of the ``len(steps) · layers`` block executions in order; infinite
    values (no error) and NaN leave a gap. Step boundaries are thin lines, the change of expert a thick one.

    Raises:
        ValueError: no curve or step, or a curve of another length.
        HvdcError: matplotlib is not installed.
        OSError: the picture cannot be written.
    """
    executions = len(steps) * layers
    for name, curve in curves.items():
        if len(curve) != executions:
            raise ValueError(f"{name}: {executions} values expected, {len(curve)} found")
    if not curves or not executions:
        raise ValueError("there is nothing to draw")
    figure = new_figure(10.5, 4.8)
    axes = figure.subplots()
    for i, (name, curve) in enumerate(curves.items()):
        values = np.asarray(curve, np.float64)
        finite = np.isfinite(values)
        label = name if finite.any() else f"{name} (no error)" if np.isposinf(values).all() else f"{name} (no value)"
        style: dict[str, Any] = {
            "color": COLOURS[i % len(COLOURS)],
            "linestyle": DASHES[i // len(COLOURS) % len(DASHES)],
        }
        axes.plot(np.arange(executions) + 0.5, np.where(finite, values, np.nan), label=label, linewidth=1.6, **style)
    for i in range(1, len(steps)):
        change = steps[i].expert != steps[i - 1].expert
        style = {"color": "#444444", "linewidth": 1.8} if change else {"color": "#BBBBBB", "linewidth": 0.8}
        axes.axvline(i * layers, zorder=0, **style)
    _expert_names(axes, steps, layers)
    axes.set_xlim(0, executions)
    every = math.ceil(len(steps) / 12)
    marked = range(0, len(steps), every)
    axes.set_xticks([(i + 0.5) * layers for i in marked], [f"step {i}\nt = {steps[i].timestep:g}" for i in marked])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel(f"block executions, {layers} in each step")
    axes.set_ylabel("SQNR of the hidden state (dB)")
    axes.grid(axis="y", color="#E5E5E5")
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, title="path", alignment="left")
    _save(figure, path)


def _expert_names(axes: Any, steps: Sequence[Step], layers: int) -> None:
    """The expert's name above the middle of each run of its steps."""
    start = 0
    for stop in range(1, len(steps) + 1):
        if stop == len(steps) or steps[stop].expert != steps[start].expert:
            axes.annotate(
                f"{steps[start].expert} expert",
                ((start + stop) / 2 * layers, 1.0), xycoords=("data", "axes fraction"),
                xytext=(0, 5), textcoords="offset points", ha="center", va="bottom",
            )  # fmt: skip
            start = stop


def absmax_heat_map(absmax: Float32Array, input_names: Sequence[str], path: Path) -> None:
    """The largest magnitude of each GEMM input, a panel of blocks × steps each, all in one logarithmic colour scale.

    ``absmax``: float32 ``[steps, layers, inputs]``, 0 where an input does not exist (grey).

    Raises:
        ValueError: another number of dimensions or names; a negative value, NaN or infinity.
        HvdcError: matplotlib is not installed.
        OSError: the picture cannot be written.
    """
    if absmax.ndim != 3 or absmax.shape[2] != len(input_names) or 0 in absmax.shape:
        raise ValueError(f"absmax [steps, layers, {len(input_names)}] expected, {list(absmax.shape)} found")
    if not (np.isfinite(absmax).all() and (absmax >= 0).all()):
        raise ValueError("absmax holds values that are no magnitudes")
    steps, layers, inputs = absmax.shape
    columns = min(inputs, min((4, 3), key=lambda n: -inputs % n))  # whichever leaves fewer places empty
    rows = math.ceil(inputs / columns)
    panel_height = min(2.6, max(0.55, 0.11 * steps))
    figure = new_figure(1.2 + 2.9 * columns, 1.1 + (panel_height + 0.42) * rows)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    present = absmax[absmax > 0]
    low, high = (float(present.min()), float(present.max())) if present.size else (1.0, 10.0)
    colors = importlib.import_module("matplotlib.colors")
    scale = colors.LogNorm(low, max(high, low * 10.0))
    image = None
    for n, panel in enumerate(panels.flat):
        if n >= inputs:
            panel.set_axis_off()
            continue
        panel.set_facecolor(ABSENT_COLOUR)
        values = np.ma.masked_equal(absmax[:, :, n], 0.0)
        image = panel.imshow(values, norm=scale, cmap="cividis", aspect="auto", interpolation="nearest")
        panel.set_title(input_names[n], fontsize=9, pad=3)
        panel.set_xticks(_ticks(layers, 6))
        panel.set_yticks(_ticks(steps, 3 if panel_height < 1 else 6))
        panel.tick_params(labelsize=8, labelbottom=n + columns >= inputs, labelleft=n % columns == 0)
    figure.supxlabel("block", fontsize=10)
    figure.supylabel("step", fontsize=10)
    bar = figure.colorbar(image, ax=panels, aspect=40, fraction=0.03, pad=0.01)
    bar.set_label("largest magnitude of the GEMM input (grey: does not exist)")
    _save(figure, path)


def histograms(
    histogram: Int64Array,
    scales: Float32Array,
    input_names: Sequence[str],
    path: Path,
    *,
    count: int = 6,
) -> None:
    """How magnitudes are spread against what INT8 can tell apart, for the ``count`` worst GEMM inputs.

    ``histogram``: int64 ``[steps, layers, inputs, bins]`` of `quant.calibration.histogram`; ``scales``: float32
    ``[steps, layers, inputs]``, 0 where an input does not exist. An input is shown at the step and block where
    most of its values fall below 3.5 scales: their codes have fewer than 3 bits. Marked are the clipping point, 127
    scales, and half a scale, below which a value becomes 0.

    Raises:
        ValueError: arrays that do not fit each other, or no input with values and a scale.
        HvdcError: matplotlib is not installed.
        OSError: the picture cannot be written.
    """
    if histogram.ndim != 4 or histogram.shape[:3] != scales.shape or scales.shape[2] != len(input_names):
        raise ValueError(f"histogram {list(histogram.shape)}, scales {list(scales.shape)}, {len(input_names)} inputs")
    if histogram.shape[3] != BINS:
        raise ValueError(f"a histogram of {BINS} bins expected, {histogram.shape[3]} found")
    worst = _worst(histogram, scales, count)
    if not worst:
        raise ValueError("no GEMM input has values and a scale")
    columns = min(3, len(worst))
    rows = math.ceil(len(worst) / columns)
    figure = new_figure(4.3 * columns, 3.2 * rows + 0.4)
    panels = figure.subplots(rows, columns, squeeze=False)
    for n, panel in enumerate(panels.flat):
        if n >= len(worst):
            panel.set_axis_off()
            continue
        step, block, column = worst[n]
        counts, scale = histogram[step, block, column], float(scales[step, block, column])
        _histogram(panel, counts, scale)
        panel.set_title(f"{input_names[column]}\nstep {step}, block {block}", fontsize=9)
    figure.supxlabel("magnitude", fontsize=10)
    figure.supylabel("values in a bin", fontsize=10)
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    _save(figure, path)


def _worst(histogram: Int64Array, scales: Float32Array, count: int) -> list[tuple[int, int, int]]:
    """Step, block and input of the worst place of the worst inputs, worst first."""
    total = histogram.sum(axis=3)
    below = share_below(histogram, FEW_BITS * scales.astype(np.float64))
    below[(total == 0) | (scales <= 0)] = -1.0
    places = []
    for column in range(scales.shape[2]):
        step, block = np.unravel_index(int(below[:, :, column].argmax()), below.shape[:2])
        if below[step, block, column] >= 0.0:
            places.append((float(below[step, block, column]), int(step), int(block), column))
    return [(step, block, column) for _, step, block, column in sorted(places, key=lambda p: (-p[0], p[3]))[:count]]


def _histogram(panel: Any, counts: Int64Array, scale: float) -> None:
    filled = np.flatnonzero(counts)
    clip = LARGEST_CODE * scale
    edges = bin_edges().astype(np.float64)
    lowest = max(scale * 2.0**-5, float(edges[edges > 0][0]) / 2)
    left = np.maximum(edges, lowest)
    panel.stairs(counts, left, fill=True, color=COLOURS[5], baseline=0.5)
    panel.axvspan(lowest, max(scale / 2, lowest), color="#EDEDED", zorder=0, label="becomes 0 (below half a scale)")
    panel.axvline(FEW_BITS * scale, color=COLOURS[0], linestyle=":", linewidth=1.6, label="3 bits begin (3.5 scales)")
    panel.axvline(clip, color=COLOURS[1], linestyle="--", linewidth=1.6, label="clipping point (127 scales)")
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlim(lowest, max(float(edges[filled[-1] + 1]), clip) * 1.4)
    panel.set_ylim(0.5, float(counts.max()) * 40)
    panel.tick_params(labelsize=8)
    to_zero, few_bits = (float(share_below(counts, np.array(x))) for x in (scale / 2, FEW_BITS * scale))
    clipped = float(counts[edges[:-1] >= clip].sum()) / float(counts.sum())
    text = f"{_percent(to_zero)} become 0\n{_percent(few_bits)} below 3 bits\n{_percent(clipped)} clipped"
    panel.text(0.03, 0.97, text, transform=panel.transAxes, ha="left", va="top", fontsize=8, bbox=_PAPER)


def _percent(share: float) -> str:
    """What is neither nothing nor everything does not look like it."""
    if share in (0.0, 1.0):
        return f"{100 * share:.0f} %"
    if not 1e-4 <= share <= 0.999:
        return "< 0.01 %" if share < 0.5 else "> 99.9 %"
    return f"{100 * share:.1f} %" if share >= 0.01 else f"{100 * share:.2f} %"


def _ticks(length: int, most: int) -> list[int]:
    """Round positions from 0, at most about ``most``."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if length / s <= most or s == 1000)
    return list(range(0, length, step))


def _save(figure: Any, path: Path) -> None:
    """A whole picture or none; without the version of matplotlib in it, so that the same data make the same file."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=_DPI, metadata={"Software": None})
    replace_file(path, content.getvalue())
