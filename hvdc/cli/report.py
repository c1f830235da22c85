"""``hvdc report``."""

from __future__ import annotations

from pathlib import Path

import click

from hvdc import __version__
from hvdc.artifact.reader import open_artifact
from hvdc.cli.activations import activations_line
from hvdc.cli.decoder import decoder_line
from hvdc.cli.output import out, print_json
from hvdc.pipeline.report_file import check_report_path, write_report
from hvdc.plan.rates import load_rates
from hvdc.plan.report import Lines, render, report_page


@click.command()
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The page to write, as report.html."
)
@click.option(
    "--rates", "rates_file", type=click.Path(path_type=Path), help="Place the cut by this table of rates, TOML."
)
@click.option("--force", is_flag=True, help="Replace a file that is no report. Reports are always replaced.")
@click.option("--json", "as_json", is_flag=True, help="Print where the page is and what it holds as JSON.")
def command(artifact: Path, output: Path, rates_file: Path | None, force: bool, as_json: bool) -> None:
    """Write all about ARTIFACT into one HTML page: model, plan, memory, calibration, decoder, programs.

    The page is one file that needs nothing else: it opens offline, on a phone too, and can be sent to anyone.

    \b
    Examples:
      hvdc report dcm.hvdc -o report.html
      hvdc report dcm.hvdc --rates examples/rates/galaxy-s25-49-frames-b.toml -o report.html
    """
    check_report_path(output, artifact, force=force)
    rates = None if rates_file is None else load_rates(rates_file)
    with open_artifact(artifact) as opened:
        m = opened.manifest
        lines = Lines(activations_line(m.calibration), decoder_line(m.decoder), __version__)
        page = report_page(opened, lines, rates)
        html = render(page)
    write_report(output, html)
    if as_json:
        sections = [section.title for section in page.sections]
        print_json({"output": str(output), "bytes": len(html.encode()), "sections": sections})
    else:
        out().print(f"{output}  {len(html.encode()) / 1024:,.0f} KiB")
