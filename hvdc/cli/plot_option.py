"""``--plot`` of plans, in a module that imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]


def plot_option(what: str) -> Callable[[Command], Command]:
    """``--plot DIR`` of a command that can draw ``what``."""
    return click.option(
        "--plot", type=click.Path(path_type=Path), metavar="DIR", help=f"Draw {what} into a folder, as SVG and PNG."
    )
