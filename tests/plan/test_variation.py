"""Jitter and drift: what they multiply durations by."""

from __future__ import annotations

import statistics
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdc.errors import UsageError
from hvdc.plan.results import summarise
from hvdc.plan.stream import simulate
from hvdc.plan.variation import FLAT, STAGES, Course, Drift, Jitter, load_drift
from tests.plan.streams import costs


def test_jitter_has_a_mean_of_one_and_the_deviation_that_was_asked_for() -> None:
    factors = list(islice(Jitter(0.1, 3).factors("gpu"), 50_000))
    assert min(factors) > 0
    assert statistics.fmean(factors) == pytest.approx(1, abs=0.003)
    assert statistics.pstdev(factors) == pytest.approx(0.1, rel=0.03)


def test_stages_and_seeds_have_factors_of_their_own() -> None:
    drawn = {tuple(islice(Jitter(0.1, seed).factors(stage), 4)) for seed in (0, 1) for stage in STAGES}
    assert len(drawn) == 6
    assert list(islice(Jitter(0.0, 3).factors("npu"), 3)) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("wrong", [-0.1, 2.1, float("nan"), float("inf")])
def test_jitter_out_of_range(wrong: float) -> None:
    with pytest.raises(UsageError, match="jitter"):
        Jitter(wrong)


def test_a_course_by_hand() -> None:
    """Factor 1 until 10 s, 3 from 20 s on."""
    course = Course(((10.0, 1.0), (20.0, 3.0)))
    assert [course.at(x) for x in (0, 10, 15, 20, 99)] == [1, 1, 2, 3, 3]
    assert course.lasts_s(0, 10) == 10
    assert course.lasts_s(30, 4) == 12
    assert course.lasts_s(5, 0) == 0
    # All of the ramp takes 10 s and does ln(3) / 0.2 s of work.
    assert course.lasts_s(10, 5.493061443340548) == pytest.approx(10)
    assert course.lasts_s(0, 10 + 5.493061443340548 + 2) == pytest.approx(26)


POINTS = st.lists(st.tuples(st.integers(0, 50), st.floats(0.2, 5)), min_size=1, max_size=6, unique_by=lambda p: p[0])


@settings(deadline=None)
@given(POINTS, st.floats(0, 60), st.floats(0, 60))
def test_work_is_the_integral_of_speed(points: list[tuple[int, float]], start_s: float, work_s: float) -> None:
    """Against a sum over small steps."""
    course = Course(tuple(sorted((float(x), f) for x, f in points)))
    lasts_s = course.lasts_s(start_s, work_s)
    pieces = 4000
    done = sum(lasts_s / pieces / course.at(start_s + (i + 0.5) * lasts_s / pieces) for i in range(pieces))
    assert done == pytest.approx(work_s, rel=1e-3, abs=1e-9)


def test_a_stream_that_drifts_over_videos() -> None:
    """The NPU decodes ever more slowly: the formula holds video by video."""
    drift = Drift("d", "a test", "videos", decode=Course(((0, 1.0), (10, 2.0))))
    run = simulate(costs(1.0, 1.0, 100.0, executions=4), "hetero", (0.0,) * 12, cut=2, drift=drift)
    decodes = [v.finish_s - v.decode_start_s for v in run.videos]
    assert decodes == pytest.approx([100 + 10 * min(i, 10) for i in range(12)])


def test_a_stream_whose_engine_throttles() -> None:
    drift = Drift("d", "a test", "seconds", gpu=Course(((100.0, 1.0), (100.5, 2.0))))
    run = simulate(costs(10.0, 1.0, 1.0, executions=4), "hetero", (0.0,) * 20, cut=4, drift=drift)
    assert run.videos[0].gpu_end_s == 40
    assert run.videos[-1].gpu_end_s - run.videos[-1].start_s == pytest.approx(80)
    assert summarise(run).makespan_s > 19 * 70


GOOD = 'name = "x"\nsource = "made up for a test"\nover = "seconds"\ngpu = [[0, 1], [3600, 1.5]]\n'


def test_a_drift_file(tmp_path: Path) -> None:
    (tmp_path / "d.toml").write_text(GOOD)
    drift = load_drift(tmp_path / "d.toml")
    assert (drift.name, drift.over, drift.npu, drift.decode) == ("x", "seconds", FLAT, FLAT)
    assert drift.gpu.at(1800) == 1.25


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'name'"),
        ("name = ", "cannot be read"),
        ("name = " + "[" * 100_000, "cannot be read"),
        ("name = " + "9" * 10_000, "cannot be read"),
        (GOOD.replace("seconds", "weeks"), "'over'"),
        (GOOD.replace("made up for a test", "me"), "'source'"),
        (GOOD.replace("1.5", "0"), "'gpu"),
        (GOOD.replace("1.5", "1e300"), "'gpu"),
        (GOOD.replace("1.5", "1e-300"), "'gpu"),
        (GOOD.replace("1.5", "true"), "'gpu"),
        (GOOD.replace("1.5", '"1.5"'), "'gpu"),
        (GOOD.replace("3600", "1e300"), "'gpu"),
        (GOOD.replace("1.5", "-1"), "'gpu"),
        (GOOD.replace("1.5", "nan"), "'gpu"),
        (GOOD.replace("3600", "inf"), "'gpu"),
        (GOOD.replace("3600", "-1"), "'gpu"),
        (GOOD.replace("3600", "0"), "go forward"),
        (GOOD.replace("[[0, 1], [3600, 1.5]]", "[]"), "'gpu'"),
        (GOOD.replace("[3600, 1.5]", "[3600]"), "'gpu"),
        (GOOD.replace("1.5", '"fast"'), "'gpu"),
        (GOOD + "tpu = [[0, 1]]\n", "'tpu'"),
    ],
)
def test_a_bad_drift_file_is_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "d.toml").write_text(text)
    with pytest.raises(UsageError) as error:
        load_drift(tmp_path / "d.toml")
    assert says in str(error.value)
    assert str(tmp_path / "d.toml") in error.value.where


def test_a_drift_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_drift(tmp_path / "d.toml")
