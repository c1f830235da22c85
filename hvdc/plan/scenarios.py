"""The same videos in several configurations: what ``hvdc plan simulate`` and ``hvdc plan slo`` ask."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Literal, get_args

from hvdc.errors import UsageError
from hvdc.plan.costs import Costs
from hvdc.plan.placement import Trajectory
from hvdc.plan.policies import Adaptive, DeadlineAware, OnDemand, Replan
from hvdc.plan.results import Since, StreamResult, check_powers, summarise
from hvdc.plan.stages import Mode, stage_sums
from hvdc.plan.stream import Policy, StreamRun, simulate
from hvdc.plan.variation import Drift, Jitter

PolicyName = Literal["static", "replan", "adaptive", "on-demand", "deadline"]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
FACTORS_MAX = 1000
MOST = 1e9
"""Of a deadline in seconds, of a factor and of what it multiplies: their product is a number still."""
DEFAULT_FACTOR = 1.5
"""The paper's, section 6.1."""


@dataclass(frozen=True)
class Configuration:
    """A mode, and in mode ``hetero`` who chooses the cut."""

    mode: Mode
    policy: PolicyName = "static"

    @property
    def name(self) -> str:
        return self.mode if self.mode != "hetero" or self.policy == "static" else f"{self.mode}, {self.policy}"


@dataclass(frozen=True)
class Scenario:
    """What all configurations share. ``cut`` is that of policy ``static``, None where rates do not place one; ``slots``
    None: each mode's own."""

    costs: Costs
    arrivals_s: tuple[float, ...]
    cut: int | None
    slots: int | None = None
    jitter: Jitter = field(default_factory=Jitter)
    drift: Drift | None = None


@dataclass(frozen=True)
class Outcome:
    """Of one configuration: ``run`` and ``result``, or the reason why there are none (a rate that is not known)."""

    configuration: Configuration
    run: StreamRun | None = None
    result: StreamResult | None = None
    why_not: str = ""


@dataclass(frozen=True)
class SloPoint:
    """Videos per hour that meet a deadline of ``factor`` times the reference, per configuration; None where it cannot
    be simulated."""

    factor: float
    deadline_s: float
    compliant_per_hour: tuple[float | None, ...]


def configurations(modes: Iterable[Mode], policies: Sequence[PolicyName]) -> list[Configuration]:
    """Each mode once, ``hetero`` with each policy. Raises UsageError for a policy other than ``static`` without it."""
    modes = list(modes)
    if "hetero" not in modes and list(policies) != ["static"]:
        raise UsageError(
            "a policy chooses the cut of mode hetero, which is not among the modes",
            found=f"--policy {policies[0]}, --mode {modes[0]}",
            fix="add --mode hetero, or leave --policy out",
        )
    return [Configuration(m, p) for m in modes for p in (policies if m == "hetero" else ("static",))]


def compare(
    scenario: Scenario,
    wanted: Sequence[Configuration],
    *,
    deadline_s: float | None = None,
    since: Since = "start",
    powers_w: Mapping[str, float] | None = None,
    tell: Callable[[int], None] | None = None,
    done: Callable[[str], None] | None = None,
) -> list[Outcome]:
    """An outcome for each. Raises UsageError if none of them can be simulated, with the first reason, and for what no
    configuration could be simulated with."""
    if powers_w is not None:
        check_powers(powers_w)
    outcomes = []
    for configuration in wanted:
        if why_not := _why_not(scenario, configuration):
            outcomes.append(Outcome(configuration, why_not=why_not))
        else:
            run = _run(scenario, configuration, deadline_s, since, tell)
            result = summarise(run, deadline_s=deadline_s, since=since, powers_w=powers_w)
            outcomes.append(Outcome(configuration, run, result))
        if done is not None:
            done(configuration.name)
    if outcomes and all(o.result is None for o in outcomes):
        raise UsageError(outcomes[0].why_not, fix="measure it, or choose another mode")
    return outcomes


def slo(
    scenario: Scenario,
    wanted: Sequence[Configuration],
    factors: Sequence[float],
    reference_s: float,
    *,
    since: Since = "start",
    tell: Callable[[int], None] | None = None,
    done: Callable[[str], None] | None = None,
) -> list[SloPoint]:
    """A point for each factor: the paper's figure 7. Only policy ``deadline`` runs the stream anew for each."""
    rows = []
    for configuration in wanted:
        rows.append(_compliant(scenario, configuration, factors, reference_s, since, tell))
        if done is not None:
            done(configuration.name)
    if rows and all(value is None for row in rows for value in row):
        raise UsageError(_why_not(scenario, wanted[0]), fix="measure it, or choose another mode")
    columns = zip(*rows, strict=True)
    return [SloPoint(f, f * reference_s, tuple(column)) for f, column in zip(factors, columns, strict=True)]


