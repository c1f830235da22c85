"""The user's cache: what took long to compute, by the identity of what it was computed from."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from hvdc.errors import UsageError


def cache_folder(kind: str) -> Path:
    """``$HVDC_CACHE_DIR/kind``, else in the user's cache folder; it exists and can be written.

    Raises UsageError.
    """
    own = os.environ.get("HVDC_CACHE_DIR")
    root = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvdc"
    path = root / kind
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UsageError(
            f"the folder of cached {kind} cannot be made or written",
            where=str(path),
            found=error.strerror or str(error),
            fix="set HVDC_CACHE_DIR to a folder that can be written",
        ) from error
    return path
