"""docs/REPRODUCTION.md: what it counts, where each number comes from, and that it is what its command writes now."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.rates.derive import Said
from examples.reproduction import report
from examples.reproduction.cut_rows import IDLE_65, cut_rows
from examples.reproduction.document import Section, difference_text, document, ours_text, stated_text
from examples.reproduction.replanning import cases, deadlines
from examples.reproduction.row import MEANING, SHAPES, Kind, Row, count
from examples.reproduction.stream_rows import stream_rows
from hvdc.plan.cut import Rates, best_cut
from hvdc.plan.rates import RateTable
from tests.plan.test_plots import words

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SAID = Said("1", "It takes 2.50 s, at most 3 s, 4–6 % more, 51 blocks and 1,375 s.")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [row for part in report.rows() for row in part]


def row(stated: str, ours: float | None, kind: Kind = "prediction", unit: str = "s", **more: Any) -> Row:
    why = "a reason" if kind == "not reproducible" else ""
    return Row("a figure", SAID, stated, unit, ours, kind, "B", **{"why": why, **more})


# Rows.


@pytest.mark.parametrize(
    ("made", "verdict", "off_by"),
    [
        (row("2.50", 2.504), "as printed", 0.0016),
        (row("2.50", 2.505), "close", 0.002),  # 2.51
        (row("2.50", 2.495), "as printed", -0.002),  # halves go up: 2.50
        (row("2.50", 2.55), "close", 0.02),
        (row("2.50", 2.551), "off", 0.0204),
        (row("1,375", 1375.4), "as printed", 0.0003),
        (row("4–6", 6.4, unit="%"), "as printed", 0.0667),
        (row("4–6", 5.1, unit="%"), "as printed", 0.0),
        (row("4–6", 3.0, unit="%"), "off", -0.25),
        (row("3", 0.2, at_most=True), "as printed", 0.0),
        (row("3", 4.0, at_most=True), "off", 1 / 3),
        (row("51", 52, unit="block"), "off", 1 / 51),  # less than 2 %, but a block is a block
        (row("51", 51, unit="block"), "as printed", 0.0),
        (row("2.50", 2.5, "input"), None, 0.0),
        (row("2.50", 2.5, "follows"), None, 0.0),
        (row("2.50", 2.5, "not reproducible"), None, 0.0),
        (row("2.50", None, "not reproducible"), None, None),
    ],
)
def test_agreement_is_by_what_is_printed(made: Row, verdict: str | None, off_by: float | None) -> None:
    assert made.verdict == verdict
    assert made.off_by == (None if off_by is None else pytest.approx(off_by, abs=1e-4))


def test_a_figure_that_its_sentence_does_not_have_is_refused() -> None:
    for stated in ("2.5", "375", "7"):
        with pytest.raises(ValueError, match="does not stand in"):
            row(stated, 1.0)


def test_what_cannot_be_reproduced_has_a_reason_and_everything_else_a_value() -> None:
    with pytest.raises(ValueError, match="reason"):
        row("3", 1.0, "not reproducible", why="")
    for kind in ("input", "follows", "prediction"):
        with pytest.raises(ValueError, match="value"):
            row("3", None, kind)


@given(st.lists(st.tuples(st.sampled_from(sorted(MEANING)), st.sampled_from([2.5, 2.52, 4.0])), max_size=20))
def test_only_predictions_are_counted(kinds: list[tuple[Kind, float]]) -> None:
    made = [row("2.50", ours, kind) for kind, ours in kinds]
    predicted = [x for x in made if x.kind == "prediction"]
    numbers = re.findall(r"\d+", count(made))
    of = {ours: sum(x.ours == ours for x in predicted) for ours in (2.5, 2.52, 4.0)}
    assert [int(n) for n in numbers[:5]] == [len(made), len(predicted), of[2.5], 0, of[2.52]]
    sizes = [replace(x, source=SHAPES) for x in made]
    assert f"{of[2.5]} come out as printed ({of[2.5]} of them sizes" in count(sizes)
    assert f"{of[4.0]} further off" in count(made)
    assert count(predicted).split("The others")[0].split(". ")[1] == count(made).split("The others")[0].split(". ")[1]


# The figures.


def test_inputs_are_no_agreement(rows: list[Row]) -> None:
    """Table B is made of 677, 51 and 267: what comes back from it is no prediction."""
    of_b = {(x.stated, x.kind) for x in rows if x.stated in ("677", "51", "267") and x.source == "B"}
    assert of_b == {("677", "input"), ("51", "input"), ("267", "input")}
    assert {x.kind for x in rows if x.stated == "916.7"} == {"input"}


@pytest.mark.parametrize(
    ("stated", "ours", "kind"),
    [
        ("34", 34, "prediction"),
        ("12.5", 9.9, "prediction"),
        ("6.3", 8.0, "prediction"),
        ("10.1", 11.8, "prediction"),
        ("14.5", 17.6, "prediction"),
        ("334", 345.5, "prediction"),
        ("132", 148.1, "prediction"),
        ("916.7", 916.7, "input"),
        ("1.35", 1.35, "follows"),
        ("1,375", 1375, "follows"),
        ("3.9", 3.8, "prediction"),
        ("1,325", 1354, "prediction"),
        ("2,620", 2656, "prediction"),
        ("1.50", 1.5, "input"),
        ("16.4", 16.4, "follows"),
        ("10.9", 10.9, "follows"),
        ("10.9", 10.8, "prediction"),
        ("5.2", 5.2, "follows"),
        ("3", 3, "prediction"),
        ("57", 53, "not reproducible"),
        ("57", 56, "not reproducible"),
        ("10", 5.4, "not reproducible"),
        ("860.5", 935.6, "not reproducible"),
        ("0.94", 0.98, "not reproducible"),
        ("1.24", 1.33, "not reproducible"),
        ("2.09", None, "not reproducible"),
        ("15.5", None, "not reproducible"),
        ("10.7", None, "not reproducible"),
        ("1.39", 1.39, "prediction"),
        ("1.47", 1.47, "prediction"),
        ("2.83", 2.83, "input"),
        ("3.71", 3.71, "input"),
        ("5.25", 5.25, "follows"),
        ("2.82", 2.82, "input"),
    ],
)
def test_a_row_for_each_figure(stated: str, ours: float | None, kind: Kind, rows: list[Row]) -> None:
    found = [x.ours for x in rows if x.stated == stated and x.kind == kind]
    assert any(x is None if ours is None else x == pytest.approx(ours, rel=0.011) for x in found), found


def test_a_cut_of_each_table(rows: list[Row]) -> None:
    cuts = {x.source: (x.ours, x.kind) for x in rows if x.what == "deployed cut"}
    assert cuts == {"A": (52, "prediction"), "idle, §6.5.1": (51, "prediction"), "B": (51, "input")}


def test_all_memory_is_exact_to_the_printed_digit_but_for_two_that_the_paper_rounds_otherwise(
    rows: list[Row],
) -> None:
    sizes = [x for x in rows if x.source == "shapes"]
    assert len(sizes) > 20
    assert {x.stated for x in sizes if x.ours is None or x.rounded(x.ours) != x.paper[0]} == {"47.3", "540"}


def with_rates(table: RateTable, change: Callable[[str, float], float]) -> RateTable:
    """The table with every seconds changed; ``change`` is told their key."""

    def changed(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return {
                k: change(key, v) if k in ("value", "seconds") else changed(v, f"{key}.{k}") for k, v in value.items()
            }
        return [changed(item, f"{key}.{n}") for n, item in enumerate(value)] if isinstance(value, tuple) else value

    dumped = table.model_dump(exclude_none=True)
    kept = {key: dumped.pop(key) for key in ("reported", "gemm", "power_w") if key in dumped}
    return RateTable.model_validate(changed(dumped, "") | kept)


def scaled(table: RateTable, by: float) -> RateTable:
    """The same device at another speed."""
    return with_rates(table, lambda _, seconds: seconds * by)


def test_what_is_ours_comes_from_the_tables() -> None:
    """Of a device that is twice as slow, every duration is twice as long, every rate half, and every ratio and cut as
    before: no number of ours stands in the rows."""
    a, b = report.tables()
    slow = [*cut_rows(scaled(a, 2), scaled(b, 2)), *stream_rows(scaled(b, 2))]
    factor = {"s": 2.0, "per hour": 0.5}
    pairs = list(zip([*cut_rows(a, b), *stream_rows(b)], slow, strict=True))
    assert len(pairs) > 30
    for before, after in pairs:
        assert before.ours is not None
        assert after.ours is not None
        by = 1.0 if before.source == IDLE_65 else factor.get(before.unit, 1.0)  # that one is a sentence's own
        assert after.ours == pytest.approx(before.ours * by, rel=1e-6, abs=1e-6), before.what


def test_on_another_device_every_figure_is_another_one() -> None:
    """Each rate changed by a factor of its own: what stays is of the model, or of the paper's own figures."""
    a, b = report.tables()
    factors = {
        ".gpu.solo_block_s": 0.62, ".npu.solo_block_s": 1.31, ".decode.solo_s": 0.77, ".gpu.co_run_block_s": 0.53,
        ".npu.co_run_block_s": 1.47, ".decode.co_run_s": 0.81, ".tensor_block_s": 1.13, ".idle.0": 0.7, ".idle.1": 1.9,
    }  # fmt: skip
    met: set[str] = set()

    def other(key: str, seconds: float) -> float:
        met.add(key)
        return seconds * factors[key]

    there = [*cut_rows(with_rates(a, other), with_rates(b, other)), *stream_rows(with_rates(b, other))]
    here = [*cut_rows(a, b), *stream_rows(b)]
    assert met == set(factors)
    kept = {x.what for x, y in zip(here, there, strict=True) if x.ours == y.ours and x.source != IDLE_65}
    assert kept == {
        "first block of the detail expert, κL", "blocks too many for the GPU", "Hetero-Tensor, hand-offs of a video",
    }  # fmt: skip


