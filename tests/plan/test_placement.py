"""Cuts of trajectories whose blocks differ: against every other cut, in exact fractions, and against equal blocks."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdc.errors import UsageError
from hvdc.plan.costs import Costs, EngineCosts, uniform
from hvdc.plan.cut import Rates, best_cut, gpu_stage_s, npu_stage_s
from hvdc.plan.placement import Trajectory, sensitivity

TABLES = 10_000


def costs(gpu: list[float], npu: list[float], decode_s: float = 0.0, handoff_s: float = 0.0) -> Costs:
    return Costs(len(gpu), EngineCosts(None, tuple(gpu)), EngineCosts(None, tuple(npu)), decode_s, handoff_s)


def equal(rates: Rates, executions: int) -> Costs:
    return costs(
        list(uniform(rates.gpu_block_s, executions)), list(uniform(rates.npu_block_s, executions)), rates.decode_s
    )


def exhaustive(c: Costs, first: int, last: int) -> int:
    """The best of all cuts in exact fractions: by period, then latency, then place."""
    gpu, npu = (tuple(map(Fraction, e.co_run_s or ())) for e in (c.gpu, c.npu))
    decode, handoff = Fraction(c.decode_s), Fraction(c.handoff_s)
    order = []
    gpu_s, npu_s = sum(gpu[:first], Fraction(0)), sum(npu[first:], Fraction(0)) + decode
    for k in range(first, last + 1):
        order.append((max(gpu_s, npu_s), gpu_s + (handoff if k else 0) + npu_s, k))
        if k < last:
            gpu_s, npu_s = gpu_s + gpu[k], npu_s - npu[k]
    return min(order)[2]


def tables(seed: int, count: int) -> list[tuple[Costs, int, int]]:
    """Random ones, uniform and by block, many with ties (whole seconds), some with a legal range."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        executions = draw.choice([1, 2, 12, draw.randrange(1, 60)])
        whole = draw.random() < 0.5

        def seconds(whole: bool = whole) -> float:
            return float(draw.randrange(1, 6)) if whole else 10 ** draw.uniform(-3, 3)

        gpu, npu = ([seconds() for _ in range(executions)] for _ in range(2))
        if draw.random() < 0.5:
            gpu, npu = gpu[:1] * executions, npu[:1] * executions
        decode_s, handoff_s = (draw.choice([0.0, seconds()]) for _ in range(2))
        first = draw.choice([0, draw.randrange(executions + 1)])
        last = draw.choice([executions, draw.randrange(first, executions + 1)])
        made.append((costs(gpu, npu, decode_s, handoff_s), first, last))
    return made


def test_the_solver_finds_what_trying_all_cuts_finds() -> None:
    found = [Trajectory(c).best(first, last).cut for c, first, last in tables(1, TABLES)]
    assert found == [exhaustive(*table) for table in tables(1, TABLES)]
    assert len(set(found)) > 40


def test_equal_blocks_are_placed_as_the_runtime_places_them() -> None:
    """`best_cut` is the runtime's policy, bit for bit (tests/device_runtime/test_policy.py)."""
    draw = random.Random(2)
    for _ in range(TABLES):
        whole = draw.random() < 0.5
        gpu_s, npu_s, decode_s = (float(draw.randrange(1, 6)) if whole else 10 ** draw.uniform(-4, 4) for _ in range(3))
        rates, executions = Rates(gpu_s, npu_s, draw.choice([0.0, decode_s])), draw.choice([1, 12, 180])
        trajectory = Trajectory(equal(rates, executions))
        cut = best_cut(rates, executions)
        best = trajectory.best()
        assert best.cut == cut, rates
        assert (best.gpu_s, best.npu_s) == (gpu_stage_s(rates, cut), npu_stage_s(rates, executions, cut))


def test_stages_by_hand() -> None:
    """Blocks of 1, 2, 3 s on the GPU and 4, 5, 6 s on the NPU, 7 s of decoding."""
    trajectory = Trajectory(costs([1, 2, 3], [4, 5, 6], 7, 0.5))
    assert [(s.gpu_s, s.npu_s) for s in map(trajectory.stages, range(4))] == [(0, 22), (1, 18), (3, 13), (6, 7)]
    best = trajectory.best()
    assert (best.cut, best.period_s, best.gpu_idle_s, best.npu_idle_s) == (3, 7, 1, 0)
    assert best.latency_s == 6 + 0.5 + 7
    assert trajectory.stages(0).latency_s == 22, "the NPU hands nothing off to itself"
    assert trajectory.best(0, 2).cut == 2


@pytest.mark.parametrize(
    ("gpu_s", "npu_s", "decode_s", "cut"),
    [
        (3.0, 1.0, 1.0, 0),  # 3 s at 0 and at 1, and the NPU is faster
        (1.0, 2.0, 0.0, 2),  # 2 s at 1 and at 2, and the GPU is faster
    ],
)
def test_of_equally_good_cuts_it_is_that_with_the_smaller_latency(
    gpu_s: float, npu_s: float, decode_s: float, cut: int
) -> None:
    trajectory = Trajectory(costs([gpu_s] * 2, [npu_s] * 2, decode_s))
    tied = [k for k in range(3) if trajectory.stages(k).period_s == trajectory.best().period_s]
    assert len(tied) == 2
    assert trajectory.best().cut == best_cut(Rates(gpu_s, npu_s, decode_s), 2) == cut


