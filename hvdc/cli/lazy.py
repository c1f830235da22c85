"""Groups of commands that are imported only when they run or show their own help: ``hvdc --help`` is immediate."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click


def lazy_group(lines: Mapping[str, str], modules: str) -> type[click.Group]:
    """A group of ``lines``: command -> line of help, each the function ``command`` of the module whose name is
    ``modules`` and the command's: ``hvdc.cli.`` or ``hvdc.cli.plan_``."""

    class LazyGroup(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:
            return list(lines)

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            if cmd_name not in lines:
                return None
            command: click.Command = importlib.import_module(modules + cmd_name).command
            return command

        def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            """Without importing any."""
            with formatter.section("Commands"):
                formatter.write_dl(list(lines.items()))

    return LazyGroup
