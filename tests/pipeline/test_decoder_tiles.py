"""Which tiles are tried, in which order, and what is remembered of those that a compiler refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from exporters.decoder.geometry import DecoderGeometry, stages
from exporters.decoder.tiles import TileSettings, plan_tiles
from exporters.qnn.errors import QnnError
from hvdc.config import CompileConfig
from hvdc.errors import UsageError
from hvdc.pipeline.decoder_tiles import Attempt, TilePlanner
from hvdc.targets import load_target
from tests.decoders import VAE

FULL = (60, 104)
"""Latent pixels of 480 × 832."""
LIMIT = load_target("sm8750").graph_limit_bytes.value


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HVDC_CACHE_DIR", str(tmp_path))
    return tmp_path / "decoders"


def planner(
    latent: tuple[int, int] = FULL, tile: str = "auto", tools: str = "2.51", geometry: DecoderGeometry | None = None,
    share: bool = True,
) -> TilePlanner:  # fmt: skip
    config = CompileConfig(decoder_tile=tile, decoder_share_weights=share)
    return TilePlanner(geometry or DecoderGeometry(), latent, config, tools)


def sizes(plan: TilePlanner) -> list[tuple[int, int, int]]:
    """Rows, columns and number of graphs of each attempt."""
    return [(a.tile.rows, a.tile.columns, len(a.groups)) for a in plan.attempts()]


def whole(rows: int, columns: int) -> Attempt:
    names = tuple(stage.name for stage in stages(DecoderGeometry()))
    return Attempt(TileSettings(rows, columns), (names,))


def apart(rows: int, columns: int) -> Attempt:
    names = tuple(stage.name for stage in stages(DecoderGeometry()))
    return Attempt(TileSettings(rows, columns), (names[:-1], names[-1:]))


def refusing(
    *bad: tuple[int, int, int], too_large: bool = True, stopped: str = ""
) -> tuple[Callable[[Attempt], str], list[str]]:
    """A compiler that refuses those sizes, and what it was given."""
    seen: list[str] = []

    def build(attempt: Attempt) -> str:
        seen.append(attempt.text)
        if (attempt.tile.rows, attempt.tile.columns, len(attempt.groups)) in bad:
            raise QnnError("the graph is too large", found="9 KB, limit is 8 KB", too_large=too_large, stopped=stopped)
        return attempt.text

    return build, seen


# --- the order --------------------------------------------------------------------------------------------------


def test_the_largest_tile_that_is_predicted_to_fit_is_the_first() -> None:
    plan = planner()
    found = sizes(plan)
    assert found[:6] == [(60, 56, 1), (60, 56, 2), (34, 56, 1), (34, 56, 2), (34, 40, 1), (34, 40, 2)]
    assert all(max(plan.graph_bytes(a)) <= LIMIT for a in plan.attempts())


def test_tiles_shrink_to_the_end() -> None:
    areas = [rows * columns for rows, columns, _ in sizes(planner())]
    assert areas == sorted(areas, reverse=True)
    assert areas[-1] <= 100
    assert len(set(sizes(planner()))) == len(areas)


def test_every_tile_covers_the_latent_with_equal_tiles() -> None:
    for attempt in planner().attempts():
        tiles = plan_tiles(*FULL, attempt.tile)
        assert tiles.shapes == ((attempt.tile.rows, attempt.tile.columns),)
        assert tiles.latent_shape == FULL


def test_predictions_are_those_that_were_measured() -> None:
    """What Qualcomm's compiler said of 60 × 104: 5,070,188 KB for all, 4,099,937 KB for the last stage."""
    assert planner().graph_bytes(whole(*FULL)) == (pytest.approx(5_070_188 * 1024, rel=0.02),)
    front, last = planner().graph_bytes(apart(*FULL))
    assert last == pytest.approx(4_099_937 * 1024, rel=0.03)
    assert front == pytest.approx(3_048_942_336, rel=0.02)


def test_first_graphs_need_less() -> None:
    for attempt in (whole(60, 40), apart(60, 40)):
        first, later = (planner().graph_bytes(attempt, variant) for variant in ("first", "later"))
        assert [4 * size for size in first] == list(later), "later ones work on four frames"


def test_a_tile_whose_last_stage_alone_fits_is_staged() -> None:
    """54 × 84 is too large in one graph, and not in two."""
    plan = planner((54, 84))
    one, two = whole(54, 84), apart(54, 84)
    assert max(plan.graph_bytes(one)) > LIMIT >= max(plan.graph_bytes(two))
    assert sizes(plan)[0] == (54, 84, 2)


def test_contexts_of_their_own_are_loaded_together() -> None:
    """Graphs that share their weights are one context, planned for its largest graph; others add up."""
    shared, own = planner(), planner(share=False)
    attempt = apart(60, 56)
    assert shared.loaded_bytes(attempt) == max(shared.graph_bytes(attempt))
    assert own.loaded_bytes(attempt) == sum(own.graph_bytes(attempt)) > LIMIT
    assert (60, 56, 2) in sizes(shared)
    assert (60, 56, 2) not in sizes(own)
    assert (60, 56, 1) in sizes(own)


def test_a_small_latent_is_one_tile_in_one_graph_or_two() -> None:
    plan = planner((6, 8), geometry=VAE)
    assert sizes(plan) == [(6, 8, 1), (6, 8, 2)]
    whole, apart = plan.attempts()
    assert whole.groups == (("mid", "up0", "up1", "up2", "up3"),)
    assert apart.groups == (("mid", "up0", "up1", "up2"), ("up3",))
    assert [a.text for a in (whole, apart)] == [
        "tiles of 6 × 8 latent pixels", "tiles of 6 × 8 latent pixels in 2 graphs",
    ]  # fmt: skip


