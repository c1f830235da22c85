"""TOML files that people write for plans: tables of rates and of GEMMs, drifts."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hvdc.errors import UsageError


def read_toml(path: Path, what: str, fix: str = "") -> dict[str, Any]:
    """The values of the file that holds ``what``. Raises UsageError for one that cannot be read or is no TOML."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))  # editors on Windows put a byte order mark in front
    except (OSError, ValueError, RecursionError) as error:  # bad UTF-8, bad TOML, numbers of thousands of digits
        found = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{what} cannot be read", where=str(path), found=found, fix=fix) from error
