"""The device runtime, built from its sources once and kept in the user's cache under the identity of what it is
built from."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from device_runtime.build import NDK as NDK
from device_runtime.build import SOURCE, BuildError, build_host, compiler, why_not
from device_runtime.sources import sources_sha256
from hvdc.errors import HvdcError
from hvdc.files import explaining, write_durably
from hvdc.pipeline.cache import locked
from hvdc.pipeline.runtime_kept import (
    HEXAGON,
    Runtime,
    folder_of,
    has_builds,
    keep,
    kept_by_any_compiler,
    kept_in,
    programs_of,
)
from hvdc.progress import Progress

TARGETS = ("host", "host-asan", "aarch64-linux", "android-arm64", HEXAGON)
"""Presets that `hvdc runtime build` offers: those whose programs are of use outside this project's own tests."""

_DONE = re.compile(r"^\[\s*(\d+)(?:/(\d+)|%)\]")
"""How ninja and make number what they do: ``[12/84]``, ``[ 14%]``."""


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

    Where nothing can be built, a build of the same sources by another compiler will do. Raises HvdcError: a tool is
    missing (with what to install), or the build fails (with the end of its log).
    """
    version, sources = compiler(target), sources_sha256()
    folder = folder_of(target, version, sources)
    if (kept := kept_in(folder, target, sources)) is not None:
        return kept
    if problem := why_not(target):
        if (kept := kept_by_any_compiler(target, sources)) is None:
            raise HvdcError("the device runtime cannot be built here", where=str(SOURCE), found=problem,
                            fix="install what is missing and run the same command again")  # fmt: skip
        say(f"the device runtime cannot be built here ({problem}): one of the same sources is taken, {_by(kept)}")
        return kept
    with locked(folder, say):
        if (kept := kept_in(folder, target, sources)) is not None:  # another process has built it meanwhile
            return kept
        say(f"building the device runtime for {target}: once, it is kept in {folder}")
        _build_into(folder, target, version, sources, progress)
    built = kept_in(folder, target, sources)
    if built is None:
        raise HvdcError("the device runtime is not what was just built", where=str(folder), fix="look at the disk")
    return replace(built, built=True)


def _by(kept: Runtime) -> str:
    return f"built with {kept.compiler or 'an unknown compiler'}"


def kept_runtime(target: str) -> Runtime | None:
    """What the cache holds of a target, of these sources, and by the compiler that is here now if there is one."""
    if not has_builds(target):  # no source is read, and no compiler asked
        return None
    sources = sources_sha256()
    kept = kept_in(folder_of(target, compiler(target), sources), target, sources)
    return kept_by_any_compiler(target, sources) if kept is None and why_not(target) else kept


def copy_programs(runtime: Runtime, output: Path) -> None:
    """Copy a runtime's programs into a folder, each whole or not at all. Raises HvdcError."""
    with explaining(output):
        output.mkdir(parents=True, exist_ok=True)
    for name in runtime.programs:
        write_durably(output / name, runtime.program(name), executable=True)


def _build_into(folder: Path, target: str, version: str, sources: str, progress: Progress) -> None:
    """The build's own files are large and of no use later: only the programs are kept."""
    with explaining(folder), tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as place:
        build, kept = Path(place) / "build", Path(place) / "programs"
        kept.mkdir()
        counter = _Counter(progress)
        try:
            programs = build_host(target, build, programs_of(target), counter.seen)
        except BuildError as error:
            lines = str(error).splitlines()
            raise RuntimeBuildError(lines[0], tuple(lines[1:])) from error
        finally:
            progress.finish()
        keep(kept, programs, target, version, sources)
        if folder.exists():  # not whole
            folder.rename(Path(place) / "damaged")
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