# --- a tile that was asked for ----------------------------------------------------------------------------------


def test_an_explicit_tile_is_tried_in_one_graph_and_in_two() -> None:
    assert sizes(planner(tile="60x40")) == [(60, 40, 1), (60, 40, 2)]
    assert sizes(planner(tile="60x104")) == [(60, 104, 1), (60, 104, 2)], "whatever is predicted"


@pytest.mark.parametrize(("tile", "overlaps"), [("60x40", (8, 8)), ("6x9", (3, 4)), ("1x2", (0, 1))])
def test_tiles_share_eight_pixels_or_half_of_a_small_one(tile: str, overlaps: tuple[int, int]) -> None:
    attempt, *_ = planner(tile=tile).attempts()
    assert (attempt.tile.overlap_rows, attempt.tile.overlap_columns) == overlaps


@pytest.mark.parametrize("tile", ["61x40", "60x105", "9999x9999"])
def test_a_tile_that_is_larger_than_the_latent_is_refused_at_once(tile: str) -> None:
    with pytest.raises(UsageError) as caught:
        planner(tile=tile)
    assert caught.value.expected == "auto, or ROWSxCOLUMNS of latent pixels up to 60x104"
    assert caught.value.found == tile


# --- refusals ---------------------------------------------------------------------------------------------------


def test_after_a_refusal_the_next_is_tried_and_the_refusal_is_remembered(cache: Path) -> None:
    build, seen = refusing((60, 56, 1), (60, 56, 2))
    said: list[str] = []
    assert planner().first_that_compiles(build, said.append) == "tiles of 34 × 56 latent pixels"
    assert len(seen) == 3
    assert "tiles of 60 × 56 latent pixels: about 2,678 MiB of graph memory predicted" in said
    refusal = "tiles of 60 × 56 latent pixels do not compile: the graph is too large (9 KB, limit is 8 KB)"
    assert refusal in said
    assert len(json.loads((cache / "refused.json").read_text())) == 2
    again, seen = refusing()
    planner().first_that_compiles(again, said.append)
    assert seen == ["tiles of 34 × 56 latent pixels"]


def test_another_compiler_or_decoder_is_asked_anew() -> None:
    build, _ = refusing((60, 56, 1))
    planner().first_that_compiles(build, lambda line: None)
    assert sizes(planner())[0] == (60, 56, 2)
    assert sizes(planner(tools="2.52"))[0] == (60, 56, 1)
    assert sizes(planner(geometry=DecoderGeometry(base_dim=64)))[0] == (60, 104, 1)


def test_an_error_that_is_not_about_size_is_raised_at_once(cache: Path) -> None:
    build, seen = refusing((60, 56, 1), too_large=False)
    with pytest.raises(QnnError, match="too large"):
        planner().first_that_compiles(build, lambda line: None)
    assert len(seen) == 1
    assert not (cache / "refused.json").exists()


def test_an_explicit_tile_that_is_refused_is_an_error_each_time() -> None:
    """Whoever asks for one means it: nothing else is compiled, and what was refused before is tried again."""
    build, seen = refusing((60, 104, 1), (60, 104, 2))
    for _ in range(2):
        with pytest.raises(QnnError, match="too large"):
            planner(tile="60x104").first_that_compiles(build, lambda line: None)
    assert len(seen) == 4


def test_an_explicit_tile_that_is_known_to_need_two_graphs_is_not_tried_in_one() -> None:
    build, seen = refusing((60, 56, 1))
    for _ in range(2):
        planner(tile="60x56").first_that_compiles(build, lambda line: None)
    assert seen == ["tiles of 60 × 56 latent pixels"] + 2 * ["tiles of 60 × 56 latent pixels in 2 graphs"]


@pytest.mark.parametrize("limit", ["time", "memory"])
def test_a_limit_of_time_or_memory_leads_to_a_smaller_tile_and_is_not_remembered(cache: Path, limit: str) -> None:
    build, seen = refusing((60, 56, 1), (60, 56, 2), too_large=False, stopped=limit)
    assert planner().first_that_compiles(build, lambda line: None) == "tiles of 34 × 56 latent pixels"
    assert len(seen) == 3
    assert not (cache / "refused.json").exists()


def test_two_that_are_refused_at_once_are_both_remembered(cache: Path) -> None:
    """Each adds to what the other wrote."""
    builds = [refusing((60, 56, 1))[0], refusing((34, 56, 1))[0]]
    plans = [planner(tile="60x56"), planner(tile="34x56")]
    with ThreadPoolExecutor(2) as pool:
        list(
            pool.map(
                lambda pair: pair[0].first_that_compiles(pair[1], lambda line: None), zip(plans, builds, strict=True)
            )
        )
    assert len(json.loads((cache / "refused.json").read_text())) == 2


def test_where_nothing_compiles_the_last_refusal_is_the_error_and_later_what_was_remembered() -> None:
    small = (6, 8)
    build, seen = refusing((6, 8, 1), (6, 8, 2))
    with pytest.raises(QnnError, match="the graph is too large"):
        planner(small).first_that_compiles(build, lambda line: None)
    with pytest.raises(QnnError, match="no tile fits") as caught:
        planner(small).first_that_compiles(build, lambda line: None)
    assert caught.value.found == "all were refused before"
    assert len(seen) == 2


@pytest.mark.parametrize("content", ["", "[]", "{", '"text"'])
def test_a_damaged_memory_is_an_empty_one(cache: Path, content: str) -> None:
    due = sizes(planner())
    (cache / "refused.json").write_text(content)
    assert sizes(planner()) == due
