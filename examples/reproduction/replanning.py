"""What it is worth to place the cut anew between videos, which the paper leaves open (its section 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from examples.rates.derive import DRIFT
from hvdc.plan.cut import best_cut
from hvdc.plan.plots import Change
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
from hvdc.plan.variation import FLAT, Course, Drift, Jitter

VIDEOS = 400
JITTER = 0.03
SEED = 7
FACTORS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.75, 2.0)
SHOWN: tuple[PolicyName, ...] = ("static", "replan", "adaptive")
ASSUMED = "assumed for this comparison; no phone was measured"


@dataclass(frozen=True)
class Case:
    """A way in which a device may differ from its table. ``videos_per_hour`` by policy."""

    name: str
    drift: Drift | None
    videos_per_hour: dict[PolicyName, float]


def cases(b: RateTable) -> list[Case]:
    """Every drift that is compared, simulated."""
    return [Case(name, drift, _simulated(b, drift)) for name, drift in _drifts(b)]


def changes(compared: Sequence[Case], policy: PolicyName) -> list[Change]:
    """As they are drawn."""
    return [Change(c.name, c.videos_per_hour["static"], c.videos_per_hour[policy]) for c in compared]


def deadlines(b: RateTable) -> tuple[list[SloPoint], list[Configuration], float]:
    """Compliant videos of each policy over deadlines, without drift; and what the deadlines are multiples of."""
    wanted = [Configuration("npu"), *(Configuration("hetero", p) for p in (*SHOWN, "deadline"))]
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
        gains = [100 * (rate / rates[0] - 1) for rate in rates[1:]]
        cells = [f"{rate:.2f}" for rate in rates] + [f"{gain:+.1f} %".replace("-", "−") for gain in gains]
        lines.append(f"| {case.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


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
    table_s = b.rates.decode_s
    least, most = DRIFT.number("186") / table_s, DRIFT.number("270") / table_s
    hot = _course((0, 1.0), (7_200, 1.3))
    waves = tuple((float(n * 50), most if n % 2 else least) for n in range(VIDEOS // 50 + 1))

    def drift(source: str, over: str = "seconds", **courses: Course) -> Drift:
        return Drift("reproduction", source, "videos" if over == "videos" else "seconds", **courses)

    said = DRIFT.source()
    return [
        ("as its table says", None),
        ("T_V = 270 s, the longest of the paper", drift(said, decode=_course((0, most)))),
        ("T_V = 186 s, the shortest", drift(said, decode=_course((0, least)))),
        ("T_V from 186 to 270 s and back", drift(said, "videos", decode=Course(waves))),
        ("the GPU slows to 1.3 × in 2 hours", drift(ASSUMED, gpu=hot)),
        ("the NPU slows to 1.3 × in 2 hours", drift(ASSUMED, npu=hot, decode=hot)),
        ("both slow alike", drift(ASSUMED, gpu=hot, npu=hot, decode=hot)),
    ]


def _course(*points: tuple[float, float]) -> Course:
    return Course(points) if points else FLAT