# The document.


def test_every_row_is_in_the_document_with_its_sentence_and_its_reason(rows: list[Row]) -> None:
    text = report.text()
    tables, sentences = text.split("## The paper's sentences")
    for x in rows:
        said = re.escape(f". Section {x.said.section}: “{x.said.words}”")
        number = re.search(rf"^(\d+){said}$", sentences, re.M)
        assert number, x.what
        cells = (f"{stated_text(x)} [[{number[1]}]](#the-papers-sentences)", ours_text(x), difference_text(x))
        told = re.escape(" | ".join(cells))
        assert re.search(rf"^\| {re.escape(x.what)}(?: <sup>\w</sup>)? \| {told} \|", tables, re.M), x.what
        assert not x.why or f"</sup> {x.why}\n" in tables
    assert count(rows) in tables
    for title, of_section in zip(("The cut", "The stream", "Shorter videos", "Memory"), report.rows(), strict=True):
        kinds = [x.kind for x in of_section]
        line = re.search(rf"^\| \[{title}\]\(#.+\) \| (.+) \|$", tables, re.M)
        assert line, title
        numbers = [int(n) for n in line[1].split(" | ")]
        assert numbers[0] == kinds.count("prediction") == sum(numbers[1:4])
        assert sum(numbers[4:]) + numbers[0] == len(kinds)


