"""The pictures of each ``hvdc plan`` command: what its result says, as `hvdc.plan.plots` draws it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hvdc.plan.cut_plan import BalancePlan, CutPlan
from hvdc.plan.memory import Row
from hvdc.plan.memory_plan import MemoryPlan
from hvdc.plan.memory_plots import Bar, draw_memory
from hvdc.plan.placement import Trajectory
from hvdc.plan.plots import Paths, draw_cut, draw_deadlines, draw_gantt, draw_waits
from hvdc.plan.rates import RateTable
from hvdc.plan.results import Span, spans
from hvdc.plan.scenarios import Configuration, Outcome, SloPoint
from hvdc.plan.working_memory import Buffer
from hvdc.targets import TargetDescription


def draw_plan(plan: CutPlan | BalancePlan, folder: Path) -> Paths:
    """Both stages and the period over the cut; or how long engines wait, where a table says no more. Raises as
    `hvdc.plan.plots`."""
    cuts = range(plan.table.executions + 1)
    if isinstance(plan, BalancePlan):
        longer_s = [plan.balance.npu_longer_s(cut) for cut in cuts]
        gpu_s, npu_s = [max(s, 0.0) for s in longer_s], [max(-s, 0.0) for s in longer_s]
        return draw_waits(gpu_s, npu_s, plan.cut, folder)
    return draw_stages(plan.table, plan.chosen.cut, plan.switch, folder)


def draw_stages(
    table: RateTable, cut: int, switch: int | None, folder: Path, others: Mapping[int, str] | None = None
) -> Paths:
    """A table's stages over the cut. ``others``: cuts to point at, with their names; how much longer their period is,
    is added. Raises as `hvdc.plan.plots`."""
    trajectory = Trajectory(table.costs())
    stages = [trajectory.stages(k) for k in range(table.executions + 1)]
    marks = {
        k: f"{k}: {name}\n{100 * (stages[k].period_s / stages[cut].period_s - 1):+.1f} %"
        for k, name in (others or {}).items()
    }
    gpu_s, npu_s = [s.gpu_s for s in stages], [s.npu_s for s in stages]
    return draw_cut(gpu_s, npu_s, cut, folder, layers=table.layers, expert_switch=switch, marks=marks)


GANTT_VIDEOS = 4
"""The first configuration is shown until so many are finished, and the others as long."""
SPANS_VIDEOS = 100


def draw_simulation(outcomes: Sequence[Outcome], folder: Path) -> Paths:
    """A Gantt chart of the configurations that were simulated. Raises as `hvdc.plan.plots`."""
    runs = {o.configuration.name: o.run for o in outcomes if o.run is not None}
    if not runs:
        raise ValueError("nothing was simulated")
    begin_s = min(video.start_s for run in runs.values() for video in run.videos)
    finished = sorted(video.finish_s for video in next(iter(runs.values())).videos)
    end_s = finished[min(GANTT_VIDEOS, len(finished)) - 1] - begin_s
    shown = {name: [_earlier(s, begin_s) for s in spans(run, SPANS_VIDEOS)] for name, run in runs.items()}
    return draw_gantt(shown, end_s, folder)


def _earlier(span: Span, by_s: float) -> Span:
    return replace(span, start_s=span.start_s - by_s, end_s=span.end_s - by_s)


def draw_slo(
    points: Sequence[SloPoint],
    configurations: Sequence[Configuration],
    reference_s: float,
    folder: Path,
    *,
    given: bool = False,
    name: str = "deadlines",
) -> Paths:
    """Videos per hour within the deadline. Configurations without a value are left out. ``given``: the reference is the
    user's, not what a video takes on the NPU alone. Raises as `hvdc.plan.plots`."""
    rising = sorted(points, key=lambda p: p.factor)
    lines = {
        configuration.name: [math.nan if (rate := p.compliant_per_hour[n]) is None else rate for p in rising]
        for n, configuration in enumerate(configurations)
    }
    known = {line: rates for line, rates in lines.items() if not all(math.isnan(rate) for rate in rates)}
    unit_is = "the reference given" if given else "a video on the NPU alone"
    return draw_deadlines([p.factor for p in rising], known, folder, unit_s=reference_s, unit_is=unit_is, name=name)


def draw_memory_plan(plan: MemoryPlan, folder: Path) -> tuple[Paths, Paths]:
    """The paper's table with its working buffers, and what the runtime allocates in each mode. Raises as
    `hvdc.plan.plots`."""
    modes = [
        Bar(mode.name, {part.name: part.bytes for part in mode.parts}, mapped=mode.mapped.needed_bytes)
        for mode in plan.modes
    ]
    usable, budget = plan.target.usable_memory_bytes.value, plan.target.mapping_budget_bytes.value
    return (
        draw_weights(plan.weights, plan.working, plan.target, folder),
        draw_memory(modes, usable, budget, folder, name="memory-modes"),
    )


def draw_weights(rows: Sequence[Row], working: Sequence[Buffer], target: TargetDescription, folder: Path) -> Paths:
    """Weights of each configuration, and the working buffers beside them. Raises as `hvdc.plan.plots`."""
    bars = [
        Bar(
            row.name,
            {"base": row.base_bytes, "adapter": row.adapter_bytes, "transient": row.transient_bytes},
            {"working buffers": sum(buffer.bytes for buffer in working)},
            row.copy_bytes,
        )
        for row in rows
    ]
    return draw_memory(bars, target.usable_memory_bytes.value, target.mapping_budget_bytes.value, folder)
