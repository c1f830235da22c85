"""The ``hvdc`` command: verbs, loaded only when used, and the one place where errors become exit statuses."""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from typing import Any

import click

from hvdc import __version__
from hvdc.cli.lazy import lazy_group
from hvdc.errors import Exit

VERBS = {
    "calibrate": "Record what the input of every GEMM reaches.",
    "compile": "Compile a checkpoint into an artifact.",
    "evaluate": "Measure what each engine's arithmetic costs in quality.",
    "run": "Make videos with an artifact, here or on a phone.",
    "decode": "Turn latents into frames with an artifact's decoder.",
    "report": "Write all about an artifact into one HTML page.",
    "inspect": "Show what an artifact holds.",
    "validate": "Prove that an artifact is sound; for CI.",
    "diff": "Compare two artifacts: structure, bytes, numbers.",
    "embed": "Run the text encoder on prompts, for calibration and reference.",
    "plan": "Place the cut, simulate streams, account for memory.",
    "deploy": "Put an artifact onto a phone.",
    "bench": "Measure what blocks and decoder take, as a rate table.",
    "probe": "Find out what a phone's platform allows, as a target.",
    "runtime": "Build the device runtime: what executes an artifact.",
    "synth": "Write synthetic checkpoints and artifacts.",
    "doctor": "Report what this machine and its phones have and lack.",
}
"""Verb -> line of help. Each is the function ``command`` of the module ``hvdc.cli.<verb>``."""


@click.command(
    cls=lazy_group(VERBS, "hvdc.cli."),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit statuses: 0 ok, 1 failure, 2 usage, 3 bad checkpoint, 4 bad artifact, 5 device, 10 different "
    "(diff only), 130 interrupted.",
)
@click.version_option(__version__, prog_name="hvdc")
@click.option("-v", "--verbose", is_flag=True, help="Show the traceback of an error, and the tools' own log.")
@click.pass_context
def cli(ctx: click.Context, verbose: bool) -> None:
    """Compile DCM-Wan2.1, a two-expert video diffusion transformer, for a phone's NPU and GPU."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the ``hvdc`` script; always exits."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, as for a job of a script
        signal.signal(signal.SIGINT, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × or ‖ shows ?, and the command still works
    arguments = sys.argv[1:] if arguments is None else arguments
    sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit status; every error ends as a message on standard error."""
    try:
        result = cli.main(arguments, prog_name="hvdc", standalone_mode=False)
        if sys.stdout is not None:  # None: it was closed before we were started
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output went away, as in `hvdc inspect … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILURE
    except SystemExit as stop:  # click's own, after a broken pipe or --help
        return stop.code if isinstance(stop.code, int) else Exit.FAILURE
    except BaseException as error:
        return _report(error, arguments)
    return int(result) if isinstance(result, int) else Exit.OK


def _interrupt(signum: int, frame: Any) -> None:
    """The first signal stops the work, which takes a moment; an impatient second one must not tear that apart."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _report(error: BaseException, arguments: list[str]) -> int:
    as_json = "--json" in arguments
    if isinstance(error, click.ClickException) and not as_json:
        error.show()  # with the line of usage
        return Exit.USAGE if isinstance(error, click.UsageError) else Exit.FAILURE
    from hvdc.cli.output import print_error

    verbose = bool({"-v", "--verbose"} & set(arguments[:1]))
    if verbose:
        traceback.print_exception(error)
    return print_error(error, as_json=as_json, verbose=verbose)
