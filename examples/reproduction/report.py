"""What docs/REPRODUCTION.md says, and its pictures."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from examples.reproduction.cut_rows import balance_of_a, cut_rows
from examples.reproduction.document import Section, document
from examples.reproduction.memory_rows import memory_rows, weights
from examples.reproduction.replanning import JITTER, SEED, VIDEOS, Case, cases, changes, deadlines, table
from examples.reproduction.shorter_rows import shorter_rows
from examples.reproduction.stream_rows import run_all, stream_rows
from hvdc.plan.cut import best_cut
from hvdc.plan.memory import memory_table
from hvdc.plan.pictures import draw_slo, draw_stages
from hvdc.plan.plots import Bar, draw_changes, draw_gantt, draw_memory
from hvdc.plan.rates import RateTable, load_rates
from hvdc.plan.results import spans
from hvdc.plan.scenarios import Scenario, configurations, reference_latency_s, slo
from hvdc.plan.stages import MODES
from hvdc.targets import load_target

NAME = "REPRODUCTION.md"
FOLDER = "reproduction"
RATES = Path(__file__).resolve().parents[1] / "rates"

HEAD = """\
# The paper's figures, and what `hvdc plan` makes of them

*HeteroVDiff: Pipelining Video Diffusion across Mobile NPU and GPU with Shared Weights* measured one phone; `hvdc plan`
computes. This page puts each figure that the paper's text states about cuts, streams, deadlines and memory beside what
the plan computes for it, and says where a simple model cannot reach what was measured, and why. It is written by
`make reproduce`; nothing in it was measured here, and no number was chosen to make a row agree.

**Where ours comes from.** The text prints no T_G, T_N or T_V (seconds of a block on the GPU and on the NPU, and of a
decode), and it is not consistent with itself. So there are two tables of 49 frames, each number with its sentence
([examples/rates](../examples/rates)): **A** by the idle times of section 3.3, and **B** by the deployed cut, period and
decode of section 6, which are therefore inputs. **17** stands for what section 6.5 gives for 17 frames; *shapes* for the
sizes of the model's tensors. The cut is equation 4; streams are simulated.
"""
CUT = "A video of 49 frames is 180 blocks. Where is it cut, and what do other cuts cost?"
STREAM = """\
Videos of 49 frames one after the other, a thousand of them, by table B, in the five configurations of section 6.1.
"""
SHORTER = """\
Of 33, 25 and 17 frames the text has no rates. At 17 frames the cut, the gain and the latency on the NPU alone give T_G,
and T_V stays open; what is predicted here comes out the same for every T_V.
"""
MEMORY = """\
Weights held by each configuration: the full-size model, 49 frames of 832 × 480. Bytes are counted, nothing is modelled.
"""
TAIL = """\
## What is not here

The paper's figures that no plan computes: times and ratios of single kernels (Table 2), quality (sections 6.4 and
Appendix C; [QUALITY.md](QUALITY.md) has what can be measured here), limits that it found by trying (they are inputs of
[the target's description](../hvdc/targets/sm8750.toml)), and figures that stand in its pictures and tables only, which
its text does not state.
"""


def text() -> str:
    """The document."""
    a, b = tables()
    sections = [
        Section("The cut", CUT, cut_rows(a, b), {"cut": _cut_caption(a)}),
        Section("The stream", STREAM, stream_rows(b), {
            "gantt": "What each engine does at first; by table B",
            "deadlines": "Videos per hour within the deadline, by table B",
        }),
        Section("Shorter videos", SHORTER, shorter_rows()),
        Section("Memory", MEMORY, memory_rows(), {"memory": "Weights of each configuration against what the phone has"}),
        Section("Placing the cut anew", _replanning_text(_cases()), (), {
            "replanning": "Videos per hour with the cut fixed and placed anew",
            "policies": "Videos per hour within the deadline, by policy",
        }),
    ]  # fmt: skip
    return document(HEAD, sections, FOLDER, TAIL)


def draw(folder: Path) -> None:
    """The pictures, into a folder that exists."""
    _, b = tables()
    cut = best_cut(b.rates, b.executions)
    others = {30: "end of a step", 34: "without T_V", 57: "solo rates", 60: "end of a step"}
    draw_stages(b, cut, None if b.semantic_steps is None else b.semantic_steps * b.layers, folder, others)
    runs = run_all(b.costs(), cut, videos=10)
    shown = {name: spans(runs[name]) for name in ("hetero", "npu", "dp")}
    draw_gantt(shown, sorted(v.finish_s for v in runs["hetero"].videos)[3], folder)
    _draw_deadlines(b, cut, folder)
    _draw_memory(folder)
    draw_changes(
        changes(_cases(), "replan"), "cut fixed", "placed anew (replan)", "videos per hour", folder, "replanning"
    )
    points, wanted, reference_s = deadlines(b)
    draw_slo(points, wanted, reference_s, folder, name="policies")


@cache
def tables() -> tuple[RateTable, RateTable]:
    """A and B."""
    a, b = (load_rates(RATES / f"galaxy-s25-49-frames-{label}.toml") for label in "ab")
    return a, b


@cache
def _cases() -> tuple[Case, ...]:
    return tuple(cases(tables()[1]))


def _cut_caption(a: RateTable) -> str:
    return f"Stages and period over the cut, by table B; table A balances at {balance_of_a(a).point:.1f}"


def _replanning_text(compared: tuple[Case, ...]) -> str:
    return f"""\
The paper fixes the cut at the start, and notes that a runner could recompute it between videos. `--policy` simulates that:
`static` keeps the best cut of the table; `replan` takes the best cut of the rates as observed, a quarter of each new
observation; `adaptive` the one with which the GPU is done when the NPU is free; `deadline` is `adaptive`, with fewer blocks
on the GPU where a video would else be late. Videos per hour, {VIDEOS} videos, stages that deviate by {JITTER:.0%} (seed {SEED}):

{table(compared)}

"""


def _draw_deadlines(b: RateTable, cut: int, folder: Path) -> None:
    wanted = configurations(MODES, ("static",))
    factors = [1.25 + 0.25 * n for n in range(8)]
    reference_s = reference_latency_s(b.costs())
    points = slo(Scenario(b.costs(), (0.0,) * 1000, cut), wanted, factors, reference_s)
    draw_slo(points, wanted, reference_s, folder)


def _draw_memory(folder: Path) -> None:
    w, target = weights(), load_target("sm8750")
    bars = [Bar(r.name, {"weights": r.weight_bytes, "transient": r.transient_bytes}) for r in memory_table(w)]
    budgets = {
        "one NPU session maps": target.mapping_budget_bytes.value,
        "the phone can use": target.usable_memory_bytes.value,
    }
    draw_memory(bars, budgets, folder)
