"""What `calibrate`, `compile` and `evaluate` share on the command line."""

from __future__ import annotations

from collections.abc import Callable

import click

from hvdc.errors import UsageError

MAX_SEEDS = 1000
"""More is a slip of the keyboard: each is a whole trajectory of each prompt."""


def parse_seeds(text: str) -> tuple[int, ...]:
    """``0,1,7`` or ``0:4`` (0 to 3). Raises UsageError."""
    try:
        if ":" in text:
            first, stop = (int(part) for part in text.split(":"))
            seeds = tuple(range(first, min(stop, first + MAX_SEEDS + 1)))
        else:
            seeds = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError("the seeds are not a list", where="--seeds", expected="0,1,7 or 0:4", found=text) from error
    if not seeds or len(set(seeds)) != len(seeds):
        raise UsageError("there must be seeds, each once", where="--seeds", expected="0,1,7 or 0:4", found=text)
    if len(seeds) > MAX_SEEDS:
        raise UsageError("there are too many seeds", where="--seeds", expected=f"at most {MAX_SEEDS}", found=text[:80])
    if not all(0 <= seed < 2**63 for seed in seeds):
        raise UsageError("a seed is out of range", where="--seeds", expected="0 to 2^63 - 1", found=text)
    return seeds


def say_for(*, quiet: bool) -> Callable[[str], None]:
    """A function that prints a note for people."""
    return lambda text: None if quiet else click.echo(f"note: {text}", err=True)
