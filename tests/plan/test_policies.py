"""Cutting each video for itself: by hand, at the ends, and where it pays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdc.errors import UsageError
from hvdc.plan.cut import Rates, best_cut, period_s
from hvdc.plan.policies import Adaptive, DeadlineAware, OnDemand, Ready, Replan, cut_in_time, meeting_cut, observed
from hvdc.plan.results import StreamResult, summarise
from hvdc.plan.stream import Decision, InFlight, simulate
from hvdc.plan.variation import Course, Drift, Jitter
from tests.plan.streams import DECODES, SECONDS, costs

B = Rates(13.27, 3.178, 267.0)
REFERENCE_S = 917.0


def stream(videos: int = 100, *, policy: Any = None, deadline_s: float | None = None, **more: Any) -> StreamResult:
    cut = 51 if policy is None else None
    return summarise(
        simulate(costs(), "hetero", (0.0,) * videos, cut=cut, policy=policy, **more), deadline_s=deadline_s
    )


@settings(deadline=None)
@given(SECONDS, SECONDS, DECODES)
def test_what_replans_begins_with_the_tables_cut(gpu_s: float, npu_s: float, decode_s: float) -> None:
    made = costs(gpu_s, npu_s, decode_s)
    assert Replan(made).rates == Rates(gpu_s, npu_s, decode_s), "to the last bit, or ties are decided otherwise"
    assert Replan(made).decide(0.0, 0.0, ()).cut == best_cut(Rates(gpu_s, npu_s, decode_s), 180)


def test_an_observation_moves_a_rate_by_its_weight() -> None:
    assert observed(10.0, 60.0, 3, 0.25) == 12.5
    assert observed(10.0, 60.0, 3, 1.0) == 20.0
    assert observed(10.0, 0.0, 0, 1.0) == 10.0, "a video without blocks on an engine says nothing about it"


def test_the_meeting_cut_by_hand() -> None:
    """2 s a block on the GPU: in 20 s it executes 10, less what the handoff takes."""
    rates = Rates(2.0, 1.0, 0.0)
    for ready, cut in [
        (Ready(0.0, 20.0, 0.0), 10), (Ready(5.0, 20.0, 0.0), 8), (Ready(0.0, 20.0, 3.0), 9), (Ready(0.0, 0.0, 0.0), 0),
        (Ready(30.0, 20.0, 0.0), 0), (Ready(0.0, 1e9, 0.0), 60),
    ]:  # fmt: skip
        assert meeting_cut(rates, 60, 20, ready) == cut
    assert meeting_cut(Rates(1.0, 1.0, 0.0), 60, 30, Ready(0.0, 10.0, 0.0)) == 20, "half the way from 30 to 10"


@given(SECONDS, SECONDS, DECODES, st.floats(0, 2000))
@settings(deadline=None)
def test_meeting_cuts_converge_to_the_best_one(gpu_s: float, npu_s: float, decode_s: float, npu_free_s: float) -> None:
    """From wherever a full stream is, within some twenty videos, whichever engine is the faster one."""
    rates = Rates(gpu_s, npu_s, decode_s)
    best, free_s, cut = best_cut(rates, 180), npu_free_s, 0
    for _ in range(60):
        cut = meeting_cut(rates, 180, best, Ready(0.0, free_s, 0.0))
        free_s = (180 - cut) * npu_s + decode_s
    assert period_s(rates, 180, cut) <= period_s(rates, 180, best) + gpu_s + npu_s


@given(
    SECONDS, SECONDS, DECODES, st.floats(0, 500), st.floats(0, 500), st.floats(0, 5), st.floats(0, 3000),
    st.integers(0, 60), st.booleans(),
)  # fmt: skip
@settings(deadline=None)
def test_a_cut_in_time_is_the_largest_one(
    gpu_s: float, npu_s: float, decode_s: float, gpu_free_s: float, npu_free_s: float, handoff_s: float,
    allowed_s: float, most: int, from_start: bool,
) -> None:  # fmt: skip
    rates, ready = Rates(gpu_s, npu_s, decode_s), Ready(gpu_free_s, npu_free_s, handoff_s)

    def taken_s(cut: int) -> float:
        """From its first block nothing waits: the GPU is begun so late that it meets the NPU."""
        prefix_s, suffix_s = cut * gpu_s + handoff_s if cut else 0.0, (60 - cut) * npu_s + decode_s
        if from_start:
            return prefix_s + suffix_s
        return max(gpu_free_s + prefix_s if cut else 0.0, npu_free_s) + suffix_s

    cut, begin_s = cut_in_time(rates, 60, most, ready, allowed_s, from_start=from_start)
    slack = 1e-9 * (1 + allowed_s)
    in_time = [k for k in range(most + 1) if taken_s(k) <= allowed_s - slack]
    perhaps = [k for k in range(most + 1) if taken_s(k) <= allowed_s + slack]
    assert cut in {max(in_time, default=most), max(perhaps, default=most)}
    assert begin_s == 0 or (from_start and cut > 0 and begin_s >= gpu_free_s)
    if begin_s > gpu_free_s:
        assert begin_s + cut * gpu_s + handoff_s == pytest.approx(npu_free_s), "held until it meets the NPU"


def test_what_is_in_flight_goes_through_the_engines_in_order() -> None:
    policy = Adaptive(costs(10.0, 1.0, 20.0, executions=60, handoff_s=1.0))
    waits_for_npu = InFlight(30, 0.0, 300.0, None)
    on_gpu = InFlight(20, 300.0, None, None)
    to_begin = InFlight(10, None, None, None)
    on_npu = InFlight(30, 0.0, 300.0, 310.0)
    whole = InFlight(0, None, None, None)

    def ready(*in_flight: InFlight) -> tuple[float, float]:
        found = policy.ready(400.0, in_flight)
        return found.gpu_s, found.npu_s

    assert ready() == (0, 0)
    assert ready(on_npu) == (0, 0), "it should be finished already"
    assert ready(waits_for_npu) == (0, 50)
    assert ready(on_gpu) == (100, 101 + 60)
    assert ready(InFlight(30, 0.0, 300.0, 390.0), waits_for_npu) == (0, 40 + 50)
    assert ready(waits_for_npu, on_gpu) == (100, 161)
    assert ready(waits_for_npu, on_gpu, to_begin) == (200, 201 + 70)
    assert ready(whole, to_begin) == (100, 101 + 70)


def test_without_drift_and_jitter_replanning_changes_nothing() -> None:
    assert stream(policy=Replan(costs())) == stream()


def test_replanning_follows_a_device_that_drifts() -> None:
    """Close to the best cut of each moment, where the static one waits for the engine that throttles."""
    drift = Drift("d", "a test", "seconds", gpu=Course(((3600.0, 1.0), (7200.0, 1.5))))
    hot = Rates(1.5 * 13.27, 3.178, 267.0)
    static, replanned = stream(300, drift=drift), stream(300, policy=Replan(costs()), drift=drift)
    assert static.period_s == pytest.approx(period_s(hot, 180, 51), rel=0.02)
    assert replanned.period_s == pytest.approx(period_s(hot, 180, best_cut(hot, 180)), rel=0.01)


def test_replanning_does_not_pay_where_both_engines_throttle_alike_or_nothing_drifts() -> None:
    """The balance stays where it was; what is noise moves the cut for nothing, if little."""
    course = Course(((3600.0, 1.0), (7200.0, 1.5)))
    drift = Drift("d", "a test", "seconds", course, course, course)
    ratio = (stream(drift=drift).makespan_s, stream(policy=Replan(costs()), drift=drift).makespan_s)
    assert ratio[1] == pytest.approx(ratio[0], rel=0.002)
    noisy = stream(1000, jitter=Jitter(0.1)).period_s or 0
    assert noisy < (stream(1000, policy=Replan(costs()), jitter=Jitter(0.1)).period_s or 0) < noisy * 1.01


def test_an_adaptive_stream_does_not_make_the_npu_wait_for_its_first_video() -> None:
    ten = stream(10, policy=Adaptive(costs()))
    assert ten.makespan_s < stream(10).makespan_s * 0.94
    run = simulate(costs(), "hetero", (0.0,) * 10, policy=Adaptive(costs()))
    assert [v.cut for v in run.videos[:2]] == [0, 63]
    assert {v.cut for v in run.videos[4:]} <= {50, 51, 52}


def test_an_adaptive_stream_is_quick_where_there_is_no_queue() -> None:
    arrivals = tuple(2000.0 * i for i in range(20))
    static = summarise(simulate(costs(), "hetero", arrivals, cut=51)).latency
    adaptive = summarise(simulate(costs(), "hetero", arrivals, policy=Adaptive(costs()))).latency
    assert static.mean == pytest.approx(2 * 677, rel=0.01)
    assert adaptive.max == pytest.approx(180 * 3.178 + 267)


@pytest.mark.parametrize("factor", [1.05, 1.15, 1.25, 1.4])
@pytest.mark.parametrize("jitter", [0.0, 0.02])
def test_a_deadline_below_the_pipelines_latency_is_met_with_smaller_cuts(factor: float, jitter: float) -> None:
    """Where every video of the static pipeline misses, more are in time than NPU-only alone would finish."""
    deadline_s = factor * REFERENCE_S
    static = stream(200, deadline_s=deadline_s, jitter=Jitter(jitter, 1)).deadline
    aware = stream(
        200,
        policy=DeadlineAware(costs(), deadline_s, from_start=True),
        deadline_s=deadline_s,
        jitter=Jitter(jitter, 1),
    ).deadline
    assert static is not None
    assert aware is not None
    assert static.compliant_per_hour == 0
    assert aware.compliant_per_hour > 1.05 * 3600 / REFERENCE_S


def test_a_deadline_that_is_met_anyway_costs_nothing() -> None:
    aware = stream(100, policy=DeadlineAware(costs(), 2 * REFERENCE_S, from_start=True))
    assert aware.period_s == pytest.approx(stream(100, policy=Adaptive(costs())).period_s or 0)


def test_where_no_cut_is_in_time_the_deadline_delays_nobody() -> None:
    aware = simulate(costs(), "hetero", (0.0,) * 50, policy=DeadlineAware(costs(), 100.0, from_start=True))
    adaptive = simulate(costs(), "hetero", (0.0,) * 50, policy=Adaptive(costs()))
    assert [v.finish_s for v in aware.videos] == [v.finish_s for v in adaptive.videos]


def test_nobody_is_held_when_all_before_are_finished() -> None:
    """The NPU's stages take a tenth of what rates say: the GPU does not wait for an end that is long past."""
    quick = Course(((0.0, 0.1),))
    drift = Drift("quick", "by hand", "videos", Course(((0.0, 1.0),)), quick, quick)
    policy = DeadlineAware(costs(1.0, 2.0, 60.0, executions=20), 500.0, from_start=True)
    run = simulate(costs(1.0, 2.0, 60.0, executions=20), "hetero", (0.0,) * 3, policy=policy, slots=2, drift=drift)
    assert all(after.start_s <= before.finish_s for before, after in pairwise(run.videos))