def _compliant(
    scenario: Scenario,
    configuration: Configuration,
    factors: Sequence[float],
    reference_s: float,
    since: Since,
    tell: Callable[[int], None] | None,
) -> list[float | None]:
    if _why_not(scenario, configuration):
        return [None] * len(factors)
    run, rates = None, []
    for factor in factors:
        if run is None or configuration.policy == "deadline":
            run = _run(scenario, configuration, factor * reference_s, since, tell)
        deadline = summarise(run, deadline_s=factor * reference_s, since=since).deadline
        rates.append(None if deadline is None else deadline.compliant_per_hour)
    return rates


def reference_latency_s(costs: Costs) -> float:
    """Of deadlines: the latency of a single video on the NPU alone (the paper, section 6.1: "a per-video deadline of
    1.5× the NPU-only single-video latency"). Raises UsageError where the NPU's solo rates are not known."""
    decode_s = costs.decode_s if costs.decode_solo_s is None else costs.decode_solo_s
    return math.fsum(costs.npu.when_alone("npu")) + decode_s


def reference_of(costs: Costs | None, given_s: float | None) -> float:
    """The reference that was given, or `reference_latency_s`. Raises UsageError where there is neither."""
    if given_s is None:
        if costs is None:
            raise UsageError("no rates are given, from which a reference of deadlines would follow",
                             fix="add --reference-s, or --rates")  # fmt: skip
        return reference_latency_s(costs)
    return _positive("a reference", given_s)


def deadline_of(
    costs: Costs | None, factor: float | None, seconds: float | None, reference_s: float | None
) -> tuple[float | None, str]:
    """Seconds: given as they are, or a multiple of the reference (1.5, if nothing is given). None, and why, if nothing
    is given and the reference is not known."""
    if factor is not None and seconds is not None:
        raise UsageError("a deadline is a factor or seconds, not both", fix="leave one of them out")
    if seconds is not None:
        return _positive("a deadline", seconds), ""
    try:
        reference = reference_of(costs, reference_s)
    except UsageError as error:
        if factor is not None or reference_s is not None:
            raise
        return None, f"without a deadline: {error.what}; --deadline-s or --reference-s gives one"
    return _positive("a deadline factor", DEFAULT_FACTOR if factor is None else factor) * reference, ""


def _positive(what: str, value: float) -> float:
    if not 0 < value <= MOST:
        raise UsageError(f"{what} is above 0, and at most {MOST:g}", found=str(value))
    return value


def cut_of(text: str, costs: Costs) -> int | None:
    """A cut as people write it: a number, or ``best``, which is None where the co-run rates that place it are not
    known; ``auto``, as ``hvdc run`` has it, is ``best``."""
    if text in ("best", "auto"):
        known = costs.gpu.co_run_s is not None and costs.npu.co_run_s is not None
        return Trajectory(costs).best().cut if known else None
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) > costs.executions:
        raise UsageError("this is no cut", expected=f"best, auto, or 0 to {costs.executions}", found=text)
    return int(text)


def factors_of(text: str) -> tuple[float, ...]:
    """``1.25:3:0.25`` (from, to, step, both ends included) or ``1.25,1.5,2``, in exact decimals."""
    expected = "FROM:TO:STEP or a list, such as 1.25:3:0.25 or 1.25,1.5,2; factors above 0"
    try:
        if ":" in text:
            first, last, step = (Decimal(part) for part in text.split(":"))
            steps = (last - first) / step if step > 0 and last >= first else Decimal(FACTORS_MAX)
            values = [first + i * step for i in range(int(steps) + 1)] if steps < FACTORS_MAX else []
        else:
            values = [Decimal(part) for part in text.split(",")]
    except (InvalidOperation, ValueError, OverflowError):
        values = []
    if not values or not all(v.is_finite() and 0 < float(v) <= MOST for v in values):
        raise UsageError("these are no deadline factors", expected=expected, found=text)
    return tuple(float(v) for v in values)


def _why_not(scenario: Scenario, configuration: Configuration) -> str:
    """What a configuration needs and nobody has measured, or ``""``."""
    static = configuration.mode == "hetero" and configuration.policy == "static"
    try:
        stage_sums(scenario.costs, configuration.mode, scenario.cut if static else None)
    except UsageError as error:
        return error.what
    return ""


def _run(
    scenario: Scenario,
    configuration: Configuration,
    deadline_s: float | None,
    since: Since,
    tell: Callable[[int], None] | None,
) -> StreamRun:
    policy = _policy(scenario, configuration.policy, deadline_s, since)
    return simulate(
        scenario.costs,
        configuration.mode,
        scenario.arrivals_s,
        cut=scenario.cut if configuration.mode == "hetero" and policy is None else None,
        policy=policy,
        slots=scenario.slots,
        jitter=scenario.jitter,
        drift=scenario.drift,
        tell=tell,
    )


def _policy(scenario: Scenario, name: PolicyName, deadline_s: float | None, since: Since) -> Policy | None:
    if name == "replan":
        return Replan(scenario.costs)
    if name == "adaptive":
        return Adaptive(scenario.costs)
    if name == "on-demand":
        return OnDemand(scenario.costs.executions)
    if name == "deadline":
        if deadline_s is None:
            raise UsageError("policy deadline needs a deadline", fix="add --deadline-factor or --deadline-s")
        return DeadlineAware(scenario.costs, deadline_s, from_start=since == "start")
    return None
