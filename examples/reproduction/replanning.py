"""What it is worth to place the cut anew between videos, which the paper leaves open (its section 8)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from examples.rates.derive import DRIFT
from examples.reproduction.document import signed
from hvdc.plan.cut import best_cut, period_s
from hvdc.plan.plots import Change
from hvdc.plan.policies import WEIGHT
from hvdc.plan.rates import RateTable
from hvdc.plan.scenarios import (
    Configuration,
    Outcome,
    PolicyName,
    Scenario,
    SloPoint,
    compare,
    reference_latency_s,
    slo,
)
from hvdc.plan.variation import Course, Drift, Jitter, load_drift

VIDEOS = 120
JITTER = 0.03
SEED = 7
FACTORS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.75, 2.0)
SHOWN: tuple[PolicyName, ...] = ("static", "replan", "on-demand")
DRIFTS = Path(__file__).resolve().parents[1] / "drift"


@dataclass(frozen=True)
class Case:
    """A way in which a device may differ from its table. ``videos_per_hour`` by policy."""

    name: str
    drift: Drift | None
    videos_per_hour: dict[PolicyName, float]

    def gain(self, policy: PolicyName) -> float:
        """Over the fixed cut, in percent."""
        return 100 * (self.videos_per_hour[policy] / self.videos_per_hour["static"] - 1)


def cases(b: RateTable) -> list[Case]:
    """Every drift that is compared, simulated."""
    return [Case(name, drift, _simulated(b, drift)) for name, drift in _drifts(b)]


def changes(compared: Sequence[Case], policy: PolicyName) -> list[Change]:
    """As they are drawn."""
    return [Change(c.name, c.videos_per_hour["static"], c.videos_per_hour[policy]) for c in compared]


@cache
def deadlines(b: RateTable) -> tuple[list[SloPoint], list[Configuration], float]:
    """Videos in time with policy ``deadline``, with the cut fixed and on the NPU alone, over deadlines, without drift;
    and what the deadlines are multiples of."""
    wanted = [Configuration("hetero", "deadline"), Configuration("hetero"), Configuration("npu")]
    reference_s = reference_latency_s(b.costs())
    return slo(_scenario(b, None), wanted, FACTORS, reference_s), wanted, reference_s


def table(compared: Sequence[Case]) -> str:
    """In Markdown."""
    lines = [
        f"| the device | {' | '.join(SHOWN)} | gain of {SHOWN[-2]} | gain of {SHOWN[-1]} |",
        "|---|" + "--:|" * (len(SHOWN) + 2),
    ]
    for case in compared:
        rates = [case.videos_per_hour[policy] for policy in SHOWN]
        gains = [case.gain(policy) for policy in SHOWN[1:]]
        cells = [f"{rate:.2f}" for rate in rates] + [f"{signed(gain, 1)} %" for gain in gains]
        lines.append(f"| {case.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def explained(b: RateTable, compared: Sequence[Case]) -> str:
    """When it pays, and by how much: the text of the section."""
    gains = {case.name: case.gain("replan") for case in compared}
    ahead = [100 * (c.videos_per_hour["on-demand"] / c.videos_per_hour["replan"] - 1) for c in compared]
    jitter = f"{100 * JITTER:.0f} %"
    paragraphs = (
        "The paper fixes the cut at the start and notes that a runner could recompute it between videos. `hvdc plan "
        "simulate --policy` simulates that, and `hvdc run --policy` does it: `static` keeps the best cut of the table; "
        "`replan` takes the best cut of the rates as "
        f"observed, in which each new observation has a weight of {WEIGHT:g}; `on-demand` plans nothing, the GPU works "
        "on a video until the NPU has nothing to do; `deadline` plans, with fewer blocks on the GPU where a video "
        "would else be late. [CLI.md](CLI.md#a-cut-for-each-video) says how to run these, and what they do to short "
        "streams and to videos that arrive one by one.",
        f"Videos per hour, of {VIDEOS} videos by table B whose stages deviate by {jitter} (seed {SEED}). How long T_V "
        "takes is from the paper's range; how an engine throttles is assumed ([examples/drift](../examples/drift)), no "
        "phone was measured:",
        table(compared),
        "**It pays where the engines change by different amounts**, most where the GPU throttles, whose blocks are the "
        f"dearer ones: {max(gains.values()):.0f} % there. It gains nothing where both change alike or the table is "
        f"right, and loses at most {max(0.0, -min(gains.values())):.1f} %. `on-demand` is ahead of it everywhere, by "
        f"{min(ahead):.1f} to {max(ahead):.1f} %, and needs a GPU that stops when it is told to.",
        _on_deadlines(b),
    )
    return "\n\n".join(p if p.startswith("|") else textwrap.fill(p, 120) for p in paragraphs)


def _on_deadlines(b: RateTable) -> str:
    points, wanted, reference_s = deadlines(b)
    by_name = {c.name: [p.compliant_per_hour[n] or 0.0 for p in points] for n, c in enumerate(wanted)}
    fixed, aware, npu = by_name["hetero"], by_name["hetero, deadline"], by_name["npu"]
    slo_at, tight_at = FACTORS.index(1.5), FACTORS.index(1.3)
    return (
        "**Deadlines are another matter.** A video of two balanced stages takes two periods, "
        f"{2 * _period_s(b) / reference_s:.2f} times the NPU's latency: with stages that deviate by "
        f"{100 * JITTER:.0f} % many miss the paper's factor of 1.5. Videos per hour that are in time, as the last "
        f"picture shows: at 1.5 {aware[slo_at]:.2f} with policy `deadline`, {fixed[slo_at]:.2f} with the cut fixed and "
        f"{npu[slo_at]:.2f} on the NPU alone; at 1.3 {aware[tight_at]:.2f}, {fixed[tight_at]:.2f} and "
        f"{npu[tight_at]:.2f}."
    )


def _period_s(b: RateTable) -> float:
    return period_s(b.rates, b.executions, best_cut(b.rates, b.executions))


def _simulated(b: RateTable, drift: Drift | None) -> dict[PolicyName, float]:
    outcomes = compare(_scenario(b, drift), [Configuration("hetero", policy) for policy in SHOWN])
    return {o.configuration.policy: _per_hour(o) for o in outcomes}


def _per_hour(outcome: Outcome) -> float:
    if outcome.result is None:
        raise ValueError(outcome.why_not)
    return outcome.result.videos_per_hour


def _scenario(b: RateTable, drift: Drift | None) -> Scenario:
    cut = best_cut(b.rates, b.executions)
    return Scenario(b.costs(), (0.0,) * VIDEOS, cut, jitter=Jitter(JITTER, SEED), drift=drift)


def _drifts(b: RateTable) -> list[tuple[str, Drift | None]]:
    least, most = (DRIFT.number(text) for text in ("186", "270"))

    def decodes(seconds: float) -> Drift:
        """All of them take so long."""
        return Drift(f"{seconds:.0f} s", DRIFT.source(), "seconds", decode=Course(((0.0, seconds / b.rates.decode_s),)))

    return [
        ("as its table says", None),
        (f"T_V = {most:.0f} s, the longest of the paper", decodes(most)),
        (f"T_V = {least:.0f} s, the shortest", decodes(least)),
        ("T_V between them, to and fro", load_drift(DRIFTS / "decoder.toml")),
        ("the GPU throttles to 1.5 times its time", load_drift(DRIFTS / "gpu-throttles.toml")),
        ("the NPU does", load_drift(DRIFTS / "npu-throttles.toml")),
        ("both do", load_drift(DRIFTS / "both-throttle.toml")),
    ]
