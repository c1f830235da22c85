"""Pictures of plans in time: where the cut lies, what each engine does when, who meets which deadline.

Each function takes plain values, writes an SVG and a PNG into a folder that exists, and returns both paths. An engine
and a configuration have one colour each in all of them. All raise ValueError where there is nothing to draw, HvdcError
where matplotlib is missing, and OSError where a file cannot be written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdc.figures import (
    BLACK,
    BLUE,
    FAINT,
    GREEN,
    ON_WHITE,
    ORANGE,
    PHONE_WIDTH_IN,
    PURPLE,
    QUIET,
    SKY,
    VERMILION,
    house_style,
    new_figure,
    save,
)
from hvdc.plan.placement import HOUR_S
from hvdc.plan.results import Span

Paths = tuple[Path, Path]

ENGINE_COLOUR = {"gpu": VERMILION, "npu": BLUE}
LANES = {"GPU": (1, VERMILION, "white"), "NPU": (0, BLUE, "white"), "decode": (0, SKY, BLACK)}
"""Of a `Span`: the row that it is drawn in, its colour, and that of what is written on it. A handoff is no work."""
CONFIGURATION_STYLE: Mapping[str, Mapping[str, Any]] = {
    "hetero": {"color": BLACK, "marker": "o", "linewidth": 2.6, "zorder": 5},
    "dp": {"color": GREEN, "marker": "s", "linestyle": (0, (5, 1.5)), "zorder": 4},
    "npu": {"color": BLUE, "marker": "^", "zorder": 3},
    "gpu": {"color": VERMILION, "marker": "v", "linestyle": (0, (1, 1)), "zorder": 2},
    "hetero, replan": {"color": ORANGE, "marker": "P", "zorder": 6},
    "hetero, adaptive": {"color": SKY, "marker": "X", "zorder": 7},
    "hetero, on-demand": {"color": "#661100", "marker": "h", "linestyle": ":", "zorder": 7},
    "hetero, deadline": {"color": "#882255", "marker": "*", "linestyle": "--", "zorder": 8},
    "hetero-tensor": {"color": PURPLE, "marker": "D", "linestyle": (0, (4, 1.5, 1, 1.5)), "zorder": 2},
}


def draw_cut(
    gpu_stage_s: Sequence[float],
    npu_stage_s: Sequence[float],
    cut: int,
    folder: Path,
    *,
    layers: int,
    expert_switch: int | None = None,
    marks: Mapping[int, str] | None = None,
) -> Paths:
    """``cut.svg``, ``cut.png``: both stages and the period over the cut.

    ``gpu_stage_s[k]``, ``npu_stage_s[k]``: seconds per video of each engine when the cut is k, for every k from 0 to
    the number of block executions; ``layers`` of these are a step. ``expert_switch``: κ·L. ``marks``: other cuts to
    point at, with what is said of them.
    """
    executions = len(gpu_stage_s) - 1
    if len(npu_stage_s) != executions + 1 or not 0 <= cut <= executions or executions < 1:
        raise ValueError(f"{len(gpu_stage_s)} and {len(npu_stage_s)} stages, cut {cut}")
    period = [max(pair) for pair in zip(gpu_stage_s, npu_stage_s, strict=True)]
    right = min(executions, max(2 * cut, layers, 4, *(marks or {})))
    unit = _unit(period[cut])
    shown = range(right + 1)
    highest = [2.4 * max(period[cut], npu_stage_s[0]), *(1.3 * period[k] for k in marks or {})]
    top = unit.of(min(1.04 * max(period[k] for k in shown), max(highest)))
    with house_style():
        figure = new_figure(PHONE_WIDTH_IN, 3.8)
        axes = figure.subplots()
        axes.set_xlim(0, right)
        axes.set_ylim(0, top)
        for boundary in range(layers, right, layers):
            axes.axvline(boundary, color=FAINT, linewidth=0.9, zorder=0)
        lines = "lines: ends of steps"
        if expert_switch is not None and expert_switch < right:
            axes.axvline(expert_switch, color=QUIET, linewidth=1.2, linestyle=(0, (2, 2)), zorder=1)
            lines += "; dashed: the detail expert begins"
        axes.plot(shown, [unit.of(period[k]) for k in shown], color=FAINT, linewidth=8, zorder=1)
        for engine, stage in (("gpu", gpu_stage_s), ("npu", npu_stage_s)):
            axes.plot(shown, [unit.of(stage[k]) for k in shown], color=ENGINE_COLOUR[engine], zorder=2)
        for n, (k, text) in enumerate(sorted((marks or {}).items())):
            _mark(axes, k, unit.of(period[k]), text, top * (0.97 - 0.105 * (len(marks or {}) - 1 - n)))
        axes.plot(cut, unit.of(period[cut]), "o", color=BLACK, markersize=8, zorder=4)
        axes.annotate(f"cut {cut}\n{unit.text(period[cut])} a video", (cut, unit.of(period[cut])),
                      xytext=(8, -52), textcoords="offset points", ha="left", va="top", fontweight="bold", zorder=5,
                      bbox=ON_WHITE, arrowprops={"arrowstyle": "-", "shrinkB": 4, "relpos": (0, 1)})  # fmt: skip
        low = max(k for k in shown if unit.of(gpu_stage_s[k]) <= (0.3 if cut > right / 6 else 0.9) * top)
        _label_line(axes, "GPU", low, unit.of(gpu_stage_s[low]), VERMILION, offset=(7, 0), ha="left", va="top")
        high = max(k for k in shown if k == cut or (k > cut and unit.of(period[k]) <= 0.62 * top))
        axes.annotate("period", (high, unit.of(period[high])), xytext=(7, -3), textcoords="offset points", fontsize=8,
                      color=QUIET, va="top", bbox=ON_WHITE)  # fmt: skip
        beneath = right / 5 if cut > right / 6 else right * 0.95  # the line falls: text that ends here is clear of it
        y = unit.of(npu_stage_s[math.ceil(beneath)])
        _label_line(axes, "NPU and\ndecoder", beneath, y, BLUE, offset=(0, -4), ha="right", va="top")
        axes.set_xlabel(f"cut: blocks of a video that the GPU executes, of {executions}\n({lines})")
        axes.set_ylabel(f"{unit.name} per video")
    return save(figure, folder, "cut", about=f"Period over the cut; the best cut is {cut}.")


def draw_waits(gpu_idle_s: Sequence[float], npu_idle_s: Sequence[float], cut: int, folder: Path) -> Paths:
    """``cut.svg``, ``cut.png`` where no stage is known: for how many seconds of each period an engine waits, for every
    cut from 0 on."""
    if len(gpu_idle_s) != len(npu_idle_s) or not 0 <= cut < len(gpu_idle_s):
        raise ValueError(f"{len(gpu_idle_s)} and {len(npu_idle_s)} waits, cut {cut}")
    right = min(len(gpu_idle_s) - 1, max(2 * cut, 1))
    shown = range(right + 1)
    with house_style():
        figure = new_figure(PHONE_WIDTH_IN, 3.2)
        axes = figure.subplots()
        for colour, waits in ((VERMILION, gpu_idle_s), (BLUE, npu_idle_s)):
            axes.plot(shown, [waits[k] for k in shown], color=colour)
        axes.plot(cut, max(gpu_idle_s[cut], npu_idle_s[cut]), "o", color=BLACK, markersize=8, zorder=4)
        axes.annotate(f"cut {cut}", (cut, max(gpu_idle_s[cut], npu_idle_s[cut])), xytext=(0, 44),
                      textcoords="offset points", ha="center", fontweight="bold")  # fmt: skip
        axes.set_xlim(0, right)
        axes.set_ylim(0, None)
        low, high = right // 5, right - right // 5
        _label_line(axes, "GPU waits", low, gpu_idle_s[low], VERMILION, offset=(7, 0), ha="left", va="bottom")
        _label_line(axes, "NPU waits", high, npu_idle_s[high], BLUE, offset=(-7, 0), ha="right", va="bottom")
        axes.set_xlabel(f"cut: blocks of a video that the GPU executes, of {len(gpu_idle_s) - 1}")
        axes.set_ylabel("seconds per video")
    return save(figure, folder, "cut", about=f"Idle engines over the cut; the best cut is {cut}.")


@dataclass(frozen=True)
class _Unit:
    """Of time: whichever reads well."""

    name: str
    short: str
    seconds: float
    digits: int

    def of(self, value_s: float) -> float:
        return value_s / self.seconds

    def text(self, value_s: float) -> str:
        return f"{value_s / self.seconds:,.{self.digits}f} {self.short}"


def _unit(value_s: float) -> _Unit:
    if value_s < 1:
        return _Unit("milliseconds", "ms", 1e-3, 2 if value_s < 0.01 else 0)
    if value_s < HOUR_S:
        return _Unit("seconds", "s", 1.0, 2 if value_s < 10 else 0)
    return _Unit("minutes", "min", 60.0, 0) if value_s < 10 * HOUR_S else _Unit("hours", "h", HOUR_S, 1)


def draw_gantt(spans: Mapping[str, Sequence[Span]], end_s: float, folder: Path) -> Paths:
    """``gantt.svg``, ``gantt.png``: what each engine does until ``end_s``, from 0 s on.

    ``spans``: configuration -> what its lanes do, in any order; a panel for each, all over one axis of time.
    """
    work = {name: [s for s in lanes if s.lane in LANES and s.start_s < end_s] for name, lanes in spans.items()}
    if not any(work.values()):
        raise ValueError("there is nothing to draw")
    unit = _unit(end_s)
    with house_style():
        figure = new_figure(PHONE_WIDTH_IN, 0.65 + 0.92 * len(spans))
        panels = figure.subplots(len(spans), 1, sharex=True, squeeze=False)[:, 0]
        for panel, (name, of_name) in zip(panels, work.items(), strict=True):
            for span in of_name:
                _span(panel, span, unit, end_s)
            panel.set_title(name, fontsize=9, pad=3)
            panel.set_ylim(-0.5, 1.5)
            panel.set_xlim(0, unit.of(end_s))
            panel.set_yticks([1, 0], ["GPU", "NPU"])
            for label, colour in zip(panel.get_yticklabels(), (VERMILION, BLUE), strict=True):
                label.set(color=colour, fontweight="bold")
            for row in (0, 1):
                if not any(LANES[span.lane][0] == row for span in of_name):
                    panel.annotate("idle", (0, row), xytext=(4, 0), textcoords="offset points", va="center",
                                   color=QUIET)  # fmt: skip
            panel.tick_params(axis="y", length=0)
            panel.spines["left"].set_visible(False)
            panel.grid(axis="x")
        panels[-1].set_xlabel(f"{unit.name} since the first block\n(numbers: videos; light blue: the decoder)")
    return save(figure, folder, "gantt", about=f"Work of both engines in the first {unit.text(end_s)}.")


def _span(panel: Any, span: Span, unit: _Unit, end_s: float) -> None:
    start, width = unit.of(span.start_s), unit.of(min(span.end_s, end_s) - span.start_s)
    row, colour, ink = LANES[span.lane]
    panel.barh(row, width, left=start, height=0.78, color=colour, edgecolor="white", linewidth=1.0)
    if width > unit.of(end_s) / 24:
        panel.text(start + width / 2, row, f"{span.video + 1}", ha="center", va="center_baseline", fontsize=8.5,
                   fontweight="bold", color=ink)  # fmt: skip


def draw_deadlines(
    factors: Sequence[float],
    compliant_per_hour: Mapping[str, Sequence[float]],
    folder: Path,
    *,
    unit_s: float,
    unit_is: str = "a video on the NPU alone",
    name: str = "deadlines",
) -> Paths:
    """``<name>.svg``, ``<name>.png``: videos per hour that meet their deadline.

    ``factors``: deadlines as multiples of ``unit_s`` seconds, rising; ``unit_is`` says what those are.
    ``compliant_per_hour``: configuration -> as many values, NaN where one was not simulated.
    """
    if not factors or not compliant_per_hour or any(len(v) != len(factors) for v in compliant_per_hour.values()):
        raise ValueError("a value for each factor of each configuration is needed")
    with house_style():
        figure = new_figure(PHONE_WIDTH_IN, 3.4)
        axes = figure.subplots()
        for configuration, values in compliant_per_hour.items():
            axes.plot(factors, values, markersize=5, markeredgecolor="white", markeredgewidth=0.7,
                      drawstyle="steps-post", **_style(configuration))  # fmt: skip
        most = max(v for values in compliant_per_hour.values() for v in values)
        axes.set_ylim(0, 1.08 * most if most > 0 else 1)
        _label_ends(axes, factors[-1], compliant_per_hour, least_gap=0.065 * 1.08 * most)
        axes.set_xticks(list(factors) if len(factors) <= 8 else list(factors)[::2])
        axes.set_xlabel(f"deadline, in multiples of {unit_s:,.0f} s\n({unit_is})")
        axes.set_title("videos per hour within the deadline", fontsize=9, fontweight="normal", color=QUIET)
        axes.grid(axis="y")
    return save(figure, folder, name, about="Videos per hour that meet the deadline, over the deadline.")


def _label_ends(axes: Any, x: float, lines: Mapping[str, Sequence[float]], least_gap: float) -> None:
    """The lines' names to the right of their last points, moved apart where these are close."""
    order = sorted(lines, key=lambda name: lines[name][-1])
    for name, y in zip(order, _apart([lines[name][-1] for name in order], least_gap), strict=True):
        axes.annotate(f"{name} {lines[name][-1]:.1f}", (x, y), xytext=(8, 0), textcoords="offset points", va="center",
                      fontsize=8.5, fontweight="bold", color=_ink(_style(name)["color"]),
                      annotation_clip=False)  # fmt: skip


