"""Hundreds of streams at random: shapes, cuts, slots, delays, deaths, damaged messages. Whatever happens to the GPU's
process, every video is finished and is what it says it is, in order, and nothing is left behind."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.device_runtime.streams import Shape, Streams, check, shared_columns

STREAMS = 240
SHARED = 60
CUT_ANEW = 100
WORKERS = 2
FAULTS = ("die", "die_in_advance", "scribble", "exit", "hang", "gpu_fails")
Draw = Callable[[int], tuple[Shape, dict[str, Any]]]
DAMAGE = ("flip", "truncate", "empty", "lengthen", "drop", "repeat", "swap", "close")


def draw(seed: int) -> tuple[Shape, dict[str, Any]]:
    """A stream. Most have a fault, at a place that it may or may not reach."""
    r = random.Random(seed)
    steps, layers = r.randint(1, 5), r.randint(1, 6)
    shape = Shape(steps, layers, r.randint(1, 9), r.randint(1, 9), r.randint(1, 5), r.randint(1, 4), r.randint(1, 4),
                  r.randint(0, steps))  # fmt: skip
    videos = r.randint(1, 6)
    more: dict[str, Any] = {
        "mode": r.choices(["hetero", "gpu", "dp", "npu"], [6, 2, 2, 1])[0],
        "cut": r.randint(0, shape.executions),
        "videos": videos,
        "slots": r.choice([0, 0, 1, 2, 3, 4]),
        "per_call": r.choice([0, 0, 1, 2, 3, 7]),
        "seed": seed,
        "silence_s": 0.3,
    }
    for delay in ("gpu_us", "npu_us", "host_us", "decode_us", "load_us"):
        more[delay] = r.choice([0, 0, 100, 300, 800])
    fault = r.random()
    if fault < 0.5:
        kind = r.choices(FAULTS, [4, 2, 2, 2, 1, 2])[0]
        place = r.randrange(steps) if kind in ("die_in_advance", "scribble") else r.randrange(shape.executions)
        more[kind] = f"{r.randrange(videos)}:{place}"
    elif fault < 0.85:
        # Not before the stream has started: that is refused, and tested elsewhere.
        if r.random() < 0.7:
            more["proxy"] = f"{r.choice(DAMAGE)}:worker:{r.randint(2, 60)}"
        else:
            slots = more["slots"] or {"dp": 3}.get(more["mode"], 2)
            more["proxy"] = f"{r.choice(DAMAGE)}:owner:{1 + slots + r.randint(0, 8)}"
    return shape, more


def draw_shared(seed: int) -> tuple[Shape, dict[str, Any]]:
    """One whose linears are shared, of one to four tiles of columns."""
    shape, more = draw(seed)
    r = random.Random(-seed)
    more |= {"mode": "hetero-tensor", "share": r.choice([0.1, 0.3, 0.5, 0.5, 0.7, 1.0])}
    if more.get("proxy", "").split(":")[1:2] == ["owner"]:
        how, who, number = more["proxy"].split(":")
        more["proxy"] = f"{how}:{who}:{int(number) + 1}"  # the exchange is a message of the start, too
    return replace(shape, width=r.choice([9, 40, 64, 100])), more


def draw_policy(seed: int) -> tuple[Shape, dict[str, Any]]:
    """One whose videos are cut by a policy, which begins with rates that may be far from those of its engines; these
    differ from video to video."""
    shape, more = draw(seed)
    r = random.Random(-seed)
    more |= {
        "mode": "hetero", "slots": r.choice([0, 1, 3, 4, 8]), "policy": r.choice(["replan", "adaptive", "deadline"]),
        "gpu_s": 10 ** r.uniform(-5, -2.5), "npu_s": 10 ** r.uniform(-5, -2.5),
        "decode_s": r.choice([0, 10 ** r.uniform(-5, -2.5)]), "handoff_s": r.choice([0, 0.0005]),
        "deadline_s": 10 ** r.uniform(-3, -1), "from_start": r.randint(0, 1), "wild": r.choice([0, seed]),
    }  # fmt: skip
    if more.get("proxy", "").split(":")[1:2] == ["owner"]:
        more["proxy"] = f"{r.choice(DAMAGE)}:owner:{1 + (more['slots'] or 2) + r.randint(0, 8)}"
    return shape, more


def run(streams: Streams, seed: int, directory: Path, drawn: Draw = draw) -> dict[str, Any]:
    shape, more = drawn(seed)
    directory.mkdir()
    report = streams.run(shape, dir=directory, **more)
    assert report["ok"], (seed, shape, more, report)
    assert report["finished"] == more["videos"], (seed, report)
    if more["mode"] != "dp":
        assert report["order"] == list(range(more["videos"])), (seed, report)
    columns = shared_columns(shape, more["share"]) if "share" in more else None
    check(report, shape, directory, more["seed"], columns)
    if "policy" in more:
        for video in report["videos"]:
            part = video["gpu_blocks"]
            assert part == video["cut"] or (report["gpu_lost"] and part % shape.layers == 0), (seed, report)
        return report
    parts = [v["gpu_blocks"] for v in report["videos"]]
    whole = {"npu": 0, "hetero": more["cut"]}.get(more["mode"], shape.executions)
    allowed = {0, whole} if more["mode"] == "dp" else {whole}
    if not report["gpu_lost"]:
        assert set(parts) <= allowed, (seed, report)
    for video in report["videos"]:
        assert video["gpu_blocks"] in allowed or report["gpu_lost"], (seed, report)
        assert video["gpu_blocks"] in allowed or video["gpu_blocks"] % shape.layers == 0, (seed, report)
    return report


@pytest.fixture(scope="module")
def reports(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    root = tmp_path_factory.mktemp("random")

    def share(first: int) -> list[dict[str, Any]]:
        with Streams(programs["hvdc_stream_check"]) as streams:
            return [run(streams, seed, root / str(seed)) for seed in range(first, STREAMS, WORKERS)]

    with ThreadPoolExecutor(WORKERS) as pool:
        return [report for part in pool.map(share, range(WORKERS)) for report in part]


def test_nothing_is_lost_whatever_happens(reports: list[dict[str, Any]]) -> None:
    assert len(reports) == STREAMS


def test_the_faults_did_happen(reports: list[dict[str, Any]]) -> None:
    """A test of the test: deaths, refusals, silence and damage of each kind were seen, and undisturbed streams."""
    reasons = ("closed its end", "refuses block", "silent", "digest", "another length", "shorter", "longer", "number")
    seen = Counter(reason for report in reports for reason in reasons if reason in report["note"])
    assert all(seen[reason] for reason in reasons), seen
    assert sum(not report["gpu_lost"] for report in reports) > STREAMS // 5
    assert sum(video["recovered"] for report in reports for video in report["videos"]) > STREAMS // 5


def test_nothing_is_lost_where_linears_are_shared(programs: dict[str, Path], tmp_path: Path) -> None:
    with Streams(programs["hvdc_stream_check"]) as streams:
        reports = [run(streams, seed, tmp_path / str(seed), draw_shared) for seed in range(1000, 1000 + SHARED)]
    lost = [report for report in reports if report["gpu_lost"]]
    assert SHARED // 5 < len(lost) < SHARED - SHARED // 5
    recovered = [video for report in lost for video in report["videos"] if video["recovered"]]
    assert any(video["gpu_blocks"] for video in recovered)


def test_nothing_is_lost_where_a_policy_cuts(programs: dict[str, Path], tmp_path: Path) -> None:
    with Streams(programs["hvdc_stream_check"]) as streams:
        reports = [run(streams, seed, tmp_path / str(seed), draw_policy) for seed in range(2000, 2000 + CUT_ANEW)]
    lost = [report for report in reports if report["gpu_lost"]]
    assert CUT_ANEW // 5 < len(lost) < CUT_ANEW - CUT_ANEW // 5
    assert any(video["recovered"] and video["gpu_blocks"] for report in lost for video in report["videos"])
    cuts = [{video["cut"] for video in report["videos"]} for report in reports]
    assert sum(len(of) > 2 for of in cuts) > CUT_ANEW // 5
    assert sum(len(of) > 1 and 0 in of for of in cuts) > CUT_ANEW // 20, "some have nothing for the GPU"
