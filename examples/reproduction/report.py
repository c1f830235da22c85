"""What docs/REPRODUCTION.md says."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from examples.reproduction.cut_rows import balance_of_a, cut_rows
from examples.reproduction.document import Section, document
from examples.reproduction.memory_rows import memory_rows
from examples.reproduction.pictures import draw_all
from examples.reproduction.replanning import Case, cases, explained
from examples.reproduction.row import Row
from examples.reproduction.shorter_rows import shorter_rows
from examples.reproduction.stream_rows import stream_rows
from hvdc.plan.rates import RateTable, load_rates

NAME = "REPRODUCTION.md"
FOLDER = "reproduction"
RATES = Path(__file__).resolve().parents[1] / "rates"

HEAD = """\
# The paper's figures, and what `hvdc plan` makes of them

*HeteroVDiff: Pipelining Video Diffusion across Mobile NPU and GPU with Shared Weights* measured one phone; `hvdc plan`
computes. This page puts each figure that the paper's text states about cuts, streams, deadlines and memory beside what
the plan computes for it, and says where a simple model cannot reach what was measured, and why. `make reproduce` writes
it; nothing in it was measured here, and no number was chosen to make a row agree.

**Where ours comes from.** The text prints no T_G, T_N or T_V (seconds of a block on the GPU and on the NPU, and of a
decode), and it is not consistent with itself. So there are two tables of 49 frames, each number with its sentence
([examples/rates](../examples/rates)): **A** by the idle times of section 3.3, and **B** by the deployed cut, period and
decode of section 6, which are therefore inputs. **17** stands for what section 6.5 gives for 17 frames, *shapes* for
the sizes of the model's tensors. The cut is equation 4's; streams are simulated.
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
    cut, stream, shorter, memory = rows()
    cut_shown = f"Stages and period over the cut, by table B; table A balances at {balance_of_a(a).point:.1f}"
    stream_shown = {
        "gantt": "What each engine does at first, by table B",
        "deadlines": "Videos per hour within the deadline, by table B",
    }
    replanning_shown = {
        "replanning": "Videos per hour with the cut fixed and placed anew",
        "policies": "Videos per hour within the deadline, by policy",
    }
    sections = [
        Section("The cut", CUT, cut, {"cut": cut_shown}),
        Section("The stream", STREAM, stream, stream_shown),
        Section("Shorter videos", SHORTER, shorter),
        Section("Memory", MEMORY, memory, {"memory": "Weights of each configuration against what the phone has"}),
        Section("Placing the cut anew", explained(b, _cases()), (), replanning_shown),
    ]
    return document(HEAD, sections, FOLDER, TAIL)


def draw(folder: Path) -> None:
    """The pictures, into a folder that exists."""
    draw_all(tables()[1], _cases(), folder)


@cache
def rows() -> tuple[list[Row], list[Row], list[Row], list[Row]]:
    """Of the cut, the stream, shorter videos, and memory."""
    a, b = tables()
    return cut_rows(a, b), stream_rows(b), shorter_rows(), memory_rows()


@cache
def tables() -> tuple[RateTable, RateTable]:
    """A and B."""
    a, b = (load_rates(RATES / f"galaxy-s25-49-frames-{label}.toml") for label in "ab")
    return a, b


@cache
def _cases() -> tuple[Case, ...]:
    return tuple(cases(tables()[1]))
