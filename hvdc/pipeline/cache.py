"""The user's cache: what took long to compute, by the identity of what it was computed from."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from hvdc.errors import UsageError


def cache_folder(kind: str) -> Path:
    """``$HVDC_CACHE_DIR/kind``, else in the user's cache folder; it exists and can be written. Absolute: programs
    that are given it, or are in it, may be started from elsewhere.

    Raises UsageError.
    """
    own = os.environ.get("HVDC_CACHE_DIR")
    root = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvdc"
    path = Path(os.path.abspath(root / kind))  # noqa: PTH100 - resolve() would follow links in messages
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


@contextlib.contextmanager
def locked(path: Path, say: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """One process at a time works on ``path``, which need not exist; a lock file stays beside it.

    ``say`` is told when another one is waited for. Where a file system knows no locks, nobody is kept out: all that is
    written is renamed into place as a whole, so that two who make the same thing only waste time.
    """
    with path.with_name(path.name + ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another hvdc is making the same, it is waited for: {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
                raise
        yield