def test_a_deadline_counts_from_the_arrival() -> None:
    """Of 60 blocks, 1.5 s or 1 s each, the GPU would have 6: 63 s. With 2 it is 61 s, too late for who came before."""
    policy = DeadlineAware(costs(1.5, 1.0, 0.0, executions=60), 61.0, from_start=False, reserve=0.0)
    assert policy.decide(100.0, 100.0, []) == Decision(2, 100.0)
    assert policy.decide(100.0, 90.0, []) == Decision(6, 100.0)
    assert policy.decide(100.0, 99.0, []) == Decision(0, 100.0)


def test_on_demand_by_hand() -> None:
    """3 s or 1 s a block, 2 s of decoding. Video 0 is the NPU's; at 6 s the GPU has 2 blocks of video 1; at 10 s it is
    in the second one of video 2, and at 16 s in that of video 3."""
    made = costs(3.0, 1.0, 2.0, executions=4)
    run = simulate(made, "hetero", (0.0,) * 4, policy=OnDemand(4))
    assert [(v.cut, v.start_s, v.gpu_end_s, v.npu_start_s, v.finish_s) for v in run.videos] == [
        (0, 0, 0, 0, 6), (2, 0, 6, 6, 10), (2, 6, 12, 12, 16), (2, 12, 18, 18, 22),
    ]  # fmt: skip


