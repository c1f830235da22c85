"""Streams whose videos are cut by a policy: each is what its own cut makes of it, in order, and the policy in Python
chooses the same cuts from what the coordinator has seen.

Engines sleep, and a busy machine makes that longer; nothing here depends on how long. What is compared is what was
observed with what was decided.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hvdc.plan.costs import Costs, EngineCosts, uniform
from hvdc.plan.cut import Rates
from hvdc.plan.policies import WEIGHT, Adaptive, DeadlineAware, Replan, observed
from hvdc.plan.results import summarise
from hvdc.plan.stream import Decision, InFlight, simulate
from hvdc.plan.variation import Course, Drift
from tests.device_runtime.streams import Shape, Streams, check, check_nothing_left, kept, words
from tests.device_runtime.test_coordinator_faults import USAGE

SHAPE = Shape(steps=4, layers=4)
BEGIN = {"gpu_s": 0.002, "npu_s": 0.001, "decode_s": 0.004}
"""Rates that policies begin with."""
SLEEPS = {"gpu_us": 2000, "npu_us": 1000, "decode_us": 4000}
POLICIES: dict[str, dict[str, object]] = {
    "replan": {},
    "adaptive": {},
    "deadline, from start": {"deadline_s": 0.02, "from_start": 1},
    "deadline, from arrival": {"deadline_s": 0.2, "from_start": 0},
}


def by(name: str, **more: object) -> dict[str, object]:
    """The words of a stream under a policy."""
    policy = {"policy": name.partition(",")[0], **POLICIES[name]}
    return {"mode": "hetero", "videos": 8, **BEGIN, **SLEEPS, **policy, **more}


@pytest.fixture(scope="module")
def streams(programs: dict[str, Path]) -> Iterator[Streams]:
    with Streams(programs["hvdc_stream_check"]) as running:
        yield running


@dataclass(frozen=True)
class Seen:
    """A stream's report, and of each choice the videos in flight, by number."""

    report: dict[str, Any]
    on_way: dict[int, dict[int, InFlight]]
    said: list[str]


