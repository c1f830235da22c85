"""`hvdc plan cut`: a table of rates becomes a cut, with what else could have been chosen and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hvdc.plan.balance import Balance, balance_of
from hvdc.plan.fitting import Model
from hvdc.plan.placement import Changed, Stages, Trajectory, legal_range, sensitivity
from hvdc.plan.rates import RateTable

CHANGE = 0.05
"""Sensitivity is shown for rates that are this much lower and higher."""


@dataclass(frozen=True)
class CutRequest:
    """``min_cut``, ``max_cut``: the cuts that may be chosen; None: any. ``around``: cuts to show on each side."""

    min_cut: int | None = None
    max_cut: int | None = None
    around: int = 3


@dataclass(frozen=True)
class CutPlan:
    """``shown``: cuts around the chosen one and the step boundaries on its sides. ``switch``: κ·L, the first block of
    the detail expert; None: not known. ``alone_s``, ``npu_only_s``: of a single video at the cut, and of one on the NPU
    only; None without solo rates."""

    table: RateTable
    chosen: Stages
    shown: tuple[Stages, ...]
    changed: tuple[Changed, ...]
    switch: int | None
    alone_s: float | None
    npu_only_s: float | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class BalancePlan:
    """As `CutPlan`, of a table that has idle times and no co-run rates. ``changed``: sum, factor, and what balances the
    engines where it is changed by the factor."""

    table: RateTable
    balance: Balance
    cut: int
    shown: tuple[int, ...]
    changed: tuple[tuple[str, float, Balance], ...]
    switch: int | None
    notes: tuple[str, ...]


def plan_cut(table: RateTable, request: CutRequest, model: Model | None = None) -> CutPlan | BalancePlan:
    """Place the cut. Raises UsageError for rates that are not known, and for a range of cuts that there is not."""
    first, last = legal_range(table.executions, request.min_cut or 0, request.max_cut)
    semantic_steps = table.semantic_steps if model is None else model.semantic_steps
    switch = None if semantic_steps is None else semantic_steps * table.layers
    notes = _notes(switch, model)
    if table.idle and not table.has_co_run_rates:
        balance = balance_of(table.idle, table.executions)
        cut = balance.best_cut(first, last)
        changed = tuple(
            (key, factor, balance.changed(**{key: factor}))
            for key in ("both", "npu")
            for factor in (1 - CHANGE, 1 + CHANGE)
        )
        return BalancePlan(table, balance, cut, _shown(table, cut, request.around), changed, switch, notes)
    table.require_co_run_rates()
    if table.handoff_s is None:
        notes += ("the table has no handoff: it counts as 0 s",)
    costs = table.costs()
    trajectory = Trajectory(costs)
    chosen = trajectory.best(first, last)
    shown = tuple(trajectory.stages(cut) for cut in _shown(table, chosen.cut, request.around))
    alone_s = npu_only_s = None
    if table.has_solo_rates:
        alone = Trajectory.alone(costs)
        alone_s, npu_only_s = alone.stages(chosen.cut).latency_s, alone.stages(0).npu_s
    return CutPlan(
        table, chosen, shown, sensitivity(costs, chosen.cut, CHANGE, first, last), switch, alone_s, npu_only_s, notes
    )


def _shown(table: RateTable, cut: int, around: int) -> tuple[int, ...]:
    """Cuts beside ``cut``, and the step boundaries on both sides: where a cut between steps would lie."""
    near = range(max(cut - around, 0), min(cut + around, table.executions) + 1)
    boundary = cut // table.layers * table.layers
    boundaries = {boundary, min(boundary + table.layers, table.executions)} if around else set()
    return tuple(sorted({*near, *boundaries}))


def _notes(switch: int | None, model: Model | None) -> tuple[str, ...]:
    notes = []
    if switch is None:
        notes.append("the table does not say where the expert switch is (semantic_steps): give the artifact")
    if model is not None and not model.is_calibrated:
        notes.append("the artifact has no activation scales: until it is calibrated only the NPU can execute it, cut 0")
    return tuple(notes)


def facts(plan: CutPlan | BalancePlan) -> dict[str, Any]:
    """The plan as JSON; what is not known is null."""
    common = {
        "table": plan.table.name,
        "device": plan.table.device,
        "date": plan.table.date,
        "thermal": plan.table.thermal,
        "frames": plan.table.frames,
        "executions": plan.table.executions,
        "expert_switch": plan.switch,
        "adapter_on_gpu": adapter_on_gpu(plan),
        "notes": plan.notes,
    }
    if isinstance(plan, BalancePlan):
        balance, (least_s, most_s) = plan.balance, plan.balance.period_range_s(plan.cut)
        return {"cut": plan.cut, "period_s": None, "period_least_s": least_s, "period_most_s": most_s} | common | {
            "both_blocks_s": balance.both_blocks_s,
            "npu_whole_s": balance.npu_whole_s,
            "balance_point": balance.point,
            "cuts": [{"cut": cut, **idle_facts(balance, cut)} for cut in plan.shown],
            "sensitivity": [
                {"sum": SUM_KEYS[key], "factor": factor, "balance_point": changed.point}
                for key, factor, changed in plan.changed
            ],
        }  # fmt: skip
    return stages_facts(plan.chosen) | common | {
        "alone_s": plan.alone_s,
        "npu_only_period_s": plan.npu_only_s,
        "cuts": [stages_facts(stages) for stages in plan.shown],
        "sensitivity": [
            {
                "rate": changed.rate,
                "factor": changed.factor,
                "cut": changed.best.cut,
                "period_s": changed.best.period_s,
                "kept_cut_period_s": changed.kept.period_s,
            }
            for changed in plan.changed
        ],
    }  # fmt: skip


SUM_KEYS = {"both": "both_blocks_s", "npu": "npu_whole_s"}


def stages_facts(stages: Stages) -> dict[str, Any]:
    """A cut's seconds per video."""
    return {
        "cut": stages.cut,
        "period_s": stages.period_s,
        "videos_per_hour": stages.videos_per_hour,
        "latency_s": stages.latency_s,
        "gpu_s": stages.gpu_s,
        "npu_s": stages.npu_s,
        "gpu_idle_s": stages.gpu_idle_s,
        "npu_idle_s": stages.npu_idle_s,
    }


def idle_facts(balance: Balance, cut: int) -> dict[str, float]:
    """Seconds for which each engine waits."""
    longer_s = balance.npu_longer_s(cut)
    return {"gpu_idle_s": max(longer_s, 0.0), "npu_idle_s": max(-longer_s, 0.0)}


def adapter_on_gpu(plan: CutPlan | BalancePlan) -> bool | None:
    """Whether the GPU executes blocks of the detail expert, for which it needs the adapter; None: not known."""
    cut = plan.cut if isinstance(plan, BalancePlan) else plan.chosen.cut
    return None if plan.switch is None else cut > plan.switch