def test_on_demand_the_gpu_may_execute_all_blocks() -> None:
    run = simulate(costs(1.0, 1.0, 500.0, executions=4), "hetero", (0.0,) * 4, policy=OnDemand(4))
    assert [v.cut for v in run.videos] == [0, 4, 4, 4]
    assert run.videos[1].gpu_end_s == 4
    assert run.videos[2].start_s == 504, "two videos are in flight"


@settings(deadline=None)
@given(SECONDS, SECONDS, DECODES, st.floats(0, 0.3), st.integers(0, 99))
def test_on_demand_neither_engine_waits_for_the_other(
    gpu_s: float, npu_s: float, decode_s: float, jitter: float, seed: int
) -> None:
    """But the NPU for a block to end; where the GPU has all blocks and waits for a slot, nothing more can be done."""
    made = costs(gpu_s, npu_s, decode_s, executions=20)
    run = simulate(made, "hetero", (0.0,) * 60, policy=OnDemand(20), jitter=Jitter(jitter, seed))
    for before, video in pairwise(run.videos):
        block_s = (video.gpu_end_s - video.start_s) / video.cut if video.cut else 0.0
        assert before.finish_s <= video.npu_start_s <= before.finish_s + block_s * (1 + 1e-6)
        idle_s = video.start_s - before.gpu_end_s
        assert idle_s <= 1e-6 * video.start_s or before.cut in (0, 20) or video.cut == 0


