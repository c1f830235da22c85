"""``hvdc plan simulate``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hvdc.cli.output import out, print_json, seconds_like, table
from hvdc.cli.plan_options import Asked, Telling, asks, note
from hvdc.cli.plot_option import plot_option
from hvdc.figures import prepare_folder
from hvdc.plan.results import Deadline, Distribution, powers_of
from hvdc.plan.scenarios import Outcome, compare, deadline_of


@click.command("simulate")
@asks
@click.option("--deadline-factor", type=float, help="A deadline, as a multiple of the reference.  [default: 1.5]")
@click.option("--deadline-s", type=float, help="A deadline in seconds.")
@click.option(
    "--power", "powers", multiple=True, metavar="NAME=WATTS", help="idle, and what gpu and npu add; repeated."
)
@plot_option("a Gantt chart of the first videos")
def command(
    deadline_factor: float | None,
    deadline_s: float | None,
    powers: tuple[str, ...],
    plot: Path | None,
    as_json: bool,
    quiet: bool,
    **asked: Any,
) -> None:
    """Simulate a stream of videos in each configuration.

    With ARTIFACT the table must be of its clip length, steps and blocks, and linears that both engines share are its.

    \b
    Examples:
      hvdc plan simulate --rates RATES.toml --videos 100
      hvdc plan simulate --rates RATES.toml --mode hetero --cut 60 --jitter 0.03
      hvdc plan simulate --rates RATES.toml --mode hetero --policy all --drift DRIFT.toml
      hvdc plan simulate --rates RATES.toml --arrivals poisson:4 --videos 1000
      hvdc plan simulate --rates my-phone.toml dcm.hvdc
    """
    this = Asked.of(**asked)
    deadline, why_none = deadline_of(this.scenario.costs, deadline_factor, deadline_s, this.reference_s)
    watts = {name: None if rate is None else rate.value for name, rate in this.table.power_w}
    powers_w = powers_of(powers, watts)
    videos = len(this.scenario.arrivals_s)
    if plot is not None:
        prepare_folder(plot)
    with Telling(videos, len(this.wanted), quiet=quiet) as telling:
        outcomes = compare(
            this.scenario,
            this.wanted,
            deadline_s=deadline,
            since=this.since,
            powers_w=powers_w,
            tell=telling.tell,
            done=telling.done,
        )
    if plot is not None:
        from hvdc.plan.pictures import draw_simulation  # here: plans without pictures start faster

        draw_simulation(outcomes, plot)
    if as_json:
        print_json(
            {
                "rates": this.table.name,
                "videos": videos,
                "cut": this.scenario.cut,
                "drift": None if this.scenario.drift is None else this.scenario.drift.name,
                "jitter": this.scenario.jitter.variation,
                "seed": this.scenario.jitter.seed,
                "deadline_s": deadline,
                "deadline_from": this.since,
                "configurations": [_facts(outcome) for outcome in outcomes],
            }
        )
        return
    if why_none:
        note(why_none, quiet=quiet)
    _print(this, outcomes, deadline, with_energy=powers_w is not None)


def _facts(outcome: Outcome) -> dict[str, Any]:
    configuration, run, result = outcome.configuration, outcome.run, outcome.result
    facts: dict[str, Any] = {"mode": configuration.mode, "policy": configuration.policy}
    if run is None or result is None:
        return facts | {"why_not": outcome.why_not}
    cuts = sorted({video.cut for video in run.videos})
    more = {"slots": run.slots, "cuts": [cuts[0], cuts[-1]], "energy_j_per_video": result.energy_j_per_video}
    values = asdict(result)
    values |= {f"{name}_s": values.pop(name) for name in ("latency", "service")}
    return facts | more | values


def _print(this: Asked, outcomes: list[Outcome], deadline_s: float | None, *, with_energy: bool) -> None:
    since = "its first block" if this.since == "start" else "its arrival"
    videos = len(this.scenario.arrivals_s)
    title = (
        f"{videos:,} video{'' if videos == 1 else 's'}, {this.table.name}; latency of a video from {since}, in seconds"
    )
    if any(o.result is not None and o.result.period_s is not None for o in outcomes):
        title += "; videos/h and idle are of the steady part"
    columns = ["configuration", ">cut", ">period s", ">videos/h", ">mean", ">p50", ">p95", ">max"]
    columns += [] if deadline_s is None else [f">in {seconds_like(deadline_s, least=0)(deadline_s)} s", ">of them/h"]
    columns += [">GPU idle", ">NPU idle", ">all done s"] + ([">J/video"] if with_energy else [])
    out().print(title)
    table("", columns, [_cells(this, o, len(columns)) for o in outcomes])
    for outcome in outcomes:
        if outcome.why_not:
            out().print(f"{outcome.configuration.name} is not simulated: {outcome.why_not}")


def _cells(this: Asked, outcome: Outcome, columns: int) -> list[str]:
    result, run = outcome.result, outcome.run
    if result is None or run is None:
        return [outcome.configuration.name] + ["–"] * (columns - 1)
    spread = result.service if this.since == "start" else result.latency
    period = "–" if result.period_s is None else seconds_like(result.period_s, least=1)(result.period_s)
    cells = [outcome.configuration.name, _cut(outcome), period, f"{result.videos_per_hour:.2f}", *_spread(spread)]
    cells += [] if result.deadline is None else _deadline(result.deadline, result.videos)
    cells += [f"{100 * use.idle_fraction:.1f} %" for use in (result.gpu, result.npu)]
    energy = result.energy_j_per_video
    return [
        *cells,
        seconds_like(result.makespan_s, least=0)(result.makespan_s),
        *([] if energy is None else [f"{energy:.0f}"]),
    ]


def _cut(outcome: Outcome) -> str:
    if outcome.run is None or outcome.configuration.mode != "hetero":
        return ""
    cuts = [video.cut for video in outcome.run.videos]
    return str(cuts[0]) if min(cuts) == max(cuts) else f"{min(cuts)}–{max(cuts)}"


def _spread(values: Distribution) -> list[str]:
    seconds = seconds_like(values.mean, least=0)
    return [seconds(value) for value in (values.mean, values.p50, values.p95, values.max)]


def _deadline(deadline: Deadline, videos: int) -> list[str]:
    return [f"{100 * deadline.met / videos:.0f} %", f"{deadline.compliant_per_hour:.2f}"]
