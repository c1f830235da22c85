"""Which ``adb`` is used: the one that is named, that on PATH, or the one inside the package `adbutils`."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hvdc.deploy.errors import DeviceError

OLDEST = (1, 0, 39)
"""The first whose shell passes exit statuses on, and which has `exec-out` and ``devices -l``."""

MISSING_FIX = "apt-get install adb, or pip install 'hvdc[deploy]', or give --adb PATH"
_VERSION = re.compile(r"Android Debug Bridge version (\d+)\.(\d+)\.(\d+)")
_BUILD = re.compile(r"^Version (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class AdbProgram:
    """``protocol``: version of the protocol between its client and its server. ``build``: of the platform tools, ``""``
    where it does not say."""

    path: Path
    protocol: tuple[int, int, int]
    build: str

    def text(self) -> str:
        """One line for people."""
        version = ".".join(map(str, self.protocol))
        return f"{self.path}, version {version}" + (f" ({self.build})" if self.build else "")


def find_adb(given: Path | None = None) -> AdbProgram:
    """The program, asked for its version. Raises DeviceError: there is none, it does not run, or it is too old."""
    path = _place(given)
    try:
        done = subprocess.run(
            [path, "version"], capture_output=True, text=True, errors="replace", timeout=30, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise DeviceError("adb does not run", where=str(path), found=str(error), fix=MISSING_FIX) from error
    found = _VERSION.search(done.stdout)
    if done.returncode != 0 or found is None:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise DeviceError(
            "this program is not adb", where=str(path), expected="Android Debug Bridge version …",
            found=said[0][:200] if said else f"nothing, and exit status {done.returncode}", fix=MISSING_FIX,
        )  # fmt: skip
    protocol = (int(found[1]), int(found[2]), int(found[3]))
    if protocol < OLDEST:
        raise DeviceError(
            "this adb is too old", where=str(path), expected=f"{'.'.join(map(str, OLDEST))} or newer",
            found=".".join(map(str, protocol)), fix=MISSING_FIX,
        )  # fmt: skip
    build = _BUILD.search(done.stdout)
    return AdbProgram(path, protocol, build[1] if build else "")


def _place(given: Path | None) -> Path:
    if given is not None:
        if not given.is_file() or not os.access(given, os.X_OK):
            raise DeviceError("there is no such program", where=f"--adb {given}", fix=MISSING_FIX)
        return given.absolute()
    if (on_path := shutil.which("adb")) is not None:
        return Path(on_path)
    if (bundled := _bundled()) is not None:
        return bundled
    raise DeviceError("there is no adb, which is how a phone is reached", fix=MISSING_FIX)


def _bundled() -> Path | None:
    """That of the package `adbutils`, which is looked for and not imported."""
    spec = importlib.util.find_spec("adbutils")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / "binaries" / "adb"
        if path.is_file() and os.access(path, os.X_OK):
            return path
    return None
