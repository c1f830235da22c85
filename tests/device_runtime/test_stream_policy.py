"""A policy in C decides what the same policy in Python decides, through whole simulated streams: every cut, time and
rate is the same to the bit, and so is what `hvdc plan simulate` says of a stream under it."""

from __future__ import annotations

import math
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from hvdc.plan.costs import Costs, EngineCosts, mean_rates, uniform
from hvdc.plan.policies import Adaptive, DeadlineAware, Replan
from hvdc.plan.rates import load_rates
from hvdc.plan.stream import Decision, InFlight, simulate
from hvdc.plan.variation import Jitter, load_drift
from tests.device_runtime.test_policy import normal

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "examples" / "rates" / "galaxy-s25-49-frames-b.toml"
DRIFTS = sorted((ROOT / "examples" / "drift").glob("*.toml"))
POLICIES = ("replan", "adaptive", "deadline, from start", "deadline, from arrival")


def hexed(*values: float | None) -> str:
    return " ".join("nan" if v is None else float(v).hex() for v in values)


class Spy:
    """A policy that also writes down what it was asked, as hvdc_cut reads it, and what it answered."""

    def __init__(self, name: str, costs: Costs, deadline_s: float = 1.0) -> None:
        from_start = name.endswith("start")
        self._policy = (
            DeadlineAware(costs, deadline_s, from_start=from_start)
            if name.startswith("deadline")
            else {"replan": Replan, "adaptive": Adaptive}[name](costs)
        )
        rates = mean_rates(costs)
        begun = (rates.gpu_block_s, rates.npu_block_s, rates.decode_s)
        self.asked = [
            f"stream {name.partition(',')[0]} {hexed(*begun)} {costs.executions} {hexed(costs.handoff_s, deadline_s)} "
            f"{int(from_start)}"
        ]
        self.answered = ["begun"]
        self.cuts: list[int] = []

    def decide(self, now_s: float, arrival_s: float, in_flight: Sequence[InFlight]) -> Decision:
        decision = self._policy.decide(now_s, arrival_s, in_flight)
        on_way = "".join(f" {v.cut} {hexed(v.gpu_start_s, v.gpu_end_s, v.npu_start_s)}" for v in in_flight)
        self.asked.append(f"decide {hexed(now_s, arrival_s)} {len(in_flight)}{on_way}")
        self.answered.append(f"{decision.cut} {float(decision.not_before_s).hex()}")
        self.cuts.append(decision.cut)
        return decision

    def gpu_done(self, blocks: int, seconds: float) -> None:
        self._policy.gpu_done(blocks, seconds)
        self.asked.append(f"gpu-done {blocks} {hexed(seconds)}")
        self.answered.append(self._policy.rates.gpu_block_s.hex())

    def npu_done(self, blocks: int, seconds: float, decode_s: float) -> None:
        self._policy.npu_done(blocks, seconds, decode_s)
        self.asked.append(f"npu-done {blocks} {hexed(seconds, decode_s)}")
        self.answered.append(hexed(self._policy.rates.npu_block_s, self._policy.rates.decode_s))


def in_c(programs: dict[str, Path], spy: Spy) -> list[str]:
    done = subprocess.run(
        [programs["hvdc_cut"]], input="\n".join(spy.asked), capture_output=True, text=True, check=True, timeout=60
    )
    return [normal(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("drift", [None, *DRIFTS], ids=lambda path: "none" if path is None else path.stem)
def test_streams_of_the_paper_that_drift(programs: dict[str, Path], name: str, drift: Path | None) -> None:
    """Those of docs/CLI.md: 120 videos, jitter, an engine that throttles."""
    costs = load_rates(TABLE).costs()
    spy = Spy(name, costs, deadline_s=1375.0 if name.endswith("start") else 20_000.0)
    run = simulate(
        costs,
        "hetero",
        (0.0,) * 120,
        policy=spy,
        jitter=Jitter(0.02),
        drift=None if drift is None else load_drift(drift),
    )
    assert in_c(programs, spy) == spy.answered
    assert [video.cut for video in run.videos] == spy.cuts
    assert len(set(spy.cuts)) > (1 if drift is None else 3)


@pytest.mark.parametrize("name", POLICIES)
def test_streams_of_any_engines(programs: dict[str, Path], name: str) -> None:
    """Ratios of all kinds, handoffs, arrivals, one to five videos in flight."""
    draw, asked, answered, cuts = random.Random(name), [], [], set()
    for seed in range(60):
        executions = draw.choice([1, 12, 180])

        def engine(n: int = executions) -> EngineCosts:
            rate = uniform(10 ** draw.uniform(-2, 1), n)
            return EngineCosts(rate, rate)

        costs = Costs(executions, engine(), engine(), draw.choice([0.0, 10 ** draw.uniform(-1, 3)]),
                      draw.choice([0.0, 0.1, 3.0]))  # fmt: skip
        alone_s = math.fsum(costs.npu.when_alone("npu")) + costs.decode_s
        arrivals = sorted(draw.choice([0.0, draw.uniform(0, 20 * alone_s)]) for _ in range(20))
        spy = Spy(name, costs, deadline_s=alone_s * draw.uniform(0.3, 4))
        simulate(costs, "hetero", arrivals, policy=spy, slots=draw.randint(1, 5), jitter=Jitter(0.2, seed))
        asked += spy.asked
        answered += spy.answered
        cuts |= set(spy.cuts)
    spy.asked, spy.answered = asked, answered
    assert in_c(programs, spy) == answered
    assert len(cuts) > 20
    if name == "deadline, from start":
        waits = [a.split()[1] for q, a in zip(asked, answered, strict=True) if q.startswith("decide")]
        nows = [q.split()[1] for q in asked if q.startswith("decide")]
        assert sum(w != n for w, n in zip(waits, nows, strict=True)) > 20, "the GPU is to wait"


@pytest.mark.parametrize(
    "words",
    ["replan 0 1 1 12 0 0 0", "adaptive 1 -1 1 12 0 0 0", "replan 1 1 1 12 -1 0 0", "replan 1 1 1 12 nan 0 0",
     "deadline 1 1 1 12 0 0 1", "deadline 1 1 1 12 0 inf 1", "deadline 1 1 nan 12 0 1 0"],
)  # fmt: skip
def test_what_no_policy_can_begin_with(programs: dict[str, Path], words: str) -> None:
    done = subprocess.run(
        [programs["hvdc_cut"]], input=f"stream {words}", capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "refused\n"
