"""Pictures of what is held in memory."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdc.figures import (
    BLACK,
    BLUE,
    GREEN,
    ON_WHITE,
    ORANGE,
    PHONE_WIDTH_IN,
    PURPLE,
    QUIET,
    SKY,
    house_style,
    new_figure,
    save,
)
from hvdc.plan.memory import GIB

PART_COLOURS = ("#4D4D4D", ORANGE, SKY, PURPLE, GREEN, BLUE)


@dataclass(frozen=True)
class Bar:
    """A configuration's memory in bytes, part by part; parts are named by the key. ``beside``: what comes on top, and
    is not in the figure that is written at the bar. ``mapped``: what one NPU session maps of it."""

    name: str
    parts: Mapping[str, int]
    beside: Mapping[str, int] = field(default_factory=dict)
    mapped: int | None = None


def draw_memory(
    bars: Sequence[Bar], usable_bytes: int, mapping_budget_bytes: int, folder: Path, name: str = "memory"
) -> tuple[Path, Path]:
    """``<name>.svg``, ``<name>.png``: what each configuration holds, part by part, against what a phone can use; and
    how much of it an NPU session maps, against what it can.

    Raises:
        ValueError: no configuration.
        HvdcError: matplotlib is not installed.
        OSError: a file cannot be written.
    """
    if not bars:
        raise ValueError("there is nothing to draw")
    parts = list(dict.fromkeys(part for bar in bars for part in bar.parts))
    parts += [part for part in dict.fromkeys(part for bar in bars for part in bar.beside) if part not in parts]
    colours = {part: PART_COLOURS[n % len(PART_COLOURS)] for n, part in enumerate(parts)}
    most = max([usable_bytes, *(sum(bar.parts.values()) + sum(bar.beside.values()) for bar in bars)])
    with house_style():
        figure = new_figure(PHONE_WIDTH_IN, 1.5 + 0.46 * len(bars))
        axes = figure.subplots()
        for row, bar in enumerate(bars):
            _bar(axes, row, bar, colours)
        _limit(axes, mapping_budget_bytes, f"◇ one NPU session maps\n{mapping_budget_bytes / GIB:.4g} GiB at most", 4)
        _limit(axes, usable_bytes, f"the phone has\n{usable_bytes / GIB:.4g} GiB", -4)
        axes.set_xlim(0, 1.04 * most / GIB)
        axes.set_ylim(len(bars) + 0.1, -0.75)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("GiB")
        _key(figure, colours)
    return save(figure, folder, name, about="Memory of each configuration against the target's limits.")


_MAPPED = {"linestyle": "", "marker": "D", "markersize": 5.5, "markerfacecolor": "white", "markeredgecolor": BLACK}


def _bar(axes: Any, row: int, bar: Bar, colours: Mapping[str, str]) -> None:
    left = 0.0
    for part, bytes_ in (*bar.parts.items(), *bar.beside.items()):
        axes.barh(row, bytes_ / GIB, left=left, height=0.42, color=colours[part], edgecolor="white", linewidth=0.6)
        left += bytes_ / GIB
    if bar.mapped is not None:
        axes.plot(bar.mapped / GIB, row, clip_on=False, **_MAPPED)
    beside = f" + {sum(bar.beside.values()) / GIB:.2f}" if bar.beside else ""
    axes.annotate(bar.name, (0, row - 0.24), xytext=(0, 1.5), textcoords="offset points", va="bottom",
                  bbox=ON_WHITE)  # fmt: skip
    axes.annotate(f"{sum(bar.parts.values()) / GIB:.2f}{beside}", (left, row), xytext=(5, 0),
                  textcoords="offset points", va="center", fontweight="bold", bbox=ON_WHITE)  # fmt: skip


def _limit(axes: Any, bytes_: int, text: str, offset: int) -> None:
    axes.axvline(bytes_ / GIB, color=BLACK, linewidth=1.2, linestyle=(0, (3, 2)), zorder=0)
    axes.annotate(text, (bytes_ / GIB, 0), xycoords=("data", "axes fraction"), xytext=(offset, 6), fontsize=8,
                  textcoords="offset points", ha="right" if offset < 0 else "left", color=QUIET)  # fmt: skip


def _key(figure: Any, colours: Mapping[str, str], columns: int = 4) -> None:
    """What colours mean, above a picture, in rows. (A legend fills its columns first.)"""
    patch = importlib.import_module("matplotlib.patches").Patch
    names = list(colours)
    order = [name for column in range(columns) for name in names[column::columns]]
    figure.legend(
        handles=[patch(color=colours[name]) for name in order], labels=order, loc="outside upper left", ncols=columns,
        frameon=False, fontsize=8.5, handlelength=0.9, handletextpad=0.4, columnspacing=1.0, borderpad=0,
    )  # fmt: skip
