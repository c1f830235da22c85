"""`hvdc_runner --policy` with the real executors: a video is what its cut makes of it, whoever chose that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvdc.plan.costs import Costs, EngineCosts, uniform
from hvdc.plan.cut import Rates
from hvdc.plan.policies import WEIGHT, Adaptive, DeadlineAware, Replan, observed
from hvdc.plan.stream import InFlight
from tests.device_runtime.runs import Done, Runner, tokens, why_no_gpu

EXECUTIONS, VIDEOS = 12, 9
NEEDS_GPU = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")
FAR_OFF = ("--gpu-block-s", 0.0001, "--npu-block-s", 0.0001, "--decode-s", 0.0003)
"""Far less than anything takes here: what is observed decides. An engine that got no block would not be observed."""


@pytest.fixture(scope="session")
def runner(runner: Runner, embeds: Path) -> Runner:
    return runner.with_videos("policies", VIDEOS, embeds)


def chosen(done: Done) -> list[dict[str, Any]]:
    return [event for event in done.events if event["event"] == "cut-chosen"]


def check_replay(done: Done, policy: Replan) -> None:
    """The report alone tells what the policy saw: in Python it chooses the same, to the bit."""
    begin, videos, events = policy.rates, done.report["videos"], {e["video"]: e for e in chosen(done)}
    on_gpu = [v for v in videos if v["cut"]]
    for v in videos:
        choice, rates = v["choice"], begin
        gpu_s, npu_s, decode_s = rates.gpu_block_s, rates.npu_block_s, rates.decode_s
        for w in on_gpu[: choice["gpu_videos"]]:
            gpu_s = observed(gpu_s, w["gpu_stage_s"], w["cut"], WEIGHT)
        for w in videos[: choice["npu_videos"]]:
            npu_s = observed(npu_s, w["npu_stage_s"], EXECUTIONS - w["cut"], WEIGHT)
            decode_s = observed(decode_s, w["decode_s"], 1, WEIGHT)
        policy.rates = Rates(gpu_s, npu_s, decode_s)
        assert policy.rates == Rates(choice["gpu_block_s"], choice["npu_block_s"], choice["decode_s"])
        flying = [
            InFlight(f["cut"], f["gpu_start_s"], f["gpu_end_s"], f["npu_start_s"])
            for f in events[v["video"]]["in_flight"]
        ]
        decision = policy.decide(choice["at_s"], choice["arrival_s"], flying)
        assert (decision.cut, decision.not_before_s) == (v["cut"], choice["not_before_s"])


@NEEDS_GPU
@pytest.mark.parametrize(
    ("name", "more"),
    [("replan", ()), ("adaptive", ()), ("deadline", ("--deadline-s", 8)),
     ("deadline", ("--deadline-s", 40, "--deadline-from", "arrival", "--handoff-s", 0.002))],
)  # fmt: skip
def test_a_video_is_what_its_cut_makes_of_it(
    runner: Runner, name: str, more: tuple[object, ...], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    given = ("--policy", name, *FAR_OFF, *more, "--trace", trace)
    done = runner.finished(tmp_path / "out", "hetero", *given)
    report, videos = done.report, done.report["videos"]
    assert (report["policy"], report["cut_source"]) == (name, "rates")
    assert [v["gpu_blocks"] for v in videos] == [v["cut"] for v in videos]
    assert [(e["video"], e["position"]) for e in chosen(done)] == [(v["video"], v["cut"]) for v in videos]
    cuts = {v["cut"] for v in videos}
    assert len(cuts) > 1
    for cut in cuts:
        same = runner.finished(tmp_path / str(cut), "hetero", "--cut", cut)
        for v in videos:
            if v["cut"] == cut:
                np.testing.assert_array_equal(
                    tokens(tmp_path / "out", v["video"]), tokens(tmp_path / str(cut), v["video"])
                )
        assert same.report["policy"] == "static"
    engine = [EngineCosts(uniform(s, EXECUTIONS), uniform(s, EXECUTIONS)) for s in (0.0001, 0.0001)]
    costs = Costs(EXECUTIONS, engine[0], engine[1], 0.0003, 0.002 if "--handoff-s" in more else 0.0)
    policy = {"replan": Replan, "adaptive": Adaptive}.get(name)
    start = "arrival" not in more
    check_replay(done, policy(costs) if policy else DeadlineAware(costs, float(str(more[1])), from_start=start))
    said = [e["name"] for e in json.loads(trace.read_text()) if e["name"].startswith("video ")]
    assert said == [e["text"] for e in chosen(done)]
    assert said[0].startswith(f"video 0: cut {videos[0]['cut']} of 12: a block takes 0.0001 s on the GPU")


@NEEDS_GPU
def test_rates_are_timed_where_none_are_given(runner: Runner, tmp_path: Path) -> None:
    done = runner.finished(tmp_path / "out", "hetero", "--policy", "replan")
    rates = Rates(**done.report["rates"])
    assert done.report["cut_source"] == "measured"
    first = done.report["videos"][0]
    assert Rates(*(first["choice"][name] for name in ("gpu_block_s", "npu_block_s", "decode_s"))) == rates
    assert first["cut"] == done.report["cut"], "where one cut for all would be"


@NEEDS_GPU
def test_the_gpu_is_there_also_where_the_first_cut_is_0(runner: Runner, tmp_path: Path) -> None:
    """By the rates that it begins with; the policy may choose another one later."""
    rates = ("--gpu-block-s", 1e6, "--npu-block-s", 1e-6)
    report = runner.finished(tmp_path / "out", "hetero", "--policy", "adaptive", *rates).report
    assert (report["cut"], report["cut_source"]) == (0, "rates")
    assert report["videos"][0]["choice"]["gpu_block_s"] == 1e6
    assert min(report["gpu_engine_bytes"], report["forecast"]["gpu_engine_bytes"]) > 0


@NEEDS_GPU
def test_a_stream_goes_on_with_whatever_cuts_it_has(runner: Runner, tmp_path: Path) -> None:
    given = ("--policy", "adaptive", *FAR_OFF)
    before = runner.finished(tmp_path / "out", "hetero", *given).report["videos"]
    for video in (0, 4):
        (tmp_path / "out" / f"video-{video:06d}.safetensors").unlink()
    again = runner.finished(tmp_path / "out", "hetero", *given, "--resume").report
    assert (again["finished"], again["skipped"]) == (2, VIDEOS - 2)
    for old, new in zip(before, again["videos"], strict=True):
        assert new["skipped"] == (new["video"] not in (0, 4))
        assert not new["skipped"] or (new["cut"], new["gpu_blocks"]) == (old["cut"], old["gpu_blocks"])
    other = runner.run(tmp_path / "out", "hetero", "--cut", before[1]["cut"], "--resume")
    assert (other.status, "is the result of another" in other.said) == (2, True)


@NEEDS_GPU
def test_without_a_policy_all_is_as_it_was(runner: Runner, tmp_path: Path) -> None:
    done = runner.finished(tmp_path / "out", "hetero", "--cut", 5)
    assert done.report["policy"] == "static"
    assert all((v["cut"], v["choice"]) == (5, None) for v in done.report["videos"])
    assert not chosen(done)
    runner.finished(tmp_path / "static", "hetero", "--cut", 5, "--policy", "static")
    for video in range(VIDEOS):
        name = f"video-{video:06d}.safetensors"
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "static" / name).read_bytes()


@pytest.mark.parametrize(
    ("mode", "more", "words"),
    [
        ("npu", ("--policy", "replan"), "a policy chooses the cut of each video, and mode npu has none"),
        ("dp", ("--policy", "adaptive"), "and mode dp has none"),
        ("hetero-tensor", ("--policy", "replan"), "and mode hetero-tensor has none"),
        ("hetero", ("--policy", "on-demand"), "--policy does not take on-demand"),
        ("hetero", ("--policy", "replan", "--cut", 3), "--cut has no effect with policy replan"),
        ("hetero", ("--policy", "replan", "--deadline-s", 3), "--deadline-s has no effect without --policy deadline"),
        ("hetero", ("--deadline-from", "start"), "--deadline-from has no effect without --policy deadline"),
        ("hetero", ("--handoff-s", 1), "--handoff-s has no effect without a --policy"),
        ("hetero", ("--policy", "deadline"), "policy deadline needs a deadline: give --deadline-s"),
        ("hetero", ("--policy", "deadline", "--deadline-s", 0), "--deadline-s does not take 0"),
        ("hetero", ("--policy", "deadline", "--deadline-from", "end"), "--deadline-from does not take end"),
        ("hetero", ("--policy", "replan", "--gpu-block-s", 0, "--npu-block-s", 1), "do not place a cut"),
    ],
)
def test_options_that_make_no_sense(
    runner: Runner, mode: str, more: tuple[object, ...], words: str, tmp_path: Path
) -> None:
    done = runner.run(tmp_path / "out", mode, *more)
    assert done.status == 2, done.said
    assert words in done.report["error"]["what"]
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []
