"""How every picture of hvdc looks and is written: colours, type sizes, and files that are whole and the same again.

Needs matplotlib, which is imported when something is drawn; no state of pyplot is touched, and whatever a
``matplotlibrc`` of the user says has no effect.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hvdc.errors import HvdcError, UsageError
from hvdc.files import replace_file

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which colour-blind people tell apart, without their yellow; dashes tell more lines apart."""
DASHES = ("-", "--", ":", "-.")
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK = COLOURS
QUIET, FAINT = "#555555", "#DDDDDD"
"""Of text beside the matter, and of lines behind it."""

ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
"""Behind text that lines would cross."""

PHONE_WIDTH_IN = 4.2
"""A picture as wide as this keeps its type at the size of a page's text where a phone shows it from edge to edge."""

_STYLE: Mapping[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],  # the first comes with matplotlib; phones have none of them
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8.0,
    "axes.labelsize": 9.0,
    "axes.labelcolor": QUIET,
    "axes.edgecolor": "#999999",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",  # text stays text: it can be searched, and read aloud
    "svg.hashsalt": "hvdc",
}
_DPI = 220


def require_matplotlib() -> tuple[Any, Any]:
    """matplotlib's figures and its Agg canvas. Raises HvdcError where it is not installed."""
    try:
        return importlib.import_module("matplotlib.figure"), importlib.import_module("matplotlib.backends.backend_agg")
    except ImportError as error:
        what = "drawing needs matplotlib, which is not installed"
        raise HvdcError(what, fix="pip install 'hvdc[plot]'") from error


def prepare_folder(folder: Path) -> None:
    """Make the folder and look for matplotlib, before long work. Raises HvdcError, UsageError."""
    require_matplotlib()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            "the folder for figures cannot be made", where=str(folder), found=str(error), fix="choose another folder"
        ) from error


def new_figure(width_in: float, height_in: float) -> Any:
    """An empty figure that draws by Agg and belongs to no window. Raises HvdcError without matplotlib."""
    figure, agg = require_matplotlib()
    made = figure.Figure(figsize=(width_in, height_in), layout="constrained", facecolor="white")
    agg.FigureCanvasAgg(made)
    return made


@contextmanager
def house_style() -> Iterator[None]:
    """Draw and save within it: matplotlib's own defaults with the sizes and lines of this module on top."""
    require_matplotlib()
    matplotlib = importlib.import_module("matplotlib")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def save(figure: Any, folder: Path, name: str, *, about: str) -> tuple[Path, Path]:
    """Write ``name.svg`` and ``name.png``; returns their paths. ``about`` is the description that both files carry.

    Nothing is written before both are drawn, and each replaces an older file as a whole. The same figure makes the
    same bytes: no date, no version and no random name is in them.

    Raises:
        HvdcError: matplotlib is not installed.
        OSError: a file cannot be written; what stood there before still does.
    """
    drawn: dict[Path, bytes] = {}
    for suffix, metadata in (
        ("svg", {"Date": None, "Creator": None, "Description": about}),
        ("png", {"Software": None, "Description": about}),
    ):
        content = io.BytesIO()
        with house_style():
            figure.savefig(content, format=suffix, dpi=_DPI, metadata=metadata)
        drawn[folder / f"{name}.{suffix}"] = content.getvalue()
    for path, data in drawn.items():
        replace_file(path, data)
    svg, png = drawn
    return svg, png
