"""Where a run's trace may be written: never over anything that is not a trace."""

from __future__ import annotations

import shlex
from pathlib import Path

from hvdc.errors import UsageError

TRACE_NAME = "trace.json"
"""The one name for it inside the folder of the run itself."""

BEGINNING = b'[\n{"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"hvdc stream"}}'
"""Of every trace: device_runtime/coordinator/src/trace.c."""


def is_trace(path: Path) -> bool:
    """A regular file that a run wrote as its trace; an empty one is what is left when it died at once."""
    if path.is_symlink() or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(BEGINNING)) in (BEGINNING, b"")
    except OSError:
        return False


def check_trace(trace: Path, artifact: Path, output: Path) -> None:
    """Before any work. Raises UsageError."""
    where, whole, folder = str(trace), trace.resolve(), output.resolve()
    if whole.is_relative_to(artifact.resolve()):
        raise UsageError("the trace would lie inside the artifact", where=where, fix="choose another --trace")
    if whole.is_relative_to(folder):
        if whole != folder / TRACE_NAME:
            raise UsageError(
                "the trace would be a strange thing in the run's own folder", where=where,
                fix=f"--trace {shlex.quote(str(output / TRACE_NAME))}",
            )  # fmt: skip
    elif not whole.parent.is_dir():
        fix = f"mkdir -p {shlex.quote(str(trace.parent))}"
        raise UsageError("the trace's directory does not exist", where=str(trace.parent), fix=fix)
    if (whole.exists() or trace.is_symlink()) and not is_trace(whole):
        raise UsageError(
            "the trace would replace something that is not a trace", where=where, fix="choose another --trace"
        )
