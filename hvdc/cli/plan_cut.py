"""``hvdc plan cut``."""

from __future__ import annotations

from pathlib import Path

import click

from hvdc.cli.output import out, print_json
from hvdc.plan.cut import best_cut, period_s
from hvdc.plan.rates import load_rates


@click.command("cut")
@click.option("--rates", "rates_file", required=True, type=click.Path(path_type=Path), help="A table of rates, TOML.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(rates_file: Path, as_json: bool) -> None:
    """Place the cut: the GPU executes a video's blocks before it, the NPU the rest and the decoder."""
    table = load_rates(rates_file)
    cut = best_cut(table.rates, table.executions)
    period = period_s(table.rates, table.executions, cut)
    if as_json:
        print_json({"cut": cut, "period_s": period})
    else:
        out().print(f"cut {cut} of {table.executions}: a video every {period:.1f} s")
