"""Who chooses the cut of each video of `hvdc run`, by the names and options of `hvdc plan simulate`."""

from __future__ import annotations

from dataclasses import dataclass

from hvdc.errors import UsageError
from hvdc.plan.rates import RateTable
from hvdc.plan.results import Since
from hvdc.plan.scenarios import POLICIES, PolicyName, deadline_of

RUN_POLICIES: tuple[PolicyName, ...] = tuple(name for name in POLICIES if name != "on-demand")
"""`on-demand` needs a GPU that can be told to stop after the block that it is in, and the runtime's cannot."""


@dataclass(frozen=True)
class PolicyChoice:
    """As asked for. ``name`` other than ``static`` belongs to mode ``hetero``, the others to ``deadline``."""

    name: PolicyName = "static"
    deadline_factor: float | None = None
    deadline_s: float | None = None
    reference_s: float | None = None
    since: Since = "start"


@dataclass(frozen=True)
class RunPolicy:
    """What the runtime is told, beside the rates that it begins with. ``deadline_s``, ``since``: of policy
    ``deadline``, else None. ``handoff_s``: of a rate table, else 0."""

    name: PolicyName
    handoff_s: float
    deadline_s: float | None
    since: Since | None

    @property
    def arguments(self) -> list[object]:
        """Of `hvdc_runner`."""
        out: list[object] = ["--policy", self.name, "--handoff-s", self.handoff_s]
        if self.deadline_s is not None:
            out += ["--deadline-s", self.deadline_s, "--deadline-from", self.since]
        return out


def policy_of(choice: PolicyChoice, table: RateTable | None) -> RunPolicy | None:
    """None for one cut of all videos. Raises UsageError where a deadline is asked for and does not follow."""
    if choice.name == "static":
        return None
    costs = None if table is None else table.costs()
    handoff_s = 0.0 if costs is None else costs.handoff_s
    if choice.name != "deadline":
        return RunPolicy(choice.name, handoff_s, None, None)
    deadline_s, why_none = deadline_of(costs, choice.deadline_factor, choice.deadline_s, choice.reference_s)
    if deadline_s is None:
        raise UsageError(
            "policy deadline needs a deadline", found=why_none,
            fix="add --deadline-s, or --reference-s, or --rates with a table of solo rates",
        )  # fmt: skip
    return RunPolicy(choice.name, handoff_s, deadline_s, choice.since)
