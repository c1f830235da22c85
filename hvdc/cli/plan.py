"""``hvdc plan``: a group of commands, each in a module of its own."""

from __future__ import annotations

import click

from hvdc.cli.lazy import lazy_group

COMMANDS: dict[str, str] = {
    "cut": "Place the cut, from a table of rates.",
    "simulate": "Simulate a stream of videos in each configuration.",
    "slo": "Videos per hour that meet a deadline, over deadlines.",
    "memory": "What each way to run holds, and whether it fits.",
    "tensor": "Split each GEMM between both engines.",
}
"""Command -> line of help. Each is the function ``command`` of the module ``hvdc.cli.plan_<command>``."""


@click.command(cls=lazy_group(COMMANDS, "hvdc.cli.plan_"))
def command() -> None:
    """Plan before hours on a phone: the cut, the stream, deadlines, memory."""
