"""``hvdc plan slo``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hvdc.cli.output import out, print_json, seconds_like, table
from hvdc.cli.plan_options import Asked, Telling, asks
from hvdc.cli.plot_option import plot_option
from hvdc.figures import prepare_folder
from hvdc.plan.scenarios import factors_of, reference_of, slo


@click.command("slo")
@asks
@click.option("--factors", default="1.25:3:0.25", show_default=True, help="FROM:TO:STEP, or a list: 1.25,1.5,2.")
@plot_option("these lines")
def command(factors: str, plot: Path | None, as_json: bool, quiet: bool, **asked: Any) -> None:
    """Videos per hour that meet a deadline, for each configuration and deadline.

    A deadline is a factor times the reference: the latency of a single video on the NPU alone. ARTIFACT is as for
    `hvdc plan simulate`.

    \b
    Examples:
      hvdc plan slo --rates RATES.toml --videos 100
      hvdc plan slo --rates RATES.toml --factors 1.1,1.25,1.5 --mode npu --mode hetero --policy all
    """
    this = Asked.of(**asked)
    wanted_factors = factors_of(factors)
    reference_s = reference_of(this.scenario.costs, this.reference_s)
    streams = sum(len(wanted_factors) if c.policy == "deadline" else 1 for c in this.wanted)
    if plot is not None:
        prepare_folder(plot)
    with Telling(len(this.scenario.arrivals_s), streams, quiet=quiet) as telling:
        points = slo(
            this.scenario,
            this.wanted,
            wanted_factors,
            reference_s,
            since=this.since,
            tell=telling.tell,
            done=telling.done,
        )
    if plot is not None:
        from hvdc.plan.pictures import draw_slo  # here: plans without pictures start faster

        draw_slo(points, this.wanted, reference_s, plot, given=this.reference_s is not None)
    if as_json:
        names = [{"mode": c.mode, "policy": c.policy} for c in this.wanted]
        print_json(
            {
                "rates": this.table.name,
                "videos": len(this.scenario.arrivals_s),
                "reference_s": reference_s,
                "deadline_from": this.since,
                "points": [
                    {
                        "factor": p.factor,
                        "deadline_s": p.deadline_s,
                        "compliant_per_hour": [
                            {**name, "videos_per_hour": rate}
                            for name, rate in zip(names, p.compliant_per_hour, strict=True)
                        ],
                    }
                    for p in points
                ],
            }
        )
        return
    since = "its first block" if this.since == "start" else "its arrival"
    reference = seconds_like(reference_s, least=1)(reference_s)
    title = f"Videos per hour within a deadline from {since}; {this.table.name}, reference {reference} s"
    seconds = seconds_like(reference_s, least=0)
    columns = [">factor", ">deadline s", *(f">{c.name}" for c in this.wanted)]
    rows = [
        [f"{p.factor:g}", seconds(p.deadline_s), *("–" if r is None else f"{r:.2f}" for r in p.compliant_per_hour)]
        for p in points
    ]
    out().print(title)
    table("", columns, rows)