def _apart(rising: Sequence[float], least_gap: float) -> list[float]:
    """The heights nearest to ``rising`` ones that keep a distance: neighbours that are too close share their middle."""
    groups: list[list[float]] = []  # of heights less the distances below them, which then only have to rise
    for n, height in enumerate(rising):
        groups.append([height - n * least_gap])
        while len(groups) > 1 and _mean(groups[-2]) > _mean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    flat = [_mean(group) for group in groups for _ in group]
    return [height + n * least_gap for n, height in enumerate(flat)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _style(configuration: str) -> Mapping[str, Any]:
    return CONFIGURATION_STYLE.get(configuration, {"color": ORANGE, "marker": "x"})


def _ink(colour: str) -> str:
    """A colour dark enough to write with."""
    return "#" + "".join(f"{int(int(colour[n : n + 2], 16) * 0.78):02X}" for n in (1, 3, 5))


@dataclass(frozen=True)
class Change:
    """A case, and its value before and after."""

    name: str
    before: float
    after: float


def draw_changes(changes: Sequence[Change], before: str, after: str, axis: str, folder: Path, name: str) -> Paths:
    """``<name>.svg``, ``<name>.png``: what a change gains in each case; ``before`` and ``after`` name the two values,
    ``axis`` says what they are and in which unit."""
    if not changes or any(c.before <= 0 for c in changes):
        raise ValueError("cases with values above 0 are needed")
    values = [value for c in changes for value in (c.before, c.after)]
    room = 0.22 * (max(values) - min(values) or max(values))
    with house_style():
        figure = new_figure(PHONE_WIDTH_IN, 1.25 + 0.46 * len(changes))
        axes = figure.subplots()
        for row, change in enumerate(changes):
            axes.plot([change.before, change.after], [row, row], color=FAINT, linewidth=4, zorder=1)
            axes.plot(change.before, row, "o", color=BLACK, markersize=7, zorder=2)
            axes.plot(change.after, row, "D", color=GREEN, markersize=5, zorder=3)
            percent = 100 * (change.after / change.before - 1)
            text = "±0 %" if abs(percent) < 0.05 else f"{percent:+.1f} %".replace("-", "−")
            axes.annotate(text, (max(change.before, change.after), row), xytext=(8, 0), textcoords="offset points",
                          va="center", fontsize=8.5, fontweight="bold", color=_ink(GREEN))  # fmt: skip
            axes.annotate(change.name, (0, row - 0.27), xycoords=("axes fraction", "data"), va="bottom")
        axes.plot([], [], "o", color=BLACK, label=before)
        axes.plot([], [], "D", color=GREEN, markersize=5, label=after)
        axes.set_xlim(min(values) - room / 2, max(values) + room)
        axes.set_ylim(len(changes) - 0.4, -0.85)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        axes.set_xlabel(axis)
        figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=8.5, handletextpad=0.2, borderpad=0)
    return save(figure, folder, name, about=f"{axis}: {before} against {after}.")


def _mark(axes: Any, k: int, y: float, text: str, text_y: float) -> None:
    """A cut that was not chosen: a ring on the period, and what is said of it to the left, at the end of a line."""
    axes.plot([k, k], [y, text_y], color=QUIET, linewidth=0.8, zorder=2)
    axes.plot(k, y, "o", color="white", markeredgecolor=BLACK, markersize=5.5, zorder=3)
    axes.annotate(text, (k, text_y), xytext=(-3, 0), textcoords="offset points", fontsize=8, color=QUIET, ha="right",
                  va="top", linespacing=1.1)  # fmt: skip


def _label_line(
    axes: Any, text: str, x: float, y: float, colour: str, *, offset: tuple[float, float], **how: Any
) -> None:
    """A line's name beside one of its points, in its colour."""
    axes.annotate(text, (x, y), xytext=offset, textcoords="offset points", color=colour, fontweight="bold", **how)
