"""What a simulated stream gives: by hand, and against what the paper says of its configurations."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hvdc.errors import UsageError
from hvdc.plan.rates import load_rates
from hvdc.plan.results import Span, distribution, powers_of, spans, steady_window, summarise
from hvdc.plan.scenarios import reference_latency_s
from hvdc.plan.stages import MODES
from hvdc.plan.stream import simulate
from hvdc.plan.variation import Jitter
from tests.plan.streams import at_once, costs

BY_HAND = costs(3.0, 1.0, 2.0, executions=4)
PAPER = load_rates(Path(__file__).resolve().parents[2] / "examples" / "rates" / "galaxy-s25-49-frames-b.toml")


def test_a_stream_by_hand() -> None:
    """Cut 1 of 4: 3 s on the GPU, 5 s on the NPU. Videos are finished at 8, 13, 18, 23, 28 s, and the last one is begun
    at 18 s: that is when the drain begins, and the fill is over at 8 s."""
    run = simulate(BY_HAND, "hetero", (0.0,) * 5, cut=1)
    assert steady_window(run) == (8, 18, 2)
    result = summarise(run, deadline_s=9.0, powers_w={"idle": 1.0, "gpu": 10.0, "npu": 100.0})
    assert (result.period_s, result.videos_per_hour, result.makespan_s) == (5, 720, 28)
    assert result.latency.max == 28
    assert [v.service_s for v in run.videos] == [8, 10, 10, 10, 10]
    assert (result.service.mean, result.service.p50) == (9.6, 10)
    assert result.npu.idle_fraction == 0
    assert result.gpu.idle_fraction == pytest.approx(0.4)
    assert result.gpu.idle_s_per_video == pytest.approx(2)
    assert result.deadline is not None
    assert (result.deadline.met, result.deadline.compliant_per_hour) == (1, 0), "the one that meets it is the fill's"
    assert result.energy_j == pytest.approx(28 * 1 + 5 * 3 * 10 + 5 * 5 * 100)
    assert result.energy_j_per_video == pytest.approx(result.energy_j / 5)


def test_deadlines_count_from_the_first_block_or_from_the_arrival() -> None:
    run = simulate(BY_HAND, "npu", (0.0, 1.0, 2.0, 3.0, 4.0))  # finished at 6, 12, 18, 24, 30
    met = [summarise(run, deadline_s=16, since=since).deadline for since in ("start", "arrival")]  # type: ignore[arg-type]
    assert [d.met for d in met if d] == [5, 3]
    assert [d.compliant_per_hour for d in met if d] == [600, pytest.approx(600 * 2 / 3)]
    on_time = summarise(run, deadline_s=6.0).deadline
    assert on_time is not None
    assert on_time.met == 5, "a deadline is met at its very second"


@pytest.mark.parametrize("mode", MODES)
def test_too_few_videos_have_no_steady_period(mode: str) -> None:
    result = at_once(BY_HAND, mode, 1, cut=2 if mode == "hetero" else None)  # type: ignore[arg-type]
    assert result.period_s is None
    assert result.videos_per_hour == pytest.approx(3600 / result.makespan_s)
    assert result.latency.p50 == result.latency.max == result.makespan_s


def test_the_steady_part_of_data_parallel_begins_when_both_engines_have_finished_a_video() -> None:
    """An engine's first video is early, since nothing is in its way: it says nothing about a period."""
    run = simulate(costs(), "dp", (0.0,) * 400)
    begin_s, _, _ = steady_window(run) or (0, 0, 0)
    assert begin_s >= min(v.finish_s for v in run.videos if v.cut > 0)
    # All of both engines' time is work: n videos on the NPU and g on the GPU take as long on each.
    gpu_s, npu_s, decode_s = 180 * 13.27, 180 * 3.178, 267.0
    per_gpu_video = 1 + (gpu_s - decode_s) / (npu_s + decode_s)
    assert summarise(run).period_s == pytest.approx(gpu_s / per_gpu_video, rel=0.01)


def test_percentiles_are_values_that_occurred() -> None:
    assert distribution([3.0]) == distribution([3.0, 3.0])
    hundred = distribution([float(i) for i in range(100, 0, -1)])
    assert (hundred.mean, hundred.p50, hundred.p95, hundred.max) == (50.5, 50, 95, 100)
    assert distribution([1.0, 2.0]).p50 == 1.0
    assert distribution([1.0, 2.0]).p95 == 2.0