def test_the_document_is_what_the_command_writes_now() -> None:
    assert (DOCS / report.NAME).read_text("utf-8") == report.text(), "run `make reproduce`"


def test_the_pictures_are_what_the_command_draws_now(tmp_path: Path) -> None:
    """To the byte where matplotlib is the one of constraints-dev.txt; their words with any."""
    report.draw(tmp_path)
    committed = DOCS / report.FOLDER
    names = sorted(p.name for p in tmp_path.iterdir())
    assert sorted(p.name for p in committed.iterdir()) == names, "run `make reproduce`"
    shown = re.findall(rf"\]\({report.FOLDER}/(.+?)\)", report.text())
    assert sorted(shown) == [name for name in names if name.endswith(".svg")]
    pinned = re.search(r"^matplotlib==(.+)$", (ROOT / "constraints-dev.txt").read_text("utf-8"), re.M)
    assert pinned
    for name in (name for name in names if name.endswith(".svg")):
        assert words(tmp_path / name) == words(committed / name), "run `make reproduce`"
        if mpl.__version__ == pinned[1]:
            assert (tmp_path / name).read_bytes() == (committed / name).read_bytes(), "run `make reproduce`"


def test_a_picture_has_what_it_shows_and_reasons_are_told_once() -> None:
    same = [row("2.50", 2.6, why="a reason"), row("3", 3.1, why="a reason"), row("3", 9.0, why="another")]
    text = document("# Head", [Section("One", "Text.", same, {"cut": "The cut"})], "pictures", "Tail.")
    assert "![The cut](pictures/cut.svg)" in text
    assert text.count("a reason\n") == 1
    assert "- <sup>b</sup> another" in text
    assert text.index("# Head") < text.index("## One") < text.index("Tail.") < text.index("## The paper's sentences")


