"""``hvdc diff``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from hvdc.artifact.reader import open_artifact
from hvdc.cli.output import json_number, out, print_json, table
from hvdc.errors import Exit
from hvdc.pipeline.compare import Difference, diff

SHOWN = 30
"""Lines of each part that are printed; --json lists all."""


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print all differences as JSON.")
def command(a: Path, b: Path, as_json: bool) -> int:
    """Compare artifacts A and B: structure, then bytes, then de-tiled numbers.

    Exit status 0 if they are the same, 10 if they differ.

    \b
    Example:
      hvdc diff before.hvdc after.hvdc
    """
    with open_artifact(a) as left, open_artifact(b) as right:
        found = diff(left, right)
    if as_json:
        tensors = [
            asdict(t) | {"sqnr_db": json_number(t.sqnr_db), "max_abs": json_number(t.max_abs)} for t in found.tensors
        ]
        print_json(
            {
                "same": not found,
                "tools": found.tools,
                "structure": found.structure,
                "files": found.files,
                "tensors": tensors,
            }
        )
    else:
        _print(found)
    return Exit.DIFFERENT if found else Exit.OK


def _print(found: Difference) -> None:
    console = out()
    for line in found.tools:
        console.print(f"written by other versions, which is no difference: {line}")
    if not found:
        console.print("the same")
        return
    for title, lines in (("structure", found.structure), ("files whose bytes differ", found.files)):
        if lines:
            console.print(f"{title}: {len(lines)}")
            for line in lines[:SHOWN]:
                console.print(f"  {line}")
            if len(lines) > SHOWN:
                console.print(f"  … and {len(lines) - SHOWN} more")
    if found.tensors:
        console.print()
        worst = sorted(found.tensors, key=lambda t: t.sqnr_db)[:SHOWN]
        rows = [(t.name, f"{t.changed:,} of {t.elements:,}", f"{t.max_abs:.6g}", f"{t.sqnr_db:.2f}") for t in worst]
        title = f"Tensors whose values differ: {len(found.tensors)}, worst first"
        table(title, ("name", ">changed", ">largest |A − B|", ">SQNR, dB"), rows)
