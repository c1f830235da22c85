"""Pictures of plans: what is drawn is what was computed. Text is read from the SVG, positions from the figure."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdc.plan import plots
from hvdc.plan.plots import Change, draw_changes, draw_cut, draw_deadlines, draw_gantt, draw_waits
from hvdc.plan.results import Span
from tests.drawn import figures_of

GPU = [10.0 * k for k in range(7)]
NPU = [30.0 + 5.0 * (6 - k) for k in range(7)]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return figures_of(plots, monkeypatch)


def words(svg: Path) -> list[str]:
    root = ElementTree.fromstring(svg.read_text("utf-8"))  # noqa: S314  our own
    return ["".join(e.itertext()).strip() for e in root.iter("{http://www.w3.org/2000/svg}text")]


def test_the_cut_stands_at_its_period_and_both_stages_are_drawn(drawn, tmp_path: Path) -> None:
    svg, png = draw_cut(GPU, NPU, 4, tmp_path, layers=3, expert_switch=5, marks={2: "two", 6: "six"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut.png", "cut.svg"]
    axes = drawn[0].axes[0]
    curves = {line.get_color(): list(line.get_ydata()) for line in axes.lines if len(line.get_xdata()) == 7}
    assert curves[plots.ENGINE_COLOUR["gpu"]] == GPU
    assert curves[plots.ENGINE_COLOUR["npu"]] == NPU
    assert curves[plots.FAINT] == [max(pair) for pair in zip(GPU, NPU, strict=True)]
    dots = {(x.get_xdata()[0], x.get_ydata()[0]) for x in axes.lines if x.get_marker() == "o"}
    assert dots == {(4, 40.0), (2, 50.0), (6, 60.0)}
    text = words(svg)
    for expected in (
        "cut 4",
        "40 s a video",
        "GPU",
        "NPU and",
        "two",
        "six",
        "(lines: ends of steps; dashed: the detail expert begins)",
        "seconds per video",
    ):
        assert expected in text
    assert png.stat().st_size > 10_000


def test_bounds_of_steps_are_lines(drawn, tmp_path: Path) -> None:
    draw_cut(GPU, NPU, 4, tmp_path, layers=2)
    upright = [x.get_xdata()[0] for x in drawn[0].axes[0].lines if list(x.get_ydata()) == [0, 1]]
    assert upright == [2, 4]


@pytest.mark.parametrize(("gpu", "npu", "cut"), [([], [], 0), ([0.0], [1.0], 0), (GPU, NPU[1:], 1), (GPU, NPU, 7)])
def test_stages_that_do_not_fit_are_refused(gpu: list[float], npu: list[float], cut: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stages"):
        draw_cut(gpu, npu, cut, tmp_path, layers=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("gpu_s", "npu_s", "decode_s", "executions", "cut", "said"),
    [
        (1.0, 2.0, 0.0, 1, 0, "2.00 s a video"),
        (1.0, 2.0, 0.0, 1, 1, "1.00 s a video"),
        (1e-6, 1e-4, 0.0, 24, 24, "0.02 ms a video"),
        (1e-3, 1e-3, 1e-3, 24, 12, "13 ms a video"),
        (600.0, 30.0, 900.0, 180, 10, "100 min a video"),
        (9e9, 1.0, 0.0, 180, 0, "180 s a video"),
    ],
)
def test_rates_of_any_size_and_cuts_at_the_ends(
    gpu_s: float, npu_s: float, decode_s: float, executions: int, cut: int, said: str, tmp_path: Path
) -> None:
    every = range(executions + 1)
    npu = [(executions - k) * npu_s + decode_s for k in every]
    svg, _ = draw_cut([k * gpu_s for k in every], npu, cut, tmp_path, layers=max(executions // 6, 1), expert_switch=cut)
    assert {f"cut {cut}", said} <= set(words(svg))


def test_waits_where_no_stage_is_known(drawn, tmp_path: Path) -> None:
    svg, _ = draw_waits([30.0, 10.0, 0.0, 0.0], [0.0, 0.0, 10.0, 30.0], 1, tmp_path)
    curves = [list(line.get_ydata()) for line in drawn[0].axes[0].lines if len(line.get_xdata()) > 1]
    assert curves == [[30.0, 10.0, 0.0], [0.0, 0.0, 10.0]], "to twice the cut"
    assert {"cut 1", "GPU waits", "NPU waits"} <= set(words(svg))
    with pytest.raises(ValueError, match="waits"):
        draw_waits([1.0], [1.0], 1, tmp_path)


def test_changes_with_their_gain(drawn, tmp_path: Path) -> None:
    cases = [Change("more", 4.0, 5.0), Change("less", 4.0, 3.0), Change("level", 4.0, 4.0)]
    svg, _ = draw_changes(cases, "fixed", "anew", "videos per hour", tmp_path, "gains")
    assert svg.name == "gains.svg"
    dots = [(x.get_marker(), list(x.get_xydata()[0])) for x in drawn[0].axes[0].lines if len(x.get_xdata()) == 1]
    assert dots == [("o", [4, 0]), ("D", [5, 0]), ("o", [4, 1]), ("D", [3, 1]), ("o", [4, 2]), ("D", [4, 2])]
    assert {"more", "+25.0 %", "less", "−25.0 %", "level", "±0 %", "fixed", "anew", "videos per hour"} <= set(
        words(svg)
    )
    for wrong in ([], [Change("none", 0.0, 1.0)]):
        with pytest.raises(ValueError, match="above 0"):
            draw_changes(wrong, "fixed", "anew", "", tmp_path, "none")


SPANS = [
    Span("GPU", 0, 0, 60),
    Span("GPU", 1, 60, 120),
    Span("handoff", 0, 60, 61),
    Span("NPU", 0, 61, 90),
    Span("decode", 0, 90, 120),
    Span("NPU", 1, 120, 150),
    Span("GPU", 2, 120, 900),
]


def test_every_span_is_a_bar_at_its_time_until_the_end(drawn, tmp_path: Path) -> None:
    svg, _ = draw_gantt({"hetero": SPANS, "npu": SPANS[3:5]}, 150, tmp_path)
    upper, lower = drawn[0].axes
    bars = {(b.get_x(), round(b.get_x() + b.get_width(), 9), b.get_y() > 0) for b in upper.patches}
    assert bars == {
        (0, 60, True),
        (60, 120, True),
        (61, 90, False),
        (90, 120, False),
        (120, 150, False),
        (120, 150, True),
    }
    assert upper.get_xlim() == lower.get_xlim() == (0, 150)
    text = words(svg)
    assert text.count("idle") == 1, "the second panel's GPU"
    assert {"hetero", "npu", "GPU", "NPU", "1", "2"} < set(text)


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing"):
        draw_gantt({"hetero": []}, 1.0, tmp_path)
    with pytest.raises(ValueError, match="nothing"):
        draw_gantt({"hetero": SPANS}, 0.0, tmp_path)
    for lines in ({}, {"npu": [1.0]}):
        with pytest.raises(ValueError, match="each factor"):
            draw_deadlines([1.0, 2.0], lines, tmp_path, unit_s=1.0)
    assert list(tmp_path.iterdir()) == []


def test_every_configuration_is_a_line_with_its_name_and_last_value(drawn, tmp_path: Path) -> None:
    lines = {"hetero": [16.4, 16.4], "npu": [10.9, 10.9], "hetero-tensor": [10.7, 10.7], "gpu": [0.0, 5.2]}
    svg, _ = draw_deadlines([2.0, 3.0], lines, tmp_path, unit_s=329.3)
    axes = drawn[0].axes[0]
    assert [list(line.get_ydata()) for line in axes.lines] == list(lines.values())
    assert len({line.get_color() for line in axes.lines}) == len({line.get_marker() for line in axes.lines}) == 4
    assert {"hetero 16.4", "npu 10.9", "hetero-tensor 10.7", "gpu 5.2"} <= set(words(svg))
    assert any("329 s" in word for word in words(svg))


def test_no_compliant_video_at_all_is_drawn_too(tmp_path: Path) -> None:
    assert "gpu 0.0" in words(draw_deadlines([1.0], {"gpu": [0.0]}, tmp_path, unit_s=1.0)[0])


@given(st.lists(st.floats(0, 100), max_size=12).map(sorted), st.floats(0.01, 20))
def test_labels_keep_their_distance_and_stay_where_there_is_room(heights: list[float], gap: float) -> None:
    placed = plots._apart(heights, gap)
    assert all(b - a >= gap - 1e-6 for a, b in itertools.pairwise(placed))
    if all(b - a >= gap for a, b in itertools.pairwise(heights)):
        assert placed == pytest.approx(heights)
    assert sum(placed) == pytest.approx(sum(heights)), "neighbours share their middle"


def test_planning_does_not_import_what_draws() -> None:
    script = "import sys; import hvdc.plan.plots; print([m for m in ('matplotlib', 'torch') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"
