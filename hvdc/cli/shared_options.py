"""Options that several commands share, and what becomes of their text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from hvdc.artifact.calibration import CalibrationDType
from hvdc.cli.output import plain
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


def given(*names: str) -> list[str]:
    """Those of the running command's options that stand on its command line, as they are written."""
    context = click.get_current_context()
    return [
        max(option.opts, key=len)
        for option in context.command.params
        if option.name in names and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ]


def refuse_without_effect(options: list[str], why: str, fix: str) -> None:
    """Raises UsageError if there are any: an option that changes nothing is a misunderstanding."""
    if options:
        raise UsageError(f"{' and '.join(options)} would have no effect", found=why, fix=fix)


def say_for(*, quiet: bool) -> Callable[[str], None]:
    """A function that prints a note for people."""
    return lambda text: None if quiet else click.echo(f"note: {plain(text)}", err=True)


Command = Callable[..., Any]

_MODEL = (
    click.option("--adapter", type=click.Path(path_type=Path), help="Detail expert: LoRA file, or merged checkpoint."),
    click.option("--config", "config_file", type=click.Path(path_type=Path), help="Settings as a TOML file."),
    click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="One setting; may be repeated."),
    click.option("--frames", type=int, help="Frames of the video, 4 n + 1.  [default: 49]"),
    click.option("--height", type=int, help="Rows of the video in pixels.  [default: 480]"),
    click.option("--width", type=int, help="Columns of the video in pixels.  [default: 832]"),
    click.option(
        "--rank", type=int, help="Rank of the split, where the adapter is a merged checkpoint.  [default: 128]"
    ),
    click.option("--lora-alpha", type=float, help="Alpha of the adapter; wins over what its files say."),
)

_PAIRS = (
    click.option("--prompts-limit", type=click.IntRange(1), help="Use the first N prompts only.  [default: all]"),
    click.option("--seeds", default="0", show_default=True, help="Noise seeds of each prompt: 0,1,7 or 0:4."),
)

_RUN = (
    *_PAIRS,
    click.option("--device", default="cpu", show_default=True, help="Where the model runs: cpu, cuda, or cuda:N."),
)

target_option = click.option(
    "--target",
    metavar="NAME|FILE",
    help="The phone's SoC, or what `hvdc probe` wrote about one.  [default: sm8750]",
)

dtype_option = click.option(
    "--dtype",
    type=click.Choice(get_args(CalibrationDType)),
    default="fp32",
    show_default=True,
    help="What the GEMMs compute in while calibrating; the residual stream is FP32.",
)


def model_options(command: Command) -> Command:
    """Which model, and for which video: what `load_config` and the exporters take."""
    return with_options(_MODEL, command)


def pairs_options(command: Command) -> Command:
    """Which prompts, with which seeds."""
    return with_options(_PAIRS, command)


def run_options(command: Command) -> Command:
    """What is run, and where."""
    return with_options(_RUN, command)


def with_options(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    """A command with these options, in this order."""
    for option in reversed(options):
        command = option(command)
    return command
