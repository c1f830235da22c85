"""What compiling the full-size decoder costs: part of `benchmarks.bench_decoder`."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence

from benchmarks.decoder_plan import LIMITS, Plan, gib, mb
from benchmarks.report import Line, lines_table, say
from exporters.decoder.checkpoint import open_decoder
from exporters.decoder.graphs import stage_graphs
from exporters.decoder.tiles import plan_tiles
from exporters.qnn.compile import Compiled, compile_graphs
from exporters.qnn.errors import QnnError
from exporters.qnn.options import Limits, QnnOptions
from hvdc.config import CompileConfig
from hvdc.pipeline.decoder_tiles import Attempt, TilePlanner
from quant.decoder.encodings import Encodings
from quant.decoder.graph import VARIANTS, Graphs
from quant.decoder.qdq import quantise, serialised

LATENT_PIXELS = (60, 104)
"""Of a clip of 480 × 832."""
BINARIES = (("first",), ("later",), VARIANTS)


def _repeats(names: Sequence[str], optimization: int) -> int:
    """Twice, to compare bytes; at level 3, which takes many minutes, only what `hvdc compile` makes."""
    return 2 if optimization == 1 or len(names) > 1 else 1


def compiling(plan: Plan, optimization: int) -> str:
    """A table of what was compiled, and the figures with goals."""
    rows = [
        f"| optimisation {optimization} | seconds | peak memory | binary | spill-fill | same bytes twice |",
        "|---|---|---|---|---|---|",
    ]
    done: dict[Sequence[str], list[Compiled]] = {}
    for names in BINARIES:
        label = " + ".join(names)
        try:
            done[names] = [_compile(plan, names, optimization) for _ in range(_repeats(names, optimization))]
        except QnnError as error:
            say(f"refused: {error}")
            rows.append(f"| {label} | refused: {error.what}; {error.found} | | | | |")
        else:
            rows.append(_row(label, done[names]))
    return "\n".join(rows) + "\n\n" + lines_table(_compile_lines(done, optimization))


def _compile(plan: Plan, names: Sequence[str], optimization: int) -> Compiled:
    options = QnnOptions(optimization=optimization, share_weights=len(names) > 1)
    graphs = [(name, plan.quantised(name)) for name in names]
    found = compile_graphs(graphs, plan.folder / "decoder.bin", options, LIMITS)
    peak = gib(found.peak_rss_bytes)
    say(f"compiled {' + '.join(names)} at {optimization} in {found.seconds:.1f} s, peak {peak}, {mb(found.size_bytes)}")
    return found


def _row(label: str, runs: list[Compiled]) -> str:
    seconds = ", ".join(f"{run.seconds:.1f}" for run in runs)
    spilled = " + ".join(mb(graph.info.spill_fill_bytes) for graph in runs[0].graphs)
    cells = [label, seconds, gib(max(r.peak_rss_bytes for r in runs)), mb(runs[0].size_bytes), spilled]
    same = "compiled once" if len(runs) == 1 else "yes" if _same(runs) else "NO"
    return f"| {' | '.join([*cells, same])} |"


def _same(runs: list[Compiled]) -> bool:
    return len({run.sha256 for run in runs}) == 1


def _compile_lines(done: dict[Sequence[str], list[Compiled]], optimization: int) -> list[Line]:
    at = f"at optimisation {optimization}"
    everything = len(done) == len(BINARIES)
    how = "`first`, `later`, and both in one binary with shared weights; each graph whole"
    lines = [Line(f"binaries {at}", f"{len(done)} of {len(BINARIES)}", "all", everything, how)]
    runs = [run for group in done.values() for run in group]
    if not runs:
        return lines
    twice = [group for group in done.values() if len(group) > 1]
    same = sum(_same(group) for group in twice)
    fixed = all(run.reproducible for run in runs)
    peak, limit = max(run.peak_rss_bytes for run in runs), Limits().memory_bytes
    lines.append(
        Line(
            "of these with the same bytes in two runs",
            f"{same} of {len(twice)}",
            "all" if fixed else "none: the kernel refuses fixed addresses here",
            same == len(twice) or not fixed,
            f"SHA-256; `Compiled.reproducible` is {fixed}",
        )
    )
    lines += [
        Line(f"peak memory {at}", gib(peak), f"≤ {gib(limit)}", peak <= limit, "VmHWM; the goal is the usual limit"),
    ]
    if everything:
        first, later, both = (group[0].size_bytes for group in done.values())
        ratio = both / (first + later)
        how = f"{mb(both)} against {mb(first)} and {mb(later)}"
        lines.append(Line(f"one binary ÷ two {at}", f"{ratio:.2f}", "≤ 0.75", ratio <= 0.75, how))
    return lines


def automatic(plan: Plan) -> str:
    """The tile that `--decoder-tile auto` picks for 480 × 832, compiled as `hvdc compile` does it, at level 1."""
    planner = TilePlanner(plan.geometry, LATENT_PIXELS, CompileConfig(decoder_optimization=1), "bench")
    encodings = Encodings.from_json(plan.encodings.read_text())
    tried: list[str] = []

    def build(attempt: Attempt) -> tuple[Attempt, Compiled]:
        tried.append(attempt.text)
        t = attempt.tile
        with open_decoder(plan.vae) as decoder:
            parts = {v: stage_graphs(decoder, v, t.rows, t.columns, attempt.groups) for v in VARIANTS}
            floats = Graphs(*(tuple(part.model() for part in parts[v]) for v in VARIANTS))
        graphs = []
        for _, model in quantise(floats, encodings):
            path = plan.folder / f"auto-{model.graph.name}.onnx"
            path.write_bytes(serialised(model))
            graphs.append((model.graph.name, path))
        options = QnnOptions(optimization=1, share_weights=True)
        return attempt, compile_graphs(graphs, plan.folder / "auto.bin", options, LIMITS)

    with tempfile.TemporaryDirectory() as cache, _environment("HVDC_CACHE_DIR", cache):
        attempt, found = planner.first_that_compiles(build, say)
    tiles = len(plan_tiles(*LATENT_PIXELS, attempt.tile))
    return lines_table(
        [
            Line(
                "`--decoder-tile auto` at 480 × 832", attempt.text.removesuffix(" latent pixels"), "compiles", True,
                f"{tiles} tiles, overlapping by 8; tried: {', '.join(tried)}; "
                f"{planner.loaded_bytes(attempt) / 2**20:,.0f} MiB of graph memory predicted; at optimisation 1 in "
                f"{found.seconds:.0f} s with {gib(found.peak_rss_bytes)}: {mb(found.size_bytes)}",
            )
        ]
    )  # fmt: skip


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
