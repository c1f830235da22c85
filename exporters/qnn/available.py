"""Whether context binaries can be made on this machine, and if not, exactly why.

The libraries inside the wheel `onnxruntime-qnn` are proprietary to Qualcomm; they are used from where pip put them
and never copied. A package can be installed without its libraries, so the libraries themselves are looked for.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from exporters.qnn import process
from exporters.qnn.errors import QnnError
from exporters.qnn.options import GIB, Limits

PACKAGE = "onnxruntime_qnn"
TESTED = (2, 7)
"""Version of onnxruntime-qnn whose struct layouts, messages and numbers this package was written against."""

GLIBC = (2, 35)
"""From the wheel's tag, manylinux_2_35_x86_64."""

SYSTEM, BACKEND, PROVIDER = "libQnnSystem.so", "libQnnHtp.so", "libonnxruntime_providers_qnn.so"
LIBRARIES = {
    SYSTEM: "reads a binary's metadata",
    BACKEND: "the HTP backend and its emulator",
    "libHtpPrepare.so": "compiles graphs",
    PROVIDER: "ONNX Runtime's QNN execution provider",
}
_INSTALL = "pip install 'onnxruntime-qnn==2.7.*' onnxruntime"
_PROBE_LIMITS = Limits(seconds=60, memory_bytes=2 * GIB)


@dataclass(frozen=True)
class Problem:
    """One reason why the backend cannot be used here, each field a finished phrase."""

    what: str
    found: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what} (found: {self.found}; {self.fix})"


@dataclass(frozen=True)
class Toolchain:
    """What compiles: QAIRT's build id and API versions, and the versions of the packages around it."""

    build_id: str
    core_api: str
    backend_api: str
    system_api: str
    onnxruntime_qnn: str
    onnxruntime: str


def problems(folder: Path | None = None) -> list[Problem]:
    """Why the backend cannot be used, empty if nothing speaks against it. Loads no library.

    ``folder`` is where the libraries lie; without it, the installed wheel's.
    """
    found = _machine()
    if found:
        return found
    if folder is None:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            return [
                Problem(
                    "the package onnxruntime-qnn is not installed",
                    "no such package",
                    f"{_INSTALL} (there are wheels for CPython 3.11 to 3.14)",
                )
            ]
        folder = Path(next(iter(spec.submodule_search_locations)))
        found += _versions()
    return found + _libraries(folder)


def why_not(folder: Path | None = None) -> str:
    """All problems in one line, ``""`` if there are none."""
    return "; ".join(map(str, problems(folder)))


def library_folder() -> Path:
    """Where the wheel's libraries lie.

    Raises:
        QnnError: the backend cannot be used here; the first problem is its text.
    """
    found = problems()
    if found:
        first, *more = found
        raise QnnError(
            f"context binaries cannot be made here: {first.what}",
            found="; ".join([first.found, *map(str, more)]),
            fix=first.fix,
        )
    spec = importlib.util.find_spec(PACKAGE)
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places or ())))  # `problems` has looked that it exists


@lru_cache(maxsize=1)
def toolchain() -> Toolchain:
    """Loads the libraries in a process of its own and asks them for their versions.

    Raises:
        QnnError: the backend cannot be used here, or its libraries do not load (a system library is missing).
    """
    ended = process.run("toolchain", {"folder": str(library_folder())}, _PROBE_LIMITS)
    if ended.status != "answered":
        raise QnnError(
            "QNN's libraries are there but do not load",
            where=str(library_folder()),
            found=ended.error or f"the process ended with: {ended.status} {ended.code or ''}".rstrip(),
            fix="install the system library named above (libatomic.so.1 is in the package libatomic1)",
            log=ended.tail,
        )
    return Toolchain(**ended.value, onnxruntime_qnn=_version("onnxruntime-qnn"), onnxruntime=_version("onnxruntime"))


def _machine() -> list[Problem]:
    out = []
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        out.append(
            Problem(
                "the compiler for context binaries runs on x86-64 Linux only",
                f"{platform.system()} {platform.machine()}",
                "use such a machine or a container",
            )
        )
    if sys.implementation.name != "cpython":
        out.append(
            Problem(
                "the wheels of onnxruntime-qnn are made for CPython only",
                f"{sys.implementation.name} {platform.python_version()}",
                "use CPython 3.11 to 3.14",
            )
        )
    libc, version = platform.libc_ver()
    if not out and (libc != "glibc" or _numbers(version) < GLIBC):
        out.append(
            Problem(
                "the C library must be glibc 2.35 or newer",
                f"{libc or 'another C library'} {version}".rstrip(),
                "use Debian 12, Ubuntu 22.04 or newer, or a container of these",
            )
        )
    return out


def _versions() -> list[Problem]:
    out = []
    version = _version("onnxruntime-qnn")
    if _numbers(version) != TESTED:
        out.append(Problem("another version of onnxruntime-qnn than 2.7 is installed", version or "none", _INSTALL))
    if not _version("onnxruntime"):
        out.append(Problem("the package onnxruntime is not installed", "no such package", _INSTALL))
    return out


def _libraries(folder: Path) -> list[Problem]:
    missing = {name: use for name, use in LIBRARIES.items() if not (folder / name).is_file()}
    if not missing:
        return []
    names = ", ".join(f"{name} ({use})" for name, use in missing.items())
    reinstall = "reinstall it: pip install --force-reinstall 'onnxruntime-qnn==2.7.*'"
    return [Problem("QNN's libraries are missing from the installed package", f"no {names} in {folder}", reinstall)]


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    """Major and minor version."""
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()
