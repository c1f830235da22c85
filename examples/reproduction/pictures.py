"""The pictures of docs/REPRODUCTION.md."""

from __future__ import annotations

from pathlib import Path

from examples.reproduction.memory_rows import clip_sizes, weights
from examples.reproduction.replanning import Case, changes, deadlines
from examples.reproduction.stream_rows import VIDEOS, run_all
from hvdc.plan.cut import best_cut
from hvdc.plan.memory import memory_table
from hvdc.plan.pictures import draw_slo, draw_stages, draw_weights
from hvdc.plan.plots import draw_changes, draw_gantt
from hvdc.plan.rates import RateTable
from hvdc.plan.results import spans
from hvdc.plan.scenarios import Scenario, configurations, reference_latency_s, slo
from hvdc.plan.stages import MODES
from hvdc.plan.working_memory import working_buffers
from hvdc.targets import load_target

OTHER_CUTS = {30: "end of a step", 34: "without T_V", 57: "solo rates", 60: "end of a step"}
FACTORS = tuple(1.25 + 0.25 * n for n in range(8))
"""The paper's sweep: 1.25 to 3."""


def draw_all(b: RateTable, replanned: tuple[Case, ...], folder: Path) -> None:
    """Of table B, into a folder that exists."""
    cut = best_cut(b.rates, b.executions)
    switch = None if b.semantic_steps is None else b.semantic_steps * b.layers
    draw_stages(b, cut, switch, folder, OTHER_CUTS)
    runs = run_all(b.costs(), cut, videos=10)
    end_s = sorted(video.finish_s for video in runs["hetero"].videos)[3]
    draw_gantt({mode: spans(runs[mode]) for mode in ("hetero", "npu", "dp")}, end_s, folder)
    _draw_deadlines(b, cut, folder)
    _draw_memory(folder)
    draw_changes(
        changes(replanned, "replan"), "cut fixed", "placed anew (replan)", "videos per hour", folder, "replanning"
    )
    points, wanted, reference_s = deadlines(b)
    draw_slo(points, wanted, reference_s, folder, name="policies")


def _draw_deadlines(b: RateTable, cut: int, folder: Path) -> None:
    wanted = configurations(MODES, ("static",))
    reference_s = reference_latency_s(b.costs())
    points = slo(Scenario(b.costs(), (0.0,) * VIDEOS, cut), wanted, FACTORS, reference_s)
    draw_slo(points, wanted, reference_s, folder)


def _draw_memory(folder: Path) -> None:
    draw_weights(memory_table(weights()), working_buffers(clip_sizes()), load_target("sm8750"), folder)