def test_spans_of_the_first_videos() -> None:
    run = simulate(BY_HAND, "hetero", (0.0,) * 5, cut=1)
    assert spans(run, 2) == [
        Span("GPU", 0, 0, 3),
        Span("NPU", 0, 3, 6),
        Span("GPU", 1, 3, 6),
        Span("decode", 0, 6, 8),
        Span("handoff", 1, 6, 8),
        Span("NPU", 1, 8, 11),
        Span("decode", 1, 11, 13),
    ]
    assert {s.lane for s in spans(simulate(BY_HAND, "npu", (0.0,) * 5))} == {"NPU", "decode"}
    assert {s.lane for s in spans(simulate(BY_HAND, "hetero-tensor", (0.0,) * 5))} == {"GPU", "NPU", "decode"}


@pytest.mark.parametrize("mode", MODES)
def test_energy_is_idle_power_and_work(mode: str) -> None:
    run = simulate(costs(), mode, (0.0,) * 20, cut=51 if mode == "hetero" else None)  # type: ignore[arg-type]
    idle, gpu, npu = (
        summarise(run, powers_w={"idle": 0.0, "gpu": 0.0, "npu": 0.0, name: 1.0}).energy_j or 0.0
        for name in ("idle", "gpu", "npu")
    )
    assert idle == pytest.approx(summarise(run).makespan_s)
    assert gpu <= idle * (1 + 1e-12)
    assert npu <= idle * (1 + 1e-12)
    assert (gpu == 0) == (mode == "npu")
    assert npu >= 20 * 267


def test_powers_as_people_write_them() -> None:
    unknown = dict.fromkeys(("idle", "gpu", "npu"))
    assert powers_of([], unknown) is None
    assert powers_of(["idle=1", "gpu=2.5", "npu=0"], unknown) == {"idle": 1.0, "gpu": 2.5, "npu": 0.0}
    assert powers_of(["gpu=3"], {"idle": 1.0, "gpu": 2.0, "npu": 4.0}) == {"idle": 1.0, "gpu": 3.0, "npu": 4.0}
    for words in (
        ["gpu=3"],
        ["idle=1", "idle=1"],
        ["cpu=1"],
        ["gpu"],
        ["gpu=-1"],
        ["gpu=nan"],
        ["gpu=much"],
        ["gpu=1e308"],
    ):
        with pytest.raises(UsageError, match="power"):
            powers_of(words, unknown)


def test_a_stream_with_the_papers_rates() -> None:
    """Table b: its period and cut are inputs; what the other configurations give is not. Sections 6.2 and 6.5."""
    made, deadline_s = PAPER.costs(), 1.5 * reference_latency_s(PAPER.costs())
    results = {
        mode: summarise(simulate(made, mode, (0.0,) * 200, cut=51 if mode == "hetero" else None), deadline_s=deadline_s)
        for mode in MODES
    }
    assert deadline_s == pytest.approx(1375, abs=1)
    assert results["npu"].period_s == pytest.approx(916.7, abs=0.1)
    assert results["hetero"].period_s == pytest.approx(677, abs=0.1)
    compliant = {mode: r.deadline.compliant_per_hour for mode, r in results.items() if r.deadline}
    assert compliant["hetero"] == pytest.approx(5.3, abs=0.05)
    assert compliant["npu"] == pytest.approx(3.9, abs=0.05)
    assert compliant["dp"] == pytest.approx(compliant["npu"], rel=0.05), "DP's compliant rate is its NPU arm alone"
    assert compliant["gpu"] == 0
    ahead = results["hetero"].videos_per_hour / results["dp"].videos_per_hour
    assert ahead == pytest.approx(1, abs=0.002), "both engines always work; the paper measured DP 0.6 to 6.4 % behind"
    assert results["hetero"].service.max < 1.5 * 917 * 1.05
    one = summarise(simulate(made, "gpu", (0.0,) * 20, slots=1))
    assert 916.7 / (one.period_s or math.inf) == pytest.approx(0.35, abs=0.01), (
        "its GPU-only does not overlap the decode"
    )


def test_jitter_costs_a_pipeline_and_not_one_engine() -> None:
    """A stage that is late makes the other engine wait; more videos in flight would hide that."""
    made = costs()
    alone = at_once(made, "npu", 3000, jitter=Jitter(0.1)).period_s or 0
    assert alone == pytest.approx(180 * 3.178 + 267, rel=0.005)
    two = at_once(made, "hetero", 3000, cut=51, jitter=Jitter(0.1)).period_s or 0
    three = at_once(made, "hetero", 3000, cut=51, jitter=Jitter(0.1), slots=3).period_s or 0
    assert 677 < three < two < 677 * 1.08
