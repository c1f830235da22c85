"""The device runtime, built from its sources once and kept in the user's cache under the identity of what it is
built from."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from device_runtime.build import SOURCE, BuildError, build_host, compiler, why_not
from device_runtime.sources import sources_sha256
from hvdc.errors import HvdcError
from hvdc.pipeline.cache import cache_folder, locked
from hvdc.pipeline.progress import Progress
from hvdc.pipeline.workspace import explaining

TARGETS = ("host", "host-asan", "aarch64-linux", "android-arm64")
"""Presets that `hvdc runtime build` offers: those whose programs are of use outside this project's own tests."""

RUNNER = "hvdc_runner"
PROGRAMS = (RUNNER, "hvdc_check", "hvdc_dump")
"""What people use; the others are for tests."""

_DONE = re.compile(r"^\[\s*(\d+)(?:/(\d+)|%)\]")
"""How ninja and make number what they do: ``[12/84]``, ``[ 14%]``."""


@dataclass(frozen=True)
class Runtime:
    """Programs of the runtime. ``built``: now, and not found in the cache."""

    target: str
    folder: Path
    programs: tuple[str, ...]
    compiler: str
    built: bool

    @property
    def runner(self) -> Path:
        return self.folder / RUNNER


class RuntimeBuildError(HvdcError):
    """``log``: the last lines of CMake and the compiler."""

    def __init__(self, found: str, log: tuple[str, ...]) -> None:
        super().__init__(
            "the device runtime does not build", where=str(SOURCE), found=found,
            fix="run again as `hvdc -v …` to see the compiler's messages",
        )  # fmt: skip
        self.log = log


def find_runtime(target: str, progress: Progress, say: Callable[[str], None]) -> Runtime:
    """The programs of a target, from the cache, or built into it under a lock.

    Raises HvdcError: a tool is missing (with what to install), or the build fails (with the end of its log).
    """
    if (kept := kept_runtime(target)) is not None:
        return kept
    version = compiler(target)
    folder = _folder(target, version)
    if problem := why_not(target):
        raise HvdcError("the device runtime cannot be built here", where=str(SOURCE), found=problem,
                        fix="install what is missing and run the same command again")  # fmt: skip
    with locked(folder, say):
        if folder.is_dir():  # another process has built it meanwhile
            return Runtime(target, folder, PROGRAMS, version, built=False)
        say(f"building the device runtime for {target}: once, it is kept in {folder}")
        _build_into(folder, target, progress)
    return Runtime(target, folder, PROGRAMS, version, built=True)


def kept_runtime(target: str) -> Runtime | None:
    """What the cache holds of a target, of these sources and by the compiler that is here now."""
    version = compiler(target)
    folder = _folder(target, version)
    return Runtime(target, folder, PROGRAMS, version, built=False) if folder.is_dir() else None


def copy_programs(runtime: Runtime, output: Path) -> None:
    """Copy a runtime's programs into a folder, each whole or not at all. Raises HvdcError."""
    with explaining(output):
        output.mkdir(parents=True, exist_ok=True)
        for name in runtime.programs:
            temporary = output / f".{name}.tmp"
            try:
                shutil.copy2(runtime.folder / name, temporary)
                temporary.replace(output / name)
            finally:
                temporary.unlink(missing_ok=True)


def _folder(target: str, version: str) -> Path:
    return cache_folder("runtimes") / f"{target}-{_key(target, version)}"


def _key(target: str, version: str) -> str:
    return hashlib.sha256(f"{target}\n{version}\n{sources_sha256()}\n".encode()).hexdigest()[:32]


def _build_into(folder: Path, target: str, progress: Progress) -> None:
    """The build's own files are large and of no use later: only the programs are kept."""
    with explaining(folder), tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as place:
        build, kept = Path(place) / "build", Path(place) / "programs"
        kept.mkdir()
        counter = _Counter(progress)
        try:
            programs = build_host(target, build, PROGRAMS, counter.seen)
        except BuildError as error:
            lines = str(error).splitlines()
            raise RuntimeBuildError(lines[0], tuple(lines[1:])) from error
        finally:
            progress.finish()
        for name, path in programs.items():
            shutil.copy2(path, kept / name)
        kept.rename(folder)


class _Counter:
    """Lines of a build as progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done, self._started = 0, False

    def seen(self, line: str) -> None:
        found = _DONE.match(line)
        if found is None:
            return
        done, total = int(found[1]), int(found[2] or 100)
        if not self._started:
            self._progress.start("building", total, total, unit="files" if found[2] else "%")
            self._started = True
        self._progress.advance(max(0, done - self._done))
        self._done = max(self._done, done)