@pytest.mark.parametrize(
    ("made", "ours", "difference"),
    [
        (row("2.50", 2.504), "2.50 s", "0"),
        (row("2.50", 3.0), "3.000 s", "+20.0 %"),
        (row("3", 2.5), "3 s", "0"),
        (row("2.50", 2.5, "input"), "2.50 s", "–"),
        (row("1,375", 1354.0), "1,354.0 s", "−1.5 %"),
        (row("51", 50, unit="block"), "50", "−1"),
        (row("51", 51, "follows", unit="block"), "51", "0"),
        (row("3", 33.0, at_most=True), "33.0 s", "+1,000 %"),
        (row("3", None, "not reproducible"), "–", "–"),
    ],
)
def test_how_a_row_is_printed(made: Row, ours: str, difference: str) -> None:
    assert (ours_text(made), difference_text(made)) == (ours, difference)


# The sentences that no number is put into.


def test_the_claims_about_replanning_hold() -> None:
    compared = {case.name: case for case in cases(report.tables()[1])}
    gains = {name: case.gain("replan") for name, case in compared.items()}
    assert max(gains, key=lambda name: gains[name]).startswith("the GPU throttles")
    assert max(gains["as its table says"], gains["both do"], gains["T_V = 270 s, the longest of the paper"]) < 0.5
    assert min(gains.values()) > -0.5
    assert all(case.gain("on-demand") > case.gain("replan") for case in compared.values())


def test_the_claims_about_deadlines_hold() -> None:
    points, wanted, _ = deadlines(report.tables()[1])
    assert [c.name for c in wanted] == ["hetero, deadline", "hetero", "npu"]
    at = {point.factor: [rate or 0.0 for rate in point.compliant_per_hour] for point in points}
    assert at[1.5][1] < 0.8 * at[2.0][1], "many miss it"
    assert all(aware > max(fixed, npu) for aware, fixed, npu in (at[1.3], at[1.5]))


def test_the_claims_in_reasons_hold(rows: list[Row]) -> None:
    """Those that name no number of their own."""
    ours = {x.what: x.ours or 0.0 for x in rows}
    assert ours["the longest of ten videos"] > ours["deadline"] > ours["the longest video of a long stream"]
    _, b = report.tables()
    costs = b.costs()
    with_deployed_decode_s = ours["NPU-only, a video every"] - costs.decode_when_alone() + costs.decode_s
    assert 1.5 * with_deployed_decode_s < 2 * ours["a video every"]
    assert ours["the longest video ÷ NPU-only's"] > 1.25


def test_a_row_with_other_rates_has_another_value_in_the_document() -> None:
    a, b = report.tables()
    shown = cut_rows(a, b)
    other = [replace(x, ours=(x.ours or 0) + 10) for x in shown]
    assert document("", [Section("", "", shown)], "", "") != document("", [Section("", "", other)], "", "")


def test_the_cut_from_solo_rates_takes_the_decode_that_is_said(rows: list[Row]) -> None:
    why = next(row.why for row in rows if row.what.startswith("cut from solo rates"))
    least_s, most_s = map(int, re.findall(r"57 takes (\d+) to (\d+) s", why)[0])
    gpu_s, npu_s = 2350 / 180, 603 / 180
    cuts = [best_cut(Rates(gpu_s, npu_s, float(s)), 180) for s in (least_s - 1, least_s + 1, most_s - 1, most_s + 1)]
    assert cuts == [56, 57, 57, 58]
