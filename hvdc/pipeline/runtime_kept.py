"""Builds of the device runtime in the user's cache: what each was built of and by what, and whether it is still that.

A folder ``TARGET-KEY`` holds a build's programs and ``build.json``; it appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from device_runtime.build import SKELS
from hvdc.errors import HvdcError
from hvdc.files import explaining
from hvdc.pipeline.cache import cache_folder

RUNNER = "hvdc_runner"
PROGRAMS = (RUNNER, "hvdc_bench", "hvdc_check", "hvdc_dump", "hvdc_probe", "hvdc_selftest")
"""What people use; the others are for tests."""

HEXAGON = "hexagon"
"""The target whose programs are libraries: what a phone's DSP loads."""

DESCRIPTION_NAME = "build.json"


@dataclass(frozen=True)
class Runtime:
    """Programs of the runtime. ``machine``: as `platform.machine` names what they run on. ``sha256``: of each program
    when it was built. ``built``: now, and not found in the cache."""

    target: str
    folder: Path
    compiler: str
    machine: str
    sha256: dict[str, str]
    built: bool

    @property
    def programs(self) -> tuple[str, ...]:
        return tuple(self.sha256)

    @property
    def runner(self) -> Path:
        return self.folder / RUNNER

    def program(self, name: str) -> bytes:
        """A program's bytes, as they were built. Raises HvdcError."""
        with explaining(self.folder / name):
            data = (self.folder / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != self.sha256[name]:
            raise HvdcError(
                "a cached program is not what was built", where=str(self.folder / name),
                fix="run `hvdc runtime build`, which builds it again",
            )  # fmt: skip
        return data

    def is_whole(self) -> bool:
        """Whether every program is there as it was built."""
        try:
            return all(self.program(name) for name in self.programs)
        except HvdcError:
            return False


@dataclass(frozen=True)
class _Description:
    """``build.json``."""

    target: str
    compiler: str
    machine: str
    sources_sha256: str
    sha256: dict[str, str]


def machine_of(target: str) -> str:
    """What the programs of a target run on."""
    if target == HEXAGON:
        return "hexagon"
    return platform.machine() if target.startswith("host") else "aarch64"


def programs_of(target: str) -> tuple[str, ...]:
    """What a build of a target keeps."""
    return SKELS if target == HEXAGON else PROGRAMS


def folder_of(target: str, version: str, sources: str) -> Path:
    """Where a build of these sources by the compiler ``version`` is kept."""
    identity = f"{target}\n{version}\n{machine_of(target)}\n{sources}\n"
    return cache_folder("runtimes") / f"{target}-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"


def keep(folder: Path, programs: dict[str, Path], target: str, version: str, sources: str) -> None:
    """Copy programs into a folder, with their description. Raises OSError."""
    digests = {}
    for name, path in programs.items():
        shutil.copy2(path, folder / name)
        (folder / name).chmod(0o755)
        digests[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    described = _Description(target, version, machine_of(target), sources, digests)
    (folder / DESCRIPTION_NAME).write_text(json.dumps(asdict(described), indent=1) + "\n", "utf-8")


def kept_in(folder: Path, target: str, sources: str) -> Runtime | None:
    """A build that is whole, of this target and of these sources."""
    try:
        held = _Description(**json.loads((folder / DESCRIPTION_NAME).read_text("utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    fits = (held.target, held.machine, held.sources_sha256) == (target, machine_of(target), sources)
    programs = programs_of(target)
    if not fits or not isinstance(held.sha256, dict) or set(held.sha256) != set(programs):
        return None
    digests = {name: held.sha256[name] for name in programs}
    runtime = Runtime(target, folder, held.compiler, held.machine, digests, built=False)
    return runtime if runtime.is_whole() else None


def has_builds(target: str) -> bool:
    """Whether the cache may hold a build of a target, of whatever sources."""
    return any(path.is_dir() for path in cache_folder("runtimes").glob(f"{target}-*"))


def kept_by_any_compiler(target: str, sources: str) -> Runtime | None:
    """A build of these sources, whatever built it."""
    for folder in sorted(cache_folder("runtimes").glob(f"{target}-*")):
        if (kept := kept_in(folder, target, sources)) is not None:
            return kept
    return None
