"""``hvdc doctor``."""

from __future__ import annotations

from pathlib import Path

import click

from hvdc.cli.device_options import adb_options
from hvdc.cli.output import out, print_json
from hvdc.doctor import Check, Server, examine
from hvdc.errors import Exit


@click.command()
@adb_options
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, to paste into an issue.")
def command(adb: Path | None, adb_host: str | None, adb_port: int | None, as_json: bool) -> int:
    """Report what this machine and its phones have, what is missing, what that is needed for and how to get it.

    Made to be pasted into a bug report: no names of people, machines or home folders are in it, serials are shortened.
    Everything is asked at once and within seconds; what gives no answer is reported as unknown. Exit status 0 if
    nothing that the commands need is missing, 1 otherwise.

    \b
    Examples:
      hvdc doctor
      hvdc doctor --json > report.json
    """
    checks = examine(server=Server(adb, adb_host, adb_port))
    if as_json:
        print_json({"checks": [check.__dict__ for check in checks]})
    else:
        _print(checks)
    return Exit.FAILURE if any(check.status == "error" for check in checks) else Exit.OK


def _print(checks: list[Check]) -> None:
    console = out()
    width = max(len(check.name) for check in checks)
    for check in checks:
        console.print(f"{check.status:<8} {check.name:<{width}}  {check.found}")
        if check.status != "ok":
            console.print(f"{'':<8} {'':<{width}}  needed for {check.needed_for}: {check.fix}")
