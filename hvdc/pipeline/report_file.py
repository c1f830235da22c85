"""Where a report may be written: never over anything that is not a report, unless that was asked for."""

from __future__ import annotations

import shlex
from pathlib import Path

from hvdc.errors import UsageError
from hvdc.files import write_durably

GENERATOR = b'<meta name="generator" content="hvdc '
"""What every report has near its beginning."""
_LOOKED_AT = 1000


def check_report_path(output: Path, artifact: Path, *, force: bool) -> None:
    """Before any work. Raises UsageError."""
    where, whole = str(output), output.resolve()
    if whole.is_relative_to(artifact.resolve()):
        raise UsageError("the report would lie inside the artifact", where=where, fix="choose another -o")
    if not whole.parent.is_dir():
        fix = f"mkdir -p {shlex.quote(str(output.parent))}"
        raise UsageError("the report's directory does not exist", where=str(output.parent), fix=fix)
    if whole.is_dir():
        raise UsageError("the report's name is that of a directory", where=where, fix="-o report.html")
    if whole.exists() and not force and not _is_report(whole):
        raise UsageError(
            "the output exists and is no report", where=where, fix="choose another -o, or --force to replace it"
        )


def write_report(output: Path, html: str) -> None:
    """Whole or not at all. Raises HvdcError."""
    write_durably(output, html.encode())


def _is_report(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return GENERATOR in file.read(_LOOKED_AT)
    except OSError:
        return False