def seen(program: Path, given: dict[str, object]) -> Seen:
    done = subprocess.run(
        [program, "run", *words(SHAPE, **given)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, report = done.stdout.splitlines()
    on_way: dict[int, dict[int, InFlight]] = {}
    for line in lines:
        if line.startswith("seen"):
            _, video, *others = line.split(" ")
            fields = [other.split(",") for other in others]
            on_way[int(video)] = {int(f[0]): InFlight(int(f[1]), *(_time(value) for value in f[2:])) for f in fields}
    return Seen(json.loads(report), on_way, [line for line in lines if line.startswith("event cut")])


def _time(text: str) -> float | None:
    value = float(text)
    return None if math.isnan(value) else value


def costs(given: dict[str, object]) -> Costs:
    gpu, npu = (uniform(float(str(given[name])), SHAPE.executions) for name in ("gpu_s", "npu_s"))
    return Costs(SHAPE.executions, EngineCosts(gpu, gpu), EngineCosts(npu, npu), float(str(given["decode_s"])))


def policy_of(given: dict[str, object]) -> Replan:
    if given["policy"] == "deadline":
        return DeadlineAware(costs(given), float(str(given["deadline_s"])), from_start=given["from_start"] == 1)
    return {"replan": Replan, "adaptive": Adaptive}[str(given["policy"])](costs(given))


def check_decisions(stream: Seen, given: dict[str, object]) -> None:
    """Each choice follows from what was observed before it, and what was observed is what the videos took."""
    videos = stream.report["videos"]
    gpu_s, npu_s, decode_s = (float(str(given[name])) for name in ("gpu_s", "npu_s", "decode_s"))
    rates = [[gpu_s], [npu_s], [decode_s]]
    """Of each kind, after each video."""
    for v in videos:
        rates[0].append(observed(rates[0][-1], v["gpu_stage_s"], v["cut"], WEIGHT) if v["cut"] else rates[0][-1])
        rates[1].append(observed(rates[1][-1], v["npu_stage_s"], SHAPE.executions - v["cut"], WEIGHT))
        rates[2].append(observed(rates[2][-1], v["decode_s"], 1, WEIGHT))
    for i, v in enumerate(videos):
        choice, policy = v["choice"], policy_of(given)
        # Videos without blocks on the GPU tell nothing of it.
        on_gpu = [j for j in range(len(videos)) if videos[j]["cut"]][: choice["gpu_videos"]]
        gpu_rate = rates[0][on_gpu[-1] + 1] if on_gpu else gpu_s
        policy.rates = Rates(gpu_rate, rates[1][choice["npu_videos"]], rates[2][choice["npu_videos"]])
        assert policy.rates == Rates(choice["gpu_block_s"], choice["npu_block_s"], choice["decode_s"]), i
        # All results that were there had been observed.
        assert choice["npu_videos"] == sum(w["finished_s"] <= choice["at_s"] for w in videos[:i])
        others = stream.on_way[i]
        assert sorted(others) == [j for j in range(i) if videos[j]["finished_s"] > choice["at_s"]], i
        for j, other in others.items():
            assert other.cut == videos[j]["cut"]
            assert all(t is None or videos[j]["started_s"] <= t <= choice["at_s"] for t in other[1:])
        decision = policy.decide(choice["at_s"], choice["arrival_s"], [others[j] for j in sorted(others)])
        assert (decision.cut, decision.not_before_s) == (v["cut"], choice["not_before_s"]), i
        assert f"event cut {i} {v['cut']} video {i}: cut {v['cut']} of {SHAPE.executions}: " in stream.said[i]


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("name", POLICIES)
def test_decisions_are_those_of_the_simulated_policy(
    programs: dict[str, Path], tmp_path: Path, name: str, slots: int
) -> None:
    """Bit for bit, from the same observations, on engines that get slower and faster from video to video."""
    given = by(name, slots=slots, videos=10, wild=slots, gpu_slows="5:3", dir=tmp_path)
    stream = seen(programs["hvdc_stream_check"], given)
    check_decisions(stream, given)
    check(stream.report, SHAPE, tmp_path)
    videos = stream.report["videos"]
    assert stream.report["order"] == list(range(10))
    assert [v["gpu_blocks"] for v in videos] == [v["cut"] for v in videos]
    assert len({v["cut"] for v in videos}) > 1
    assert all(v["gpu_stage_s"] >= v["gpu_s"] > 0 for v in videos if v["cut"])
    assert all(v["npu_stage_s"] >= v["npu_s"] > 0 for v in videos if v["cut"] < SHAPE.executions)


def drift_of(stream: Seen, given: dict[str, object]) -> Drift:
    """What the stages of a stream took, as the simulator has it: factors of the rates that the policy began with."""
    videos = stream.report["videos"]

    def course(stage: str, rate: str, counts: list[int]) -> Course:
        unit = float(str(given[rate]))
        factors = [v[stage] / (unit * count) if count else 1.0 for v, count in zip(videos, counts, strict=True)]
        return Course(tuple((float(i), factor) for i, factor in enumerate(factors)))

    return Drift(
        "observed", "this stream", "videos",
        course("gpu_stage_s", "gpu_s", [v["cut"] for v in videos]),
        course("npu_stage_s", "npu_s", [SHAPE.executions - v["cut"] for v in videos]),
        course("decode_s", "decode_s", [1] * len(videos)),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["replan", "adaptive"])
def test_a_stream_is_what_the_simulator_makes_of_its_durations(
    programs: dict[str, Path], tmp_path: Path, name: str
) -> None:
    """One video at a time, so that only durations decide, and the GPU gets six times as slow: `hvdc plan simulate` with
    a drift that is what was observed chooses the same cuts, and takes no longer than the coordinator did."""
    given = by(name, slots=1, videos=12, gpu_slows="3:6", dir=tmp_path)
    stream = seen(programs["hvdc_stream_check"], given)
    videos = stream.report["videos"]
    run = simulate(costs(given), "hetero", (0.0,) * 12, policy=policy_of(given), slots=1, drift=drift_of(stream, given))
    assert [v.cut for v in run.videos] == [v["cut"] for v in videos]
    assert summarise(run).makespan_s <= stream.report["seconds"]
    if name == "replan":
        assert videos[-1]["cut"] < videos[0]["cut"], "away from the engine that got slow"


class Again:
    """A policy that chooses the cuts that a stream had."""

    def __init__(self, cuts: list[int]) -> None:
        self._cuts = iter(cuts)

    def decide(self, now_s: float, arrival_s: float, in_flight: Sequence[InFlight]) -> Decision:
        return Decision(next(self._cuts))

    def gpu_done(self, blocks: int, seconds: float) -> None:
        pass

    def npu_done(self, blocks: int, seconds: float, decode_s: float) -> None:
        pass


def test_what_replanning_gains_is_what_the_simulator_says(
    programs: dict[str, Path], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Two videos at a time. By what was observed, the coordinator's cuts are worth what the simulated policy's are, and
    more than the one that it began with: the GPU gets six times as slow."""
    given = by("replan", videos=16, gpu_slows="3:6", dir=tmp_path)
    stream = seen(programs["hvdc_stream_check"], given)
    check_decisions(stream, given)
    cuts, drift = [v["cut"] for v in stream.report["videos"]], drift_of(stream, given)

    def makespan_s(**who: Any) -> float:
        return summarise(simulate(costs(given), "hetero", (0.0,) * 16, drift=drift, **who)).makespan_s

    again_s, fixed_s = makespan_s(policy=Again(cuts)), makespan_s(cut=cuts[0])
    record_property("coordinator_over_simulated", stream.report["seconds"] / again_s)
    record_property("replan_over_static", again_s / fixed_s)
    assert again_s <= stream.report["seconds"], "stages as observed, and nothing between them"
    assert again_s < 0.9 * fixed_s
    assert makespan_s(policy=policy_of(given)) == pytest.approx(again_s, rel=0.25)


@pytest.mark.parametrize("name", POLICIES)
def test_a_video_with_nothing_for_the_gpu_waits_for_those_before_it(
    streams: Streams, tmp_path: Path, name: str
) -> None:
    """The GPU turns out slow when it has many videos; the NPU, which idles, gets whole ones: it would begin them."""
    believed = {"gpu_s": 0.0005, "npu_s": 0.001, "decode_s": 0, "gpu_us": 3000, "npu_us": 0, "decode_us": 0}
    behind = 0
    for seed in (0, 1, 3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        report = streams.run(SHAPE, **by(name, slots=8, videos=20, wild=seed, dir=folder, **believed))
        assert report["ok"], report
        assert report["order"] == list(range(20))
        check(report, SHAPE, folder)
        cuts = [v["cut"] for v in report["videos"]]
        assert [v["gpu_blocks"] for v in report["videos"]] == cuts
        behind += sum(before > 0 == after for before, after in pairwise(cuts))
    assert behind > 1


def test_a_video_that_would_be_late_is_begun_later(programs: dict[str, Path], tmp_path: Path) -> None:
    """The NPU is busy with the one before it for long: the GPU waits, and so does what is behind it."""
    given = by("deadline, from start", videos=5, slots=3, deadline_s=5, decode_s=0.06, decode_us=60_000, dir=tmp_path)
    stream = seen(programs["hvdc_stream_check"], given)
    check_decisions(stream, given)
    check(stream.report, SHAPE, tmp_path)
    held = [v for v in stream.report["videos"] if v["choice"]["not_before_s"] > v["choice"]["at_s"]]
    assert held
    trace = tmp_path / "trace.json"
    report = seen(programs["hvdc_stream_check"], given | {"trace": trace, "resume": 1, "videos": 9}).report
    spans = [e for e in json.loads(trace.read_text()) if e["ph"] == "X" and e["cat"] == "GPU"]
    for before, v in pairwise(report["videos"][4:]):
        starts = [e["ts"] / 1e6 for e in spans if e["args"]["video"] == v["video"]]
        due_s = min(v["choice"]["not_before_s"], before["finished_s"])
        assert all(start >= due_s - 1e-6 for start in starts)  # a trace has whole nanoseconds


def test_a_video_that_would_be_held_for_long_is_begun_when_it_is_the_first(
    programs: dict[str, Path], tmp_path: Path
) -> None:
    """Believed rates are a thousand times those of the engines: nobody waits for what is finished long ago."""
    believed = {"gpu_s": 2, "npu_s": 1, "decode_s": 60}
    given = by("deadline, from start", videos=4, slots=2, deadline_s=5000, dir=tmp_path, **believed)
    stream = seen(programs["hvdc_stream_check"], given)
    check_decisions(stream, given)
    check(stream.report, SHAPE, tmp_path)
    held = [v for v in stream.report["videos"] if v["choice"]["not_before_s"] > v["choice"]["at_s"] + 10]
    assert held
    assert all(v["finished_s"] < v["choice"]["not_before_s"] for v in held)


@pytest.mark.parametrize("name", POLICIES)
def test_what_the_gpu_does_not_finish_the_npu_does(streams: Streams, tmp_path: Path, name: str) -> None:
    """In order, also those that were held, or had nothing for the GPU: with each of its blocks it may die."""
    for position in range(0, SHAPE.executions, 3):
        folder = tmp_path / str(position)
        folder.mkdir()
        report = streams.run(
            SHAPE, **by(name, slots=4, wild=position + 1, dir=folder, gpu_us=500, npu_us=300, die=f"3:{position}")
        )
        assert report["ok"], report
        assert report["order"] == list(range(8))
        check(report, SHAPE, folder)
        if report["gpu_lost"]:
            after = [v for v in report["videos"] if v["choice"] is None]
            assert all(v["cut"] == v["gpu_blocks"] == 0 for v in after)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_goes_on_where_it_was_stopped(streams: Streams, tmp_path: Path, name: str) -> None:
    """Videos that are there keep their cuts, whatever they are; the others get cuts anew."""
    given = by(name, dir=tmp_path, wild=3)
    first = streams.run(SHAPE, **given)
    check(first, SHAPE, tmp_path)
    for video in (1, 2, 6):
        (tmp_path / f"video-{video:06d}.safetensors").unlink()
    report = streams.run(SHAPE, resume=1, **{**given, "wild": 4})
    assert report["ok"], report
    assert report["order"] == [1, 2, 6]
    check(report, SHAPE, tmp_path)
    for before, after in zip(first["videos"], report["videos"], strict=True):
        assert after["skipped"] == (after["video"] not in (1, 2, 6))
        assert not after["skipped"] or after["cut"] == before["cut"]
        _, metadata = kept(tmp_path, after["video"])
        assert (metadata["cut"], metadata["policy"]) == (str(after["cut"]), given["policy"])


def test_results_of_another_policy_are_left_alone(streams: Streams, tmp_path: Path) -> None:
    given = by("replan", dir=tmp_path, videos=2)
    first = streams.run(SHAPE, **given)
    cut = first["videos"][0]["cut"]
    for other in (by("adaptive", dir=tmp_path, videos=2), {**given, "policy": "static", "cut": cut}):
        report = streams.run(SHAPE, resume=1, **other)
        assert not report["ok"]
        assert "is the result of another" in report["failure"]
    assert streams.run(SHAPE, resume=1, **given)["skipped"] == 2


@pytest.mark.parametrize("mode", ["npu", "gpu", "dp", "hetero-tensor"])
def test_only_what_is_cut_can_have_a_policy(streams: Streams, mode: str) -> None:
    report = streams.run(SHAPE, **by("replan", mode=mode))
    assert (report["ok"], report["kind"]) == (False, USAGE)
    assert report["failure"] == (
        f"policy replan chooses the cut of each video, and in mode {mode} none is cut: take mode hetero"
    )
    check_nothing_left(report)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"gpu_s": 0}, "blocks take more than 0 s"),
        ({"npu_s": "nan"}, "measure them again"),
        ({"decode_s": -1}, "a decode 0 s or more"),
        ({"handoff_s": -1}, "a handoff takes 0 s or more, not -1 s"),
        ({"deadline_s": 0}, "policy deadline needs a deadline above 0 s, not 0 s"),
        ({"deadline_s": "inf"}, "needs a deadline above 0 s"),
    ],
)
def test_what_a_policy_cannot_begin_with_is_refused(streams: Streams, more: dict[str, object], said: str) -> None:
    report = streams.run(SHAPE, **by("deadline, from start", **more))
    assert (report["ok"], report["kind"]) == (False, USAGE)
    assert said in report["failure"]
    check_nothing_left(report)


def test_one_cut_for_all_is_what_it_was(streams: Streams, tmp_path: Path) -> None:
    """Results of policy static say nothing of one: a directory that was begun before there were policies goes on."""
    report = streams.run(SHAPE, mode="hetero", cut=5, videos=2, dir=tmp_path, **BEGIN)
    assert [(v["cut"], v["choice"]) for v in report["videos"]] == [(5, None)] * 2
    assert "policy" not in kept(tmp_path, 0)[1]
