"""Pictures of memory: bars as long as what they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hvdc.plan import memory_plots
from hvdc.plan.memory_plots import Bar, draw_memory
from tests.drawn import figures_of
from tests.plan.test_plots import words

GIB = 1 << 30


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return figures_of(memory_plots, monkeypatch)


def test_memory_is_stacked_against_what_the_phone_has(drawn, tmp_path: Path) -> None:
    bars = [
        Bar("one copy", {"base": GIB, "transient": GIB // 2}, {"buffers": GIB // 4}, mapped=GIB),
        Bar("two copies", {"base": 2 * GIB}),
    ]
    svg, _ = draw_memory(bars, 8 * GIB, 4 * GIB, tmp_path)
    axes = drawn[0].axes[0]
    assert [(b.get_x(), b.get_width()) for b in axes.patches] == [(0, 1), (1, 0.5), (1.5, 0.25), (0, 2)]
    diamonds = [list(x.get_xydata()[0]) for x in axes.lines if x.get_marker() == "D" and len(x.get_xydata())]
    assert diamonds == [[1, 0]]
    assert [x.get_xdata()[0] for x in axes.lines if list(x.get_ydata()) == [0, 1]] == [4, 8]
    assert axes.get_xlim()[1] > 8
    text = set(words(svg))
    assert {"one copy", "two copies", "1.50 + 0.25", "2.00", "base", "transient", "buffers", "GiB"} <= text
    assert {"8 GiB", "◇ one NPU session maps", "4 GiB at most"} <= text


def test_keys_read_by_rows(drawn, tmp_path: Path) -> None:
    draw_memory([Bar("a", {str(n): GIB for n in range(6)})], 8 * GIB, 4 * GIB, tmp_path)
    assert [t.get_text() for t in drawn[0].legends[0].get_texts()] == ["0", "4", "1", "5", "2", "3"]


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing"):
        draw_memory([], 1, 1, tmp_path)
    assert list(tmp_path.iterdir()) == []
