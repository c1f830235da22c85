"""The simulated stream: against cases by hand, against the formula of the cut, and what must hold of any."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdc.errors import UsageError
from hvdc.plan.costs import Costs, EngineCosts, uniform
from hvdc.plan.cut import Rates, best_cut, period_s
from hvdc.plan.stages import MODES, SLOTS, Mode
from hvdc.plan.stream import StreamRun, simulate
from hvdc.plan.variation import Jitter
from tests.plan.streams import DECODES, SECONDS, at_once, block_costs, costs


def times(run: StreamRun) -> list[tuple[float, float, float, float, float]]:
    return [(v.start_s, v.gpu_end_s, v.npu_start_s, v.decode_start_s, v.finish_s) for v in run.videos]


BY_HAND = costs(3.0, 1.0, 2.0, executions=4)
"""A video: 4 blocks, of 3 s on the GPU and 1 s on the NPU, and 2 s of decoding."""


@pytest.mark.parametrize(
    ("mode", "more", "expected"),
    [
        ("npu", {}, [(0, 0, 0, 4, 6), (6, 6, 6, 10, 12)]),
        ("gpu", {}, [(0, 12, 12, 12, 14), (12, 24, 24, 24, 26)]),
        ("gpu", {"slots": 1}, [(0, 12, 12, 12, 14), (14, 26, 26, 26, 28)]),
        # The GPU is the longer stage: 6 s against 4 s. It never waits, the NPU does.
        ("hetero", {"cut": 2}, [(0, 6, 6, 8, 10), (6, 12, 12, 14, 16), (12, 18, 18, 20, 22)]),
        # The NPU is: 5 s against 3 s. The third video waits for the slot of the first.
        ("hetero", {"cut": 1}, [(0, 3, 3, 6, 8), (3, 6, 8, 11, 13), (8, 11, 13, 16, 18), (13, 16, 18, 21, 23)]),
        ("hetero", {"cut": 1, "slots": 3}, [(0, 3, 3, 6, 8), (3, 6, 8, 11, 13), (6, 9, 13, 16, 18)]),
        ("hetero", {"cut": 0}, [(0, 0, 0, 4, 6), (6, 6, 6, 10, 12)]),
        ("hetero", {"cut": 4}, [(0, 12, 12, 12, 14), (12, 24, 24, 24, 26)]),
        # The NPU takes video 0, the GPU 1; the NPU decodes 1 after 2, and is not free for 3 before.
        ("dp", {},
         [(0, 0, 0, 4, 6), (0, 12, 12, 12, 14), (6, 6, 6, 10, 12), (12, 24, 26, 26, 28), (14, 14, 14, 18, 20)]),
        ("hetero-tensor", {}, [(0, 0, 0, 13.2, 15.2), (15.2, 15.2, 15.2, 28.4, 30.4)]),
    ],
)  # fmt: skip
def test_cases_by_hand(mode: Mode, more: dict[str, Any], expected: list[tuple[float, ...]]) -> None:
    run = simulate(BY_HAND, mode, (0.0,) * 6, **more)
    assert times(run)[: len(expected)] == [pytest.approx(row) for row in expected]
    assert run.slots == more.get("slots", SLOTS[mode])


def test_a_handoff_delays_a_video_and_keeps_no_engine_busy() -> None:
    run = simulate(replace(BY_HAND, handoff_s=0.5), "hetero", (0.0,) * 3, cut=2)
    assert times(run) == [(0, 6, 6.5, 8.5, 10.5), (6, 12, 12.5, 14.5, 16.5), (12, 18, 18.5, 20.5, 22.5)]


@settings(deadline=None)
@given(SECONDS, SECONDS, DECODES, st.floats(0, 5), st.integers(0, 12))
def test_a_handoff_costs_a_stream_nothing_unless_the_stages_are_balanced(
    gpu_s: float, npu_s: float, decode_s: float, handoff_s: float, cut: int
) -> None:
    """A slot goes round in prefix, handoff and suffix, and there are two of them."""
    made = costs(gpu_s, npu_s, decode_s, handoff_s=handoff_s, executions=12)
    prefix_s, suffix_s = cut * gpu_s, (12 - cut) * npu_s + decode_s
    if cut > 0 and prefix_s + suffix_s > 0:
        expected = max(prefix_s, suffix_s, (prefix_s + handoff_s + suffix_s) / 2)
        assert at_once(made, "hetero", 201, cut=cut).period_s == pytest.approx(expected, rel=0.01)
        three = at_once(made, "hetero", 201, cut=cut, slots=3)
        assert three.period_s == pytest.approx(max(prefix_s, suffix_s, (prefix_s + handoff_s + suffix_s) / 3), rel=0.01)


@settings(deadline=None)
@given(SECONDS, SECONDS, DECODES, st.integers(0, 180), st.integers(2, 5))
def test_the_steady_period_is_the_formulas(gpu_s: float, npu_s: float, decode_s: float, cut: int, slots: int) -> None:
    rates = Rates(gpu_s, npu_s, decode_s)
    result = at_once(costs(gpu_s, npu_s, decode_s), "hetero", 12, cut=cut, slots=slots)
    if period_s(rates, 180, cut) > 0:
        assert result.period_s == pytest.approx(period_s(rates, 180, cut), rel=1e-9)


def test_solo_rates_count_only_where_an_engine_is_alone() -> None:
    """At the start and at the end of a stream; the steady period is that of co-run rates."""
    made = costs(3.0, 1.0, 2.0, executions=4, gpu_solo_s=2.0, npu_solo_s=0.5)
    run = simulate(made, "hetero", (0.0,) * 9, cut=2)
    assert times(run)[0] == (0, 4, 4, 6, 8)
    assert times(run)[1][:3] == (4, 10, 10)
    assert run.videos[-1].decode_start_s - run.videos[-1].npu_start_s == 1.0
    assert at_once(made, "hetero", 9, cut=2).period_s == 6.0
    assert at_once(made, "npu", 9).period_s == 4.0
    assert at_once(made, "gpu", 9).period_s == 8.0
    assert at_once(made, "hetero", 9, cut=0).period_s == 4.0, "nobody else works"


def test_an_engine_is_not_alone_while_the_other_has_a_video() -> None:
    """Which it works on since before, or which is on its way."""
    arrives = simulate(costs(3.0, 1.0, 2.0, executions=4, gpu_solo_s=2.0), "hetero", (0.0, 4.0), cut=1)
    assert times(arrives) == [(0, 2, 2, 5, 7), (4, 7, 7, 10, 12)]
    crosses = simulate(costs(3.0, 1.0, 2.0, executions=4, gpu_solo_s=2.0, handoff_s=0.5), "hetero", (0.0,) * 2, cut=2)
    assert times(crosses)[1][:2] == (4, 10)


@settings(deadline=None)
@given(block_costs(), st.integers(0, 12))
def test_blocks_may_differ(made: Costs, cut: int) -> None:
    assert made.gpu.co_run_s is not None
    assert made.npu.co_run_s is not None
    stages = sum(made.gpu.co_run_s[:cut]), sum(made.npu.co_run_s[cut:]) + made.decode_s
    assert at_once(made, "hetero", 8, cut=cut).period_s == pytest.approx(max(stages), rel=1e-9)


@settings(deadline=None)
@given(SECONDS, SECONDS, DECODES)
def test_a_second_engine_never_reduces_throughput(gpu_s: float, npu_s: float, decode_s: float) -> None:
    """With the best cut, where an engine is as fast beside the other as alone."""
    made = costs(gpu_s, npu_s, decode_s)
    both = at_once(made, "hetero", 12, cut=best_cut(Rates(gpu_s, npu_s, decode_s), 180))
    for mode in ("npu", "gpu"):
        assert both.videos_per_hour >= at_once(made, mode, 12).videos_per_hour * (1 - 1e-9)


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(
        [("npu", None), ("gpu", None), ("hetero", 1), ("hetero", 51), ("hetero", 170), ("hetero-tensor", None)]
    ),
    SECONDS, SECONDS, DECODES, st.sampled_from(["gpu_s", "npu_s", "decode_s", "handoff_s", "tensor_s"]),
    st.floats(1.001, 3), st.integers(0, 99),
)  # fmt: skip
def test_no_video_is_earlier_where_a_rate_is_worse(
    what: tuple[Mode, int | None], gpu_s: float, npu_s: float, decode_s: float, worse: str, by: float, seed: int
) -> None:
    rates = {"gpu_s": gpu_s, "npu_s": npu_s, "decode_s": decode_s, "handoff_s": 1.0, "tensor_s": npu_s}
    jitter, (mode, cut) = Jitter(0.2, seed), what
    before = simulate(costs(**rates), mode, (0.0,) * 20, cut=cut, jitter=jitter)
    after = simulate(costs(**rates | {worse: rates[worse] * by}), mode, (0.0,) * 20, cut=cut, jitter=jitter)
    assert all(b.finish_s >= a.finish_s * (1 - 1e-12) for a, b in zip(before.videos, after.videos, strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_a_seed_decides_everything(mode: Mode) -> None:
    def run(seed: int) -> list[tuple[float, ...]]:
        cut = 51 if mode == "hetero" else None
        return times(simulate(costs(), mode, (0.0,) * 50, cut=cut, jitter=Jitter(0.1, seed)))

    assert run(1) == run(1)
    assert run(1) != run(2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("slots", [1, 2, 3, 16])
def test_every_video_is_finished_and_engines_do_one_thing_at_a_time(mode: Mode, slots: int) -> None:
    cut = 51 if mode == "hetero" else None
    run = simulate(costs(), mode, tuple(500.0 * i for i in range(60)), cut=cut, slots=slots, jitter=Jitter(0.3, 5))
    assert all(v.finish_s > v.start_s >= v.arrival_s for v in run.videos)
    assert [v.start_s for v in run.videos] == sorted(v.start_s for v in run.videos) or mode == "dp"
    for work in (
        sorted((v.npu_start_s, v.finish_s) for v in run.videos),
        sorted((v.start_s, v.gpu_end_s) for v in run.videos if v.gpu_end_s > v.start_s),
    ):
        assert all(end <= start for (_, end), (start, _) in pairwise(work))
    for v in run.videos:
        assert (
            sum(o.start_s < v.finish_s and o.finish_s > v.start_s for o in run.videos if o.start_s <= v.start_s)
            <= slots
        )


def test_two_thousand_videos_in_every_mode() -> None:
    for mode in MODES:
        run = simulate(costs(), mode, (0.0,) * 2000, cut=51 if mode == "hetero" else None, jitter=Jitter(0.05))
        assert len(run.videos) == 2000
        assert run.videos[-1].finish_s > 0


def test_costs_that_a_mode_needs_and_nobody_has_measured() -> None:
    known = uniform(1.0, 4)
    only_shared = Costs(4, EngineCosts(None, known), EngineCosts(None, known), 1.0)
    assert simulate(only_shared, "hetero", (0.0,) * 3, cut=2).videos
    assert simulate(only_shared, "dp", (0.0,) * 3).videos
    for mode, what in (("npu", "solo rate of the npu"), ("gpu", "solo rate of the gpu"), ("hetero-tensor", "linears")):
        with pytest.raises(UsageError, match=what):
            simulate(only_shared, mode, (0.0,))
    only_alone = Costs(4, EngineCosts(known, None), EngineCosts(known, None), 1.0)
    for more in ({"mode": "dp"}, {"mode": "hetero", "cut": 2}):
        with pytest.raises(UsageError, match="co-run rate of the npu"):
            simulate(only_alone, arrivals_s=(0.0,), **more)  # type: ignore[arg-type]
    assert simulate(only_alone, "hetero", (0.0,), cut=0).videos


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"mode": "hetero"}, "needs a cut"),
        ({"mode": "npu", "cut": 3}, "needs a cut"),
        ({"mode": "hetero", "cut": 181}, "out of range"),
        ({"mode": "hetero", "cut": -1}, "out of range"),
        ({"mode": "npu", "slots": 0}, "in flight"),
        ({"mode": "npu", "slots": 17}, "in flight"),
        ({"mode": "npu", "arrivals_s": ()}, "one video at least"),
        ({"mode": "npu", "arrivals_s": (1.0, 0.0)}, "back in time"),
        ({"mode": "npu", "arrivals_s": (-1.0,)}, "from 0 on"),
        ({"mode": "npu", "arrivals_s": (float("nan"),)}, "from 0 on"),
    ],
)
def test_what_is_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        simulate(costs(), **{"arrivals_s": (0.0,), **more})