def test_on_demand_needs_no_rates_to_follow_a_device() -> None:
    """As good as replanning under drift, and better with jitter, which no plan foresees."""
    drift = Drift("d", "a test", "seconds", gpu=Course(((3600.0, 1.0), (7200.0, 1.5))))
    for more in ({"drift": drift}, {"jitter": Jitter(0.1)}, {"drift": drift, "jitter": Jitter(0.1)}):
        planned = stream(300, policy=Replan(costs()), **more).videos_per_hour
        assert stream(300, policy=OnDemand(180), **more).videos_per_hour > planned * 0.99
    noisy = stream(300, policy=Replan(costs()), jitter=Jitter(0.1)).videos_per_hour
    assert stream(300, policy=OnDemand(180), jitter=Jitter(0.1)).videos_per_hour > noisy * 1.03


class Watching(Replan):
    """Cuts as it is told, and remembers what it saw."""

    def __init__(self, cut: int) -> None:
        super().__init__(costs(3.0, 1.0, 2.0, executions=4))
        self.cut = cut
        self.seen: list[tuple[float, list[InFlight]]] = []

    def decide(self, now_s: float, arrival_s: float, in_flight: Sequence[InFlight]) -> Decision:
        self.seen.append((now_s, list(in_flight)))
        return Decision(self.cut)


def test_a_policy_sees_what_is_in_flight_and_nothing_of_what_will_be() -> None:
    made = costs(3.0, 1.0, 2.0, executions=4)
    gpu_longer, npu_longer, mid = Watching(2), Watching(1), Watching(1)
    simulate(made, "hetero", (0.0,) * 4, policy=gpu_longer)  # 6 s and 4 s
    untouched = InFlight(2, None, None, None)
    assert gpu_longer.seen == [
        (0, []), (0, [untouched]), (10, [InFlight(2, 6, None, None)]), (16, [InFlight(2, 12, None, None)]),
    ]  # fmt: skip
    simulate(made, "hetero", (0.0,) * 4, policy=npu_longer, slots=3)  # 3 s and 5 s
    assert npu_longer.seen[3] == (8, [InFlight(1, 3, 6, None), InFlight(1, 6, None, None)])
    simulate(made, "hetero", (0.0, 0.0, 0.0, 4.0), policy=mid, slots=4)
    assert mid.seen[3] == (4, [InFlight(1, 0, 3, 3), InFlight(1, 3, None, None), InFlight(1, None, None, None)])


def test_videos_pass_the_npu_in_their_order_whatever_their_cuts() -> None:
    class Swinging(Replan):
        def decide(self, *_: Any) -> Any:
            return super().decide(*_)._replace(cut=next(self.cuts))

        cuts = iter([100, 0, 90, 0, 5, 180, 0] * 20)

    run = simulate(costs(), "hetero", (0.0,) * 60, policy=Swinging(costs()), slots=4, jitter=Jitter(0.2))
    finishes = [v.finish_s for v in run.videos]
    assert finishes == sorted(finishes)
    assert all(b.npu_start_s >= a.finish_s for a, b in pairwise(run.videos))


@pytest.mark.parametrize("weight", [0.0, -1.0, 1.1, math.nan])
def test_a_weight_out_of_range(weight: float) -> None:
    with pytest.raises(UsageError, match="weight"):
        Replan(costs(), weight)


@pytest.mark.parametrize(
    ("deadline_s", "reserve"), [(0.0, 0.05), (-1.0, 0.05), (math.nan, 0.05), (9.0, 1.0), (9.0, -0.1)]
)
def test_a_deadline_out_of_range(deadline_s: float, reserve: float) -> None:
    with pytest.raises(UsageError, match="deadline"):
        DeadlineAware(costs(), deadline_s, from_start=True, reserve=reserve)