def test_blocks_too_short_to_count_do_not_hide_a_tie() -> None:
    """1e-20 s vanish beside 4 s: four cuts have the same period in floating point, and the last the least latency."""
    trajectory = Trajectory(costs([4, 1e-20, 1e-20, 1e-20, 9], [1, 1, 1, 1, 1], 0.0))
    assert [k for k in range(6) if trajectory.stages(k).period_s == 4] == [1, 2, 3, 4]
    assert trajectory.best().cut == 4


SECONDS = st.floats(1e-3, 1e3)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=40), SECONDS, st.floats(1.0, 10.0), st.booleans())
def test_a_slower_engine_never_shortens_the_period(
    blocks: list[tuple[float, float]], decode_s: float, factor: float, of_gpu: bool
) -> None:
    c = costs([g for g, _ in blocks], [n for _, n in blocks], decode_s)
    engine = c.gpu if of_gpu else c.npu
    slower = EngineCosts(None, tuple(s * factor for s in engine.co_run_s or ()))
    changed = replace(c, gpu=slower) if of_gpu else replace(c, npu=slower)
    assert Trajectory(changed).best().period_s >= Trajectory(c).best().period_s * (1 - 1e-12)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=40), st.data())
def test_a_wider_range_is_never_worse(blocks: list[tuple[float, float]], data: st.DataObject) -> None:
    trajectory = Trajectory(costs([g for g, _ in blocks], [n for _, n in blocks]))
    first = data.draw(st.integers(0, len(blocks)))
    last = data.draw(st.integers(first, len(blocks)))
    assert first <= trajectory.best(first, last).cut <= last
    assert trajectory.best().period_s <= trajectory.best(first, last).period_s


@pytest.mark.parametrize("limits", [(-1, 2), (0, 4), (2, 1), (4, None)])
def test_a_range_that_there_is_not_is_refused(limits: tuple[int, int | None]) -> None:
    with pytest.raises(UsageError, match="no such range of cuts"):
        Trajectory(costs([1, 2, 3], [4, 5, 6])).best(*limits)


def test_a_cut_beyond_the_trajectory_is_refused() -> None:
    for cut in (-1, 4):
        with pytest.raises(UsageError, match="no such cut"):
            Trajectory(costs([1, 2, 3], [4, 5, 6])).stages(cut)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_costs_that_are_no_durations_are_refused(wrong: float) -> None:
    with pytest.raises(UsageError, match="block on the GPU"):
        Trajectory(costs([1, wrong], [1, 1]))
    with pytest.raises(UsageError, match="block on the NPU"):
        Trajectory(costs([1, 1], [1, wrong]))
    if wrong != 0:
        with pytest.raises(UsageError, match="decode cannot"):
            Trajectory(costs([1, 1], [1, 1], wrong))
        with pytest.raises(UsageError, match="handoff cannot"):
            Trajectory(costs([1, 1], [1, 1], 0, wrong))


def test_costs_of_another_trajectory_or_beyond_all_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="another trajectory"):
        Trajectory(replace(costs([1, 1], [1, 1]), executions=3))
    with pytest.raises(UsageError, match="infinite"):
        Trajectory(costs([1.7e308, 1.6e308], [1, 1]))


def test_what_is_not_known_is_said() -> None:
    c = costs([1.0], [1.0])
    with pytest.raises(UsageError, match="no solo rate of the gpu"):
        Trajectory.alone(c)
    known = EngineCosts((1.0,), None)
    with pytest.raises(UsageError, match="no solo time of the decoder"):
        Trajectory.alone(replace(c, gpu=known, npu=known))
    with pytest.raises(UsageError, match="no co-run rate of the gpu"):
        Trajectory(replace(c, gpu=known))


def test_a_single_video_takes_what_engines_take_alone() -> None:
    c = replace(
        costs([3, 3], [2, 2], 5, 1),
        gpu=EngineCosts((10.0, 20.0), (3.0, 3.0)), npu=EngineCosts((1.0, 2.0), (2.0, 2.0)), decode_solo_s=7.0,
    )  # fmt: skip
    assert Trajectory.alone(c).stages(1).latency_s == 10 + 1 + 2 + 7
    assert Trajectory.alone(c).stages(0).latency_s == 1 + 2 + 7


def test_sensitivity_changes_one_rate_at_a_time() -> None:
    c = costs([3.0] * 20, [1.0] * 20, 10.0, 2.0)
    chosen = Trajectory(c).best()
    changes = sensitivity(c, chosen.cut, 0.05)
    assert [(changed.rate, changed.factor) for changed in changes] == [
        (rate, factor) for rate in ("gpu", "npu", "decode", "handoff") for factor in (0.95, 1.05)
    ]
    by_hand = {
        ("gpu", 1.05): replace(c, gpu=EngineCosts(None, (3.0 * 1.05,) * 20)),
        ("npu", 0.95): replace(c, npu=EngineCosts(None, (0.95,) * 20)),
        ("decode", 1.05): replace(c, decode_s=10.5),
        ("handoff", 0.95): replace(c, handoff_s=1.9),
    }
    for changed in changes:
        assert changed.best.period_s <= changed.kept.period_s
        assert changed.kept.cut == chosen.cut
        if (changed.rate, changed.factor) in by_hand:
            assert changed.best == Trajectory(by_hand[changed.rate, changed.factor]).best()
    handoffs = [changed for changed in changes if changed.rate == "handoff"]
    assert all(changed.best.period_s == chosen.period_s for changed in handoffs), "it overlaps with the next video"
    assert {changed.rate for changed in sensitivity(replace(c, decode_s=0.0, handoff_s=0.0), 1, 0.05)} == {"gpu", "npu"}
