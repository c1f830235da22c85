"""Figures of a report as inline SVG: 340 units wide, so that a phone shows them at their own size.

Colours are classes that the page's style defines, for light and for dark. Every text goes through `Markup.format`,
which escapes it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH = 340
_TEXT = Markup('<text x="{:.1f}" y="{:.1f}" class="{}" text-anchor="{}">{}</text>')
_RECT = Markup('<rect x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" class="{}"><title>{}</title></rect>')
_LINE = Markup('<line x1="{:.2f}" y1="{:.2f}" x2="{:.2f}" y2="{:.2f}" class="{}"/>')


def embedded(svg: str) -> Markup:
    """An SVG of another tool, such as matplotlib, as an image: its ids and styles stay its own, and no script in it
    runs."""
    data = base64.b64encode(svg.encode()).decode("ascii")
    return Markup('<img alt="" src="data:image/svg+xml;base64,{}">').format(data)


@dataclass(frozen=True)
class Bar:
    """A stacked bar: parts by class of colour, what they are, and their size."""

    name: str
    parts: Sequence[tuple[str, str, float]]
    label: str

    @property
    def total(self) -> float:
        return sum(size for _, _, size in self.parts)


def bars(title: str, rows: Sequence[Bar], legend: Sequence[tuple[str, str]]) -> Markup:
    """Horizontal bars on one scale, each under its name. ``legend``: class of colour and what it stands for."""
    largest, height = max((row.total for row in rows), default=0.0) or 1.0, 34
    drawn = []
    for i, row in enumerate(rows):
        y, x = i * height, 0.0
        drawn.append(_TEXT.format(0, y + 11, "", "start", row.name))
        drawn.append(_TEXT.format(WIDTH, y + 11, "strong", "end", row.label))
        for colour, what, size in row.parts:
            wide = WIDTH * size / largest
            drawn.append(_RECT.format(x, y + 15, wide, 12, colour, f"{row.name}: {what}"))
            x += wide
    drawn += _legend(legend, 0, height * len(rows) + 4)
    return _svg(title, height * len(rows) + 20, drawn)


def _legend(entries: Sequence[tuple[str, str]], x: float, y: float) -> list[Markup]:
    drawn = []
    for colour, name in entries:
        drawn += [_RECT.format(x, y, 10, 10, colour, name), _TEXT.format(x + 14, y + 9, "", "start", name)]
        x += 26 + 6.4 * len(name)
    return drawn


@dataclass(frozen=True)
class Strip:
    """Consecutive pieces of one line: class of colour, how many units, and what is written on it."""

    name: str
    pieces: Sequence[tuple[str, int, str]]


def strips(title: str, rows: Sequence[Strip]) -> Markup:
    """Lines of pieces under each other, all of one length."""
    height, drawn = 36, []
    for i, row in enumerate(rows):
        total, y, x = sum(count for _, count, _ in row.pieces) or 1, i * height, 0.0
        drawn.append(_TEXT.format(0, y + 11, "quiet", "start", row.name))
        for colour, count, text in row.pieces:
            wide = WIDTH * count / total
            drawn.append(_RECT.format(x, y + 15, max(wide - 1, 0.5), 15, colour, text))
            if wide > 7 * len(text) + 4:
                drawn.append(_TEXT.format(x + wide / 2, y + 26.5, f"on-{colour}", "middle", text))
            x += wide
    return _svg(title, height * len(rows), drawn)


@dataclass(frozen=True)
class Curve:
    """A line over 0, 1, 2, …: class of colour, name, and a value for each."""

    colour: str
    name: str
    values: Sequence[float]


def curves(title: str, lines: Sequence[Curve], chosen: int, mark: str, x_name: str) -> Markup:
    """Lines from 0 upwards, with one place marked. The names stand in the legend below."""
    left, top, right, bottom = 42.0, 8.0, WIDTH - 6.0, 150.0
    count = max((len(line.values) for line in lines), default=0)
    high = max((value for line in lines for value in line.values), default=0.0) or 1.0
    step = _round_step(high / 4)

    def x(k: int) -> float:
        return left + (right - left) * k / max(count - 1, 1)

    def y(value: float) -> float:
        return bottom - (bottom - top) * value / high

    drawn = []
    for tick in range(int(high / step) + 1):
        drawn.append(_LINE.format(left, y(tick * step), right, y(tick * step), "grid"))
        drawn.append(_TEXT.format(left - 5, y(tick * step) + 4, "quiet", "end", f"{tick * step:,.4g}"))
    x_step = max(int(_round_step(max(count - 1, 1) / 6)), 1)
    for k in range(0, count, x_step):
        drawn.append(_TEXT.format(x(k), bottom + 15, "quiet", "middle", str(k)))
    for line in lines:
        points = " ".join(f"{x(k):.1f},{y(value):.1f}" for k, value in enumerate(line.values))
        drawn.append(Markup('<polyline points="{}" class="line-{}"/>').format(points, line.colour))
    if 0 <= chosen < count:
        longest = max(line.values[chosen] for line in lines)
        side = "end" if chosen > count / 2 else "start"
        drawn.append(_LINE.format(x(chosen), top, x(chosen), bottom, "mark"))
        drawn.append(Markup('<circle cx="{:.1f}" cy="{:.1f}" r="4" class="dot"/>').format(x(chosen), y(longest)))
        drawn.append(_TEXT.format(x(chosen) + (6 if side == "start" else -6), top + 10, "strong", side, mark))
    drawn.append(_TEXT.format(right, bottom + 29, "quiet", "end", x_name))
    drawn += _legend([(line.colour, line.name) for line in lines], left, bottom + 36)
    return _svg(title, bottom + 50, drawn)


def _round_step(least: float) -> float:
    """The next of 1, 2, 5, 10, 20, …"""
    if least <= 0 or not math.isfinite(least):
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(least))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - 1e-12))


def _svg(title: str, height: float, drawn: Sequence[Markup]) -> Markup:
    start = Markup('<svg viewBox="0 0 {} {:.0f}" role="img" aria-label="{}">').format(WIDTH, height, title)
    return start + Markup("").join(drawn) + Markup("</svg>")
