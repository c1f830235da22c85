"""When videos are asked for: what is understood, and a sentence for everything else."""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdc.errors import UsageError
from hvdc.plan.arrivals import arrivals_of


def test_all_at_once() -> None:
    assert arrivals_of("at-once", 3, 0) == (0.0, 0.0, 0.0)


def test_evenly() -> None:
    assert arrivals_of("even:4", 3, 0) == (0.0, 900.0, 1800.0)


def test_a_poisson_process_has_exponential_gaps() -> None:
    """Their mean and their deviation are the same, and a seed decides them."""
    arrivals = arrivals_of("poisson:4", 20_000, 7)
    gaps = [after - before for before, after in pairwise((0.0, *arrivals))]
    assert min(gaps) > 0
    assert statistics.fmean(gaps) == pytest.approx(900, rel=0.03)
    assert statistics.pstdev(gaps) == pytest.approx(900, rel=0.03)
    assert arrivals_of("poisson:4", 5, 7) == arrivals[:5]
    assert arrivals_of("poisson:4", 5, 8) != arrivals[:5]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "0\n1.5\n\n# a comment\n  1.5\n1e3\n"),
        ("a.csv", "0,x\n1.5,y\n1.5,z\n1000,\n"),
        ("a.csv", "prompt,arrival_s\na cat,0\n\"a dog, too\",1.5\nb,1.5\nc,1000\n"),
        ("a.json", "[0, 1.5, 1.5, 1000]"),
        ("a.json", '[{"arrival_s": 0}, {"arrival_s": 1.5, "prompt": "x"}, {"arrival_s": 1.5}, 1000]'),
        ("a.txt", "0\r\n1.5\r\n1.5\r\n1000"),
    ],
)  # fmt: skip
def test_a_trace(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert arrivals_of(str(tmp_path / name), None, 0) == (0.0, 1.5, 1.5, 1000.0)
    assert arrivals_of(str(tmp_path / name), 2, 0) == (0.0, 1.5)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.txt", "", "is empty"),
        ("a.txt", "# nothing\n\n", "is empty"),
        ("a.csv", "arrival_s\n", "is empty"),
        ("a.json", "[]", "is empty"),
        ("a.txt", "1\n-2\n", "line 2"),
        ("a.txt", "1\nsoon\n", "soon"),
        ("a.txt", "1\nnan\n", "holds seconds"),
        ("a.txt", "1\ninf\n", "holds seconds"),
        ("a.txt", "1\n1e300\n", "holds seconds"),
        ("a.txt", "1764518400123\n", "0 to 1e+09"),
        ("a.txt", "# c\n3\n\n2\n", "line 4"),
        ("a.csv", "prompt,arrival_s\nx\n", "nothing"),
        ("a.csv", '1\n"2\n', "not CSV"),
        ("a.json", "[1, 0]", "back in time"),
        ("a.json", "[1, null]", "entry 1"),
        ("a.json", "[true]", "holds seconds"),
        ("a.json", '[{"at": 3}]', "nothing"),
        ("a.json", "{}", "not a list"),
        ("a.json", "[1,", "not JSON"),
        ("a.json", "[" * 100_000, "not JSON"),
        ("a.json", "[1" + "0" * 400 + "]", "holds seconds"),
        ("a.json", "[1" + "0" * 5000 + "]", "not JSON"),
        ("a.csv", "id,when\n1,0\n", "the column arrival_s"),
    ],
)
def test_a_bad_trace_is_a_sentence(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as error:
        arrivals_of(str(tmp_path / name), None, 0)
    assert says in str(error.value)
    assert str(tmp_path / name) in error.value.where


@pytest.mark.parametrize(("name", "text"), [("a.csv", "arrival_s\n0\n5\n"), ("a.txt", "0\n5\n"), ("a.json", "[0, 5]")])
def test_a_byte_order_mark_is_no_part_of_a_trace(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, "utf-8-sig")
    assert arrivals_of(str(tmp_path / name), None, 0) == (0.0, 5.0)


@pytest.mark.parametrize(
    ("text", "videos", "says"),
    [
        ("even:0", 3, "no rate"),
        ("even:-1", 3, "no rate"),
        ("poisson:often", 3, "no rate"),
        ("poisson:nan", 3, "no rate"),
        ("poisson:", 3, "no rate"),
        ("at-once", 0, "one video"),
        ("at-once", None, "one video"),
        ("even:3", -1, "one video"),
        ("burst:3", 3, "cannot be read"),
        ("nowhere.txt", 3, "cannot be read"),
    ],
)
def test_what_is_no_arrivals_is_a_sentence(text: str, videos: int | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        arrivals_of(text, videos, 0)


def test_a_trace_that_is_too_short_or_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n2\n")
    with pytest.raises(UsageError, match="fewer videos"):
        arrivals_of(str(tmp_path / "a.txt"), 3, 0)
    with pytest.raises(UsageError, match="one video"):
        arrivals_of(str(tmp_path / "a.txt"), 0, 0)
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe1\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        arrivals_of(str(tmp_path / "b.txt"), None, 0)
    with pytest.raises(UsageError, match="cannot be read"):
        arrivals_of(str(tmp_path), None, 0)


@given(st.text(max_size=60), st.sampled_from(["a.txt", "a.csv", "a.json"]))
def test_any_text_is_a_trace_or_a_sentence(tmp_path_factory: pytest.TempPathFactory, text: str, name: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"any-{name}"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        arrivals = arrivals_of(str(path), None, 0)
    except UsageError:
        return
    assert list(arrivals) == sorted(arrivals)
    assert arrivals[0] >= 0
