"""``hvdc plan cut``."""

from __future__ import annotations

from pathlib import Path

import click

from hvdc.cli.output import out, print_json, seconds_like, shown, table
from hvdc.cli.plot_option import plot_option
from hvdc.figures import prepare_folder
from hvdc.plan.cut_plan import (
    CHANGE,
    BalancePlan,
    CutPlan,
    CutRequest,
    adapter_on_gpu,
    facts,
    idle_facts,
    plan_cut,
)
from hvdc.plan.fitting import fit_to_artifact
from hvdc.plan.rates import load_rates


@click.command("cut")
@click.argument("artifact", required=False, type=click.Path(path_type=Path))
@click.option("--rates", "rates_file", required=True, type=click.Path(path_type=Path), help="A table of rates, TOML.")
@click.option("--min-cut", type=click.IntRange(0), metavar="K", help="The least cut that may be chosen.  [default: 0]")
@click.option("--max-cut", type=click.IntRange(0), metavar="K", help="The largest one.  [default: all blocks]")
@click.option("--around", type=click.IntRange(0), default=3, show_default=True, metavar="N",
              help="Cuts to show on each side of the chosen one.")  # fmt: skip
@plot_option("the stages over the cut")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    artifact: Path | None,
    rates_file: Path,
    min_cut: int | None,
    max_cut: int | None,
    around: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Place the cut: the GPU executes a video's blocks before it, the NPU the rest and the decoder.

    In a stream both engines work at once, on two videos, so that a video is finished in the time of the slower one.
    Rates are those of a phone on which both work. With ARTIFACT the table must be of its clip length, steps and blocks,
    and the expert switch is the artifact's.

    \b
    Examples:
      hvdc plan cut --rates examples/rates/galaxy-s25-49-frames-b.toml
      hvdc plan cut --rates my-phone.toml dcm.hvdc --max-cut 90 --json
    """
    rates = load_rates(rates_file)
    model = None if artifact is None else fit_to_artifact(rates, artifact)
    plan = plan_cut(rates, CutRequest(min_cut, max_cut, around), model)
    if plot is not None:
        from hvdc.plan.pictures import draw_plan  # here: plans without pictures start faster

        prepare_folder(plot)
        draw_plan(plan, plot)
    if as_json:
        print_json(facts(plan))
    elif isinstance(plan, BalancePlan):
        _print_balance(plan)
    else:
        _print(plan)


def _print(plan: CutPlan) -> None:
    console, chosen, executions = out(), plan.chosen, plan.table.executions
    seconds = seconds_like(chosen.period_s, least=1)
    _print_head(plan)
    console.print(
        f"cut       {chosen.cut} of {executions} blocks: a video every {seconds(chosen.period_s)} s, "
        f"{chosen.videos_per_hour:.2f} an hour"
    )
    console.print(f"stages    GPU {seconds(chosen.gpu_s)} s, NPU with the decoder {seconds(chosen.npu_s)} s")
    alone = "" if plan.alone_s is None else f"; {seconds(plan.alone_s)} s for a single video, one engine at a time"
    console.print(f"latency   {seconds(chosen.latency_s)} s in the stream{alone}")
    if plan.npu_only_s is not None:
        gain = plan.npu_only_s / chosen.period_s
        console.print(f"NPU only  a video every {seconds(plan.npu_only_s)} s: the cut gives {gain:.2f} times as many")
    _print_switch(plan)
    rows = [
        (
            _marked(stages.cut, chosen.cut, plan.table.layers),
            *(seconds(s) for s in (stages.gpu_s, stages.npu_s, stages.period_s)),
            f"{100 * (stages.period_s / chosen.period_s - 1):+.1f} %",
            *(seconds(s) for s in (stages.gpu_idle_s, stages.npu_idle_s, stages.latency_s)),
        )
        for stages in plan.shown
    ]
    names = [">cut", ">GPU s", ">NPU s", ">period s", ">longer", ">GPU idle s", ">NPU idle s", ">latency s"]
    table("Cuts beside it, seconds per video", names, rows)
    changes = [
        (
            RATES[changed.rate],
            _percent(changed.factor),
            changed.best.cut,
            seconds(changed.best.period_s),
            seconds(changed.kept.period_s),
            seconds(changed.best.latency_s),
        )
        for changed in plan.changed
    ]
    names = ["rate", ">change", ">cut", ">period s", f">with cut {chosen.cut}", ">latency s"]
    table(f"If a rate is {100 * CHANGE:.0f} % off", names, changes)
    _print_notes(plan)


def _print_balance(plan: BalancePlan) -> None:
    console, balance = out(), plan.balance
    least_s, most_s = balance.period_range_s(plan.cut)
    _print_head(plan)
    console.print(f"cut       {plan.cut} of {plan.table.executions} blocks; the engines balance at {balance.point:.2f}")
    console.print(
        f"period    between {least_s:.0f} and {most_s:.0f} s: the table has how long engines wait at two cuts, "
        "no co-run rates"
    )
    console.print(f"known     T_G + T_N = {balance.both_blocks_s:.3f} s; N·L·T_N + T_V = {balance.npu_whole_s:.1f} s")
    _print_switch(plan)
    rows = []
    for cut in plan.shown:
        idle = idle_facts(balance, cut)
        rows.append(
            (_marked(cut, plan.cut, plan.table.layers), f"{idle['gpu_idle_s']:.1f}", f"{idle['npu_idle_s']:.1f}")
        )
    table("Cuts beside it, seconds per video", (">cut", ">GPU idle s", ">NPU idle s"), rows)
    changes = [(SUMS[key], _percent(factor), f"{changed.point:.2f}") for key, factor, changed in plan.changed]
    table(f"If a sum is {100 * CHANGE:.0f} % off", ("sum", ">change", ">engines balance at"), changes)
    _print_notes(plan)


def _print_head(plan: CutPlan | BalancePlan) -> None:
    t = plan.table
    date = "" if t.date is None else f", {t.date}"
    name, device, thermal = shown(t.name), shown(t.device), shown(t.thermal, 100)
    out().print(f"rates     {name}: {device}{date}; {t.frames} frames, {t.tokens:,} tokens; {thermal}")


def _print_switch(plan: CutPlan | BalancePlan) -> None:
    if plan.switch is None:
        return
    if plan.switch >= plan.table.executions:
        out().print("adapter   none: there is no expert switch")
        return
    where = "the GPU needs it: the cut is beyond" if adapter_on_gpu(plan) else "on the NPU only: the cut is not beyond"
    out().print(f"adapter   {where} the expert switch at block κ·L = {plan.switch}")


def _print_notes(plan: CutPlan | BalancePlan) -> None:
    for note in plan.notes:
        out().print(f"note: {note}")


def _percent(factor: float) -> str:
    return f"{100 * (factor - 1):+.0f} %"


def _marked(cut: int, chosen: int, layers: int) -> str:
    step = "step boundary " if cut % layers == 0 else ""
    return f"{step}{'> ' if cut == chosen else ''}{cut}"


RATES = {
    "gpu": "block on the GPU, T_G",
    "npu": "block on the NPU, T_N",
    "decode": "decode, T_V",
    "handoff": "handoff",
}
SUMS = {"both": "T_G + T_N", "npu": "N·L·T_N + T_V"}
