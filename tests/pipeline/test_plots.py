"""Pictures: what is in them, read from the figure, and that a whole PNG comes out."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hvdc.errors import HvdcError
from hvdc.pipeline import plots
from hvdc.pipeline.plots import absmax_heat_map, error_along_trajectory, histograms
from quant.calibration.histogram import BINS, edges
from tests.drawn import figures_of

STEPS = [SimpleNamespace(timestep=t, step_size=-0.1, expert=e) for t, e in [(999.0, "semantic"), (500.0, "detail")]]
LAYERS = 3
NAMES = ("attn1.input", "attn1.to_q.lora_hidden")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return figures_of(plots, monkeypatch)


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and [p.name for p in path.parent.iterdir()] == [path.name]


def test_one_line_for_each_path_and_marks_for_steps_and_experts(drawn, tmp_path: Path) -> None:
    curves = {"npu": [40.0, np.inf, 38, 37, np.nan, 35], "gpu": range(30, 24, -1), "fp32": [np.inf] * 6}
    error_along_trajectory(curves, STEPS, LAYERS, tmp_path / "error.png")
    assert is_png(tmp_path / "error.png")
    axes = drawn[0].axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    assert {"npu", "gpu", "fp32 (no error)"} < set(lines)
    np.testing.assert_array_equal(lines["npu"].get_ydata(), [40, np.nan, 38, 37, np.nan, 35])
    assert [line.get_xdata()[0] for line in axes.lines if line.get_label().startswith("_")] == [3]
    assert [t.get_text() for t in axes.texts] == ["semantic expert", "detail expert"]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["step 0\nt = 999", "step 1\nt = 500"]


def test_no_two_paths_look_the_same(drawn, tmp_path: Path) -> None:
    error_along_trajectory({str(i): [1.0] * 6 for i in range(20)}, STEPS, LAYERS, tmp_path / "error.png")
    lines = [x for x in drawn[0].axes[0].lines if not x.get_label().startswith("_")]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 20


@pytest.mark.parametrize("curves", [{}, {"npu": [1.0] * 5}])
def test_curves_that_do_not_fit_are_refused(tmp_path: Path, curves) -> None:
    with pytest.raises(ValueError, match=r"nothing to draw|6 values expected"):
        error_along_trajectory(curves, STEPS, LAYERS, tmp_path / "error.png")


def test_a_panel_for_each_gemm_input(drawn, tmp_path: Path) -> None:
    absmax = np.arange(12, dtype=np.float32).reshape(2, LAYERS, 2)
    absmax[0, :, 1] = 0.0
    absmax_heat_map(absmax, NAMES, tmp_path / "heat.png")
    assert is_png(tmp_path / "heat.png")
    panels = {a.get_title(): a.images[0].get_array() for a in drawn[0].axes if a.images}
    assert list(panels) == list(NAMES)
    assert panels["attn1.to_q.lora_hidden"].mask[0].all()
    np.testing.assert_array_equal(panels["attn1.to_q.lora_hidden"][1], absmax[1, :, 1])


@pytest.mark.parametrize("value", [1.0, 0.0])
def test_one_value_alone_can_be_drawn(tmp_path: Path, value: float) -> None:
    absmax_heat_map(np.full((1, 1, 1), value, np.float32), NAMES[:1], tmp_path / "heat.png")
    assert is_png(tmp_path / "heat.png")


def test_what_is_no_magnitude_is_refused(tmp_path: Path) -> None:
    for bad in (np.full((1, 1, 2), -1.0), np.full((1, 1, 2), np.nan), np.zeros((1, 1, 3)), np.zeros((1, 2))):
        with pytest.raises(ValueError, match="absmax"):
            absmax_heat_map(bad.astype(np.float32), NAMES, tmp_path / "heat.png")


MAGNITUDES = (0.0, 1.0, 2.0, 7.5, 9.0, 16.0)


def counted(*counts: int) -> np.ndarray:
    """A histogram of so many values of each of the magnitudes."""
    histogram = np.zeros(BINS, np.int64)
    histogram[np.searchsorted(edges(), MAGNITUDES, side="right") - 1] = counts
    return histogram


def spread() -> tuple[np.ndarray, np.ndarray]:
    """Histogram and scales of two inputs; the worst place of the first is step 1, block 2."""
    histogram = np.zeros((2, LAYERS, 2, BINS), np.int64)
    histogram[:, :, 0] = counted(0, 0, 10, 20, 30, 40)
    histogram[1, 2, 0] = counted(40, 20, 20, 10, 9, 1)
    histogram[1, :, 1] = counted(0, 0, 0, 1, 1, 1)
    scales = np.full((2, LAYERS, 2), 2.0, np.float32)
    scales[0, :, 1] = 0.0
    return histogram, scales


def test_the_worst_place_of_each_input_with_its_clipping_point(drawn, tmp_path: Path) -> None:
    histogram, scales = spread()
    histograms(histogram, scales, NAMES, tmp_path / "histograms.png")
    assert is_png(tmp_path / "histograms.png")
    first, second = drawn[0].axes
    assert first.get_title() == "attn1.input\nstep 1, block 2"
    assert second.get_title() == "attn1.to_q.lora_hidden\nstep 1, block 0"
    places = {line.get_label(): line.get_xdata()[0] for line in first.lines}
    assert places == {"3 bits begin (3.5 scales)": 7.0, "clipping point (127 scales)": 254.0}
    assert first.texts[0].get_text() == "40.0 % become 0\n80.0 % below 3 bits\n0 % clipped"
    assert (first.get_xscale(), first.get_yscale()) == ("log", "log")


def test_clipped_values_are_counted(drawn, tmp_path: Path) -> None:
    histogram, scales = spread()
    histograms(histogram, scales / 20, NAMES, tmp_path / "histograms.png", count=1)
    (panel,) = drawn[0].axes
    assert panel.get_title().startswith("attn1.input\n")
    assert "1.0 % clipped" in panel.texts[0].get_text()
    assert panel.get_xlim()[1] > 16


def test_histograms_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    histogram, scales = spread()
    path = tmp_path / "histograms.png"
    for arguments in (
        (histogram, scales[:1], NAMES),
        (histogram[..., 1:], scales, NAMES),
        (histogram, scales, NAMES[:1]),
        (histogram, scales * 0, NAMES),
    ):
        with pytest.raises(ValueError, match=r"histogram|scale"):
            histograms(*arguments, path)


def test_shares_do_not_look_like_nothing_or_everything() -> None:
    assert [plots._percent(x) for x in (0.0, 1e-6, 0.0012, 0.5, 0.99996, 1.0)] == [
        "0 %", "< 0.01 %", "0.12 %", "50.0 %", "> 99.9 %", "100 %",
    ]  # fmt: skip


def test_pyplot_is_left_alone_and_the_file_is_the_same_again(tmp_path: Path) -> None:
    absmax = np.ones((1, 2, 2), np.float32)
    before = "matplotlib.pyplot" in sys.modules
    for name in "ab":
        absmax_heat_map(absmax, NAMES, tmp_path / name)
    assert ("matplotlib.pyplot" in sys.modules) == before
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_place_that_cannot_be_written_to_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        absmax_heat_map(np.ones((1, 1, 2), np.float32), NAMES, tmp_path / "none" / "heat.png")
    (tmp_path / "heat.png").mkdir()
    with pytest.raises(OSError, match="directory"):
        absmax_heat_map(np.ones((1, 1, 2), np.float32), NAMES, tmp_path / "heat.png")
    assert [p.name for p in tmp_path.iterdir()] == ["heat.png"]


def test_without_matplotlib_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(HvdcError) as caught:
        absmax_heat_map(np.ones((1, 1, 2), np.float32), NAMES, tmp_path / "heat.png")
    assert caught.value.fix == "pip install 'hvdc[plot]'"
