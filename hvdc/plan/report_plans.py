"""What a report says about running an artifact: the cut, shared linears, memory."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from hvdc.plan.cut_plan import CHANGE, BalancePlan, CutPlan, adapter_on_gpu, idle_facts
from hvdc.plan.memory import MIB
from hvdc.plan.memory_plan import Check, Configuration, MemoryPlan
from hvdc.plan.placement import Trajectory
from hvdc.plan.report_charts import Bar, Curve, Strip, bars, curves, strips
from hvdc.plan.report_parts import Cell, Mark, Picture, Section, Table
from hvdc.plan.report_text import gib, many, mib
from hvdc.plan.tensor_plan import TensorPlan
from hvdc.plan.working_memory import Buffer, total_bytes

RATES = {"gpu": "block on the GPU", "npu": "block on the NPU", "decode": "decode", "handoff": "handoff"}


def no_plan() -> Section:
    """Where no rates were given."""
    return Section(
        "Plan",
        lead="No rate table was given, so no cut is placed: hvdc report ARTIFACT --rates RATES.toml -o report.html",
    )


def plan(found: CutPlan | BalancePlan, shared: TensorPlan | None) -> Section:
    """The cut, with a table of the linears that both engines would share where GEMMs were measured."""
    section = _balance(found) if isinstance(found, BalancePlan) else _cut(found)
    return section if shared is None else _with_tensor(section, shared)


def _cut(p: CutPlan) -> Section:
    chosen, executions, layers = p.chosen, p.table.executions, p.table.layers
    headlines = [
        (f"{chosen.cut} of {executions}", "blocks before the cut, the GPU's"),
        (f"{chosen.period_s:,.1f} s", "between finished videos"),
        (f"{chosen.videos_per_hour:.2f}", "videos an hour"),
        (f"{chosen.latency_s:,.1f} s", "for one video in the stream"),
    ]
    if p.npu_only_s is not None:
        headlines.append((f"{p.npu_only_s / chosen.period_s:.2f}×", f"the NPU alone ({p.npu_only_s:,.1f} s)"))
    rows = [
        (str(s.cut), f"{s.gpu_s:,.1f}", f"{s.npu_s:,.1f}", f"{s.period_s:,.1f}",
         f"{100 * (s.period_s / chosen.period_s - 1):+.1f} %", f"{s.gpu_idle_s:,.1f}", f"{s.npu_idle_s:,.1f}",
         f"{s.latency_s:,.1f}", "step boundary" if s.cut % layers == 0 else "")
        for s in p.shown
    ]  # fmt: skip
    changes = [
        (RATES.get(c.rate, c.rate), f"{100 * (c.factor - 1):+.0f} %", str(c.best.cut), f"{c.best.period_s:,.1f}",
         f"{c.kept.period_s:,.1f}")
        for c in p.changed
    ]  # fmt: skip
    columns = (">cut", ">GPU s", ">NPU s", ">period s", ">longer", ">GPU waits s", ">NPU waits s", ">latency s", "")
    return Section(
        "Plan",
        lead=_rates_line(p),
        headlines=headlines,
        facts=_switch(p),
        pictures=(
            Picture("One video: which engine executes which blocks", _line_of_blocks(p, chosen.cut)),
            Picture("Seconds per video over the cut: a video is finished in the time of the longer stage", _curve(p)),
        ),
        tables=(
            Table("Cuts beside it, seconds per video", columns, rows,
                  strong=next(i for i, s in enumerate(p.shown) if s.cut == chosen.cut)),
            Table(f"If a rate is {100 * CHANGE:.0f} % off",
                  ("rate", ">change", ">cut", ">period s", f">with cut {chosen.cut}"), changes),
        ),
        notes=p.notes,
    )  # fmt: skip


def _curve(p: CutPlan) -> Markup:
    trajectory = Trajectory(p.table.costs())
    every = [trajectory.stages(k) for k in range(p.table.executions + 1)]
    lines = [
        Curve("gpu", "GPU's stage", [s.gpu_s for s in every]),
        Curve("npu", "NPU's stage with the decode", [s.npu_s for s in every]),
    ]
    mark = f"cut {p.chosen.cut}: {p.chosen.period_s:,.0f} s"
    return curves("Seconds per video over the cut", lines, p.chosen.cut, mark, "cut, in blocks")


def _line_of_blocks(p: CutPlan | BalancePlan, cut: int) -> Markup:
    executions = p.table.executions
    rows = [Strip("engine", [("gpu", cut, f"GPU, {cut}"), ("npu", executions - cut, f"NPU, {executions - cut}")])]
    if p.switch is not None:
        parts = [("semantic", p.switch, "semantic"), ("detail", executions - p.switch, "detail")]
        rows.append(Strip("expert", parts))
    pieces = [("spare", p.table.layers, str(i)) for i in range(p.table.steps)]
    rows.append(Strip("step", pieces))
    return strips("Blocks of one video", rows)


def _balance(p: BalancePlan) -> Section:
    rows = []
    for cut in p.shown:
        idle = idle_facts(p.balance, cut)
        rows.append((str(cut), f"{idle['gpu_idle_s']:,.1f}", f"{idle['npu_idle_s']:,.1f}"))
    least_s, most_s = p.balance.period_range_s(p.cut)
    return Section(
        "Plan",
        lead=_rates_line(p),
        headlines=(
            (f"{p.cut} of {p.table.executions}", "blocks before the cut, the GPU's"),
            (f"{least_s:,.0f} to {most_s:,.0f} s", "between finished videos"),
        ),
        facts=_switch(p),
        pictures=(Picture("One video: which engine executes which blocks", _line_of_blocks(p, p.cut)),),
        tables=(
            Table("Cuts beside it, seconds per video", (">cut", ">GPU waits s", ">NPU waits s"), rows,
                  strong=p.shown.index(p.cut) if p.cut in p.shown else None),
        ),
        notes=p.notes,
    )  # fmt: skip


def _rates_line(p: CutPlan | BalancePlan) -> str:
    t = p.table
    date = "" if t.date is None else f", {t.date}"
    return f"By the rates {t.name}: {t.device}{date}; {t.frames} frames, {t.tokens:,} tokens; {t.thermal}."


def _switch(p: CutPlan | BalancePlan) -> list[tuple[str, str]]:
    on_gpu = adapter_on_gpu(p)
    if p.switch is None or on_gpu is None or p.switch >= p.table.executions:
        return []
    where = "the GPU executes blocks of it" if on_gpu else "only the NPU executes it"
    return [("Detail expert", f"from block {p.switch} on; {where}")]


def _with_tensor(section: Section, shared: TensorPlan) -> Section:
    rows = [
        (d.gemm.name, f"{d.gemm.tokens:,} × {d.gemm.in_features:,} → {d.gemm.out_features:,}", d.chosen.kind,
         f"{100 * d.chosen.gpu_share:.0f} %", f"{1e3 * d.chosen.gpu_s:,.2f}", f"{1e3 * d.chosen.npu_s:,.2f}",
         f"{1e3 * d.chosen.exchange_s:,.2f}", f"{1e3 * d.gain_s:,.2f}")
        for d in shared.decisions
    ]  # fmt: skip
    note = ""
    if shared.shared is not None:
        s = shared.shared
        note = (
            f"A block's linears take {1e3 * s.npu_linears_s:,.1f} ms on the NPU alone and {1e3 * s.linears_s:,.1f} ms "
            f"with {100 * s.gpu_share:g} % of each on the GPU: --mode hetero-tensor --gpu-share {s.gpu_share:g}."
        )
    columns = ("GEMM", ">size", "partition", ">GPU has", ">GPU ms", ">NPU ms", ">exchange ms", ">gain ms")
    table = Table("Linears shared between the engines, each at its best", columns, rows, note=note)
    return Section(**(vars(section) | {"tables": (*section.tables, table)}))


def memory(p: MemoryPlan) -> Section:
    """The paper's table, its working buffers, the runtime's modes."""
    usable = p.verdicts[0].resident.limit_bytes
    hetero = next(c for c in p.modes if c.name == "hetero")
    return Section(
        "Memory",
        lead=f"For {p.frames} frames, {p.sizes.tokens:,} tokens, on {p.target.soc}. Counted from sizes, not measured.",
        headlines=(
            (gib(hetero.resident.needed_bytes), "both engines in one stream, working memory included"),
            (gib(usable), "that the phone leaves to programs"),
            (gib(hetero.mapped.needed_bytes), f"mapped by the NPU, of {gib(hetero.mapped.limit_bytes)}"),
        ),
        pictures=(Picture("Weights of each configuration", _weight_bars(p)),),
        tables=(
            Table(
                "Weights, as the paper's Table 3",
                ("configuration", ">base MiB", ">adapter MiB", ">transient MiB", ">total GiB", "~how it is counted"),
                [
                    (w.name, mib(w.base_bytes), mib(w.adapter_bytes), mib(w.transient_bytes),
                     f"{w.total_bytes / (MIB * 1024):.2f}", w.note)
                    for w in p.weights
                ],
            ),
            _buffers("Working buffers", p.working),
            _configurations("Weights and working buffers: does it fit?", p.verdicts),
            _configurations("What the runtime allocates, by mode of hvdc run", p.modes),
            Table(
                "Single buffers", ("what", ">MiB", ">limit MiB", "verdict", "~who says so"),
                [(c.what, mib(c.needed_bytes), mib(c.limit_bytes), _verdict(c), c.source) for c in p.limits],
                folded=True,
            ),
            _buffers("Buffers of the NPU's executor", p.npu_buffers, folded=True),
            _buffers("Buffers of the GPU's executor", p.gpu_buffers, folded=True),
        ),
        notes=[f"Limit of {check.what}: {check.source}." for check in (hetero.resident, hetero.mapped)],
    )  # fmt: skip


def _weight_bars(p: MemoryPlan) -> Markup:
    return bars(
        "Weights of each configuration",
        [
            Bar(
                w.name,
                [
                    ("npu", f"base, {gib(w.base_bytes)}", w.base_bytes),
                    ("detail", f"adapter, {gib(w.adapter_bytes)}", w.adapter_bytes),
                    ("spare", f"transient, {gib(w.transient_bytes)}", w.transient_bytes),
                ],
                gib(w.total_bytes),
            )
            for w in p.weights
        ],
        [("npu", "base"), ("detail", "adapter"), ("spare", "transient")],
    )


def _buffers(title: str, buffers: Sequence[Buffer], *, folded: bool = False) -> Table:
    rows = [(b.name, mib(b.bytes), b.note) for b in buffers]
    rows.append(("in all", mib(total_bytes(list(buffers))), ""))
    return Table(title, ("buffer", ">MiB", "~what it is"), rows, strong=len(rows) - 1, folded=folded)


def _configurations(title: str, configurations: Sequence[Configuration]) -> Table:
    parts = [f">{part.name} MiB" for part in configurations[0].parts]
    rows: list[tuple[Cell, ...]] = [
        (c.name, _verdict(c.resident), _verdict(c.mapped), *(mib(part.bytes) for part in c.parts),
         mib(c.resident.needed_bytes), mib(c.mapped.needed_bytes))
        for c in configurations
    ]  # fmt: skip
    return Table(title, ("configuration", "in memory", "NPU maps", *parts, ">in all MiB", ">mapped MiB"), rows)


def _verdict(check: Check) -> Mark:
    return Mark(f"{gib(abs(check.spare_bytes))} {'left' if check.fits else 'too much'}", check.fits)


def fits_line(p: MemoryPlan) -> str:
    """One sentence for the top of the page."""
    lacking = [c.name for c in p.modes if not c.fits]
    if too_large := [limit.what for limit in p.limits if not limit.fits]:
        return f"does not fit: {' and '.join(too_large)}"
    if not lacking:
        return "fits in every mode"
    return f"does not fit in {many(len(lacking), 'mode')}: {', '.join(lacking)}"
