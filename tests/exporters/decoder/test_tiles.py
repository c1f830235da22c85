"""Tile plans: they cover the latent once, and are the paper's and diffusers'."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.decoder.blending import Mosaic
from exporters.decoder.tiles import Placement, TileSettings, plan_tiles


def test_the_paper_s_plan_is_the_default() -> None:
    plan = plan_tiles(60, 104)
    assert len(plan) == 3
    assert plan.shapes == ((60, 40),)
    assert [(t.columns.start, t.columns.stop) for t in plan] == [(0, 40), (32, 72), (64, 104)]
    assert [(t.columns.keep_start, t.columns.keep_stop, t.columns.fade) for t in plan] == [
        (0, 32, 0), (32, 64, 8), (64, 104, 8),
    ]  # fmt: skip
    assert {(t.rows.start, t.rows.stop, t.rows.keep_start, t.rows.keep_stop, t.rows.fade) for t in plan} == {
        (0, 60, 0, 60, 0)
    }


def test_a_latent_smaller_than_a_tile_is_one_tile_of_its_size() -> None:
    plan = plan_tiles(30, 12)
    assert (len(plan), plan.shapes, plan.latent_shape) == (1, ((30, 12),), (30, 12))


def test_tiles_share_evenly_and_fade_in_the_middle() -> None:
    plan = plan_tiles(10, 13, TileSettings(rows=10, columns=6, overlap_rows=0, overlap_columns=2))
    assert [(s.start, s.stop) for s in plan.columns] == [(0, 6), (4, 10), (7, 13)]
    assert [(s.keep_start, s.keep_stop, s.fade) for s in plan.columns] == [(0, 4, 0), (4, 7, 2), (7, 13, 2)]
    plan = plan_tiles(10, 12, TileSettings(rows=10, columns=9, overlap_rows=0, overlap_columns=2))
    assert [(s.start, s.stop, s.keep_start, s.fade) for s in plan.columns] == [(0, 9, 0, 0), (3, 12, 5, 2)]


def test_diffusers_plan_starts_a_tile_at_every_stride() -> None:
    plan = plan_tiles(60, 104, TileSettings(placement="diffusers"))
    assert [(s.start, s.stop, s.fade) for s in plan.columns] == [(0, 40, 0), (32, 72, 8), (64, 104, 8), (96, 104, 8)]
    assert [(s.start, s.stop, s.fade) for s in plan.rows] == [(0, 60, 0), (52, 60, 8)]
    assert plan.shapes == ((60, 40), (60, 8), (8, 40), (8, 8))


SIZES = st.integers(1, 70)


@st.composite
def settings(draw: st.DrawFn) -> TileSettings:
    rows, columns = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    overlaps = draw(st.integers(0, rows // 2)), draw(st.integers(0, columns // 2))
    placement: Placement = draw(st.sampled_from(["even", "diffusers"]))
    return TileSettings(rows, columns, *overlaps, placement)


@given(SIZES, SIZES, settings())
def test_every_pixel_is_given_once_from_inside_a_tile(rows: int, columns: int, wanted: TileSettings) -> None:
    plan = plan_tiles(rows, columns, wanted)
    assert plan.latent_shape == (rows, columns)
    for spans, size in ((plan.rows, rows), (plan.columns, columns)):
        assert (spans[0].keep_start, spans[-1].keep_stop, spans[0].fade) == (0, size, 0)
        for before, span in pairwise(spans):
            assert before.keep_stop == span.keep_start
            assert before.start <= span.keep_start <= span.keep_start + span.fade <= before.stop
        for span in spans:
            assert 0 <= span.start <= span.keep_start < span.keep_stop <= span.stop <= size
            assert span.keep_start + span.fade <= span.stop
    if wanted.placement == "even":
        assert len(plan.shapes) == 1
        assert plan.shapes[0] == (min(rows, wanted.rows), min(columns, wanted.columns))


@given(SIZES, SIZES, settings(), st.integers(1, 3))
def test_tiles_of_one_picture_make_that_picture(rows: int, columns: int, wanted: TileSettings, scale: int) -> None:
    """Where neighbours agree, blending changes nothing."""
    plan = plan_tiles(rows, columns, wanted)
    shape = (2, rows * scale, columns * scale, 1)
    picture = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    mosaic = Mosaic(plan, frames=2, scale=scale, channels=1)
    for tile in plan:
        at = [slice(span.start * scale, span.stop * scale) for span in (tile.rows, tile.columns)]
        for t in range(2):
            mosaic.put(tile, t, picture[t : t + 1, at[0], at[1]])
    np.testing.assert_allclose(mosaic.frames, picture, atol=1e-6)


def test_a_fade_is_linear() -> None:
    plan = plan_tiles(1, 6, TileSettings(rows=1, columns=4, overlap_rows=0, overlap_columns=2))
    mosaic = Mosaic(plan, frames=1, scale=2, channels=1)
    for i, tile in enumerate(plan):
        mosaic.put(tile, 0, np.full((1, 2, 8, 1), float(i), np.float32))
    assert mosaic.frames[0, 0, :, 0].tolist() == [0, 0, 0, 0, 0, 0.25, 0.5, 0.75, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": 0}, "at least one latent pixel"),
        ({"columns": 8, "overlap_columns": 5}, "cannot overlap by 5"),
        ({"overlap_rows": -1}, "cannot overlap by -1"),
        ({"placement": "random"}, "placement"),
    ],
)
def test_settings_that_make_no_tiles(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TileSettings(**arguments)  # type: ignore[arg-type]


def test_a_latent_without_pixels() -> None:
    with pytest.raises(ValueError, match="at least one pixel"):
        plan_tiles(0, 5)
