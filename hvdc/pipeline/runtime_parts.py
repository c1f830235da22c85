"""What of the runtime goes into an artifact: its sources, whatever was built of them on this machine, and an answer to
try a device with."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from device_runtime.sources import source_files, sources_sha256, sources_tar
from hvdc import __version__
from hvdc.artifact.answer_records import ANSWER_NAME
from hvdc.artifact.reader import Artifact, open_artifact
from hvdc.artifact.runtime import FOLDER, LIST_NAME, SOURCES_NAME, Build, RuntimeFile
from hvdc.artifact.runtime import Runtime as RuntimeList
from hvdc.errors import UsageError
from hvdc.files import TEMPORARY, explaining, write_durably
from hvdc.pipeline.runtime_build import TARGETS, kept_runtime
from hvdc.pipeline.runtime_kept import HEXAGON, Runtime, programs_of
from hvdc.pipeline.workspace import lock_directory
from hvdc.progress import Progress

CARRIED = ("android-arm64", HEXAGON, "aarch64-linux", "host")
"""Targets whose programs travel with an artifact, if the cache holds them: not those with sanitizers."""

NEW, OLD = "new", "old"
_PROGRAM = re.compile(rf"(?:{'|'.join(map(re.escape, TARGETS))})-hvdc_[a-z_]+", re.ASCII)


_LIBRARIES = {f"{HEXAGON}-{name}" for name in programs_of(HEXAGON)}


def is_program(name: str) -> bool:
    """Whether a file of the folder ``runtime/`` is executable."""
    return _PROGRAM.fullmatch(name) is not None


def kept_runtimes() -> list[Runtime]:
    """Of `CARRIED`, what was built on this machine before, of these very sources."""
    return [kept for target in CARRIED if (kept := kept_runtime(target)) is not None]


def runtime_files(builds: Iterable[Runtime], answer: bytes | None) -> dict[str, bytes]:
    """The files of the folder ``runtime/`` by name; the list of all comes last. ``answer``: of
    `answer_for`."""
    sources = source_files()
    files, entries = {SOURCES_NAME: sources_tar(sources)}, []
    for build in builds:
        programs = {f"{build.target}-{name}": build.program(name) for name in build.programs}
        files |= programs
        listed = tuple(_entry(name, data) for name, data in programs.items())
        entries.append(Build(target=build.target, machine=build.machine, compiler=build.compiler, programs=listed))
    if answer is not None:
        files[ANSWER_NAME] = answer
    runtime = RuntimeList(
        hvdc=__version__, sources_sha256=sources_sha256(sources), builds=tuple(entries),
        sources=_entry(SOURCES_NAME, files[SOURCES_NAME]),
        answer=None if answer is None else _entry(ANSWER_NAME, answer),
    )  # fmt: skip
    return files | {LIST_NAME: (runtime.model_dump_json(indent=2) + "\n").encode()}


def answer_for(artifact: Artifact, progress: Progress) -> tuple[bytes | None, str]:
    """``answer.bin`` for an artifact, or None and why there is none. Imports PyTorch, and does without."""
    try:
        from hvdc.pipeline.answer import answer_of
    except ImportError as error:
        return None, f"no answer to try devices with was stored: PyTorch cannot be imported ({error})"
    return answer_of(artifact, progress)


def put_runtime(artifact: Path, builds: Iterable[Runtime], progress: Progress) -> str:
    """Exchange the runtime of an artifact, whole or not at all; its answer is computed anew.

    Returns why it has none; ``""`` if it has. Raises ArtifactError for what is no artifact; UsageError when another
    process does the same, or where something lies that no hvdc has put there; HvdcError.
    """
    artifact = artifact.resolve()  # so that it has a name, and the exchange happens beside it
    beside = artifact.with_name(f".{artifact.name}.{FOLDER}")
    open_artifact(artifact).close()
    lock = lock_directory(artifact)
    try:
        place = artifact / FOLDER
        _require_own(place)
        _recover(place, beside)
        with open_artifact(artifact) as opened:
            answer, why_not = answer_for(opened, progress)
        files = runtime_files(builds, answer)
        with explaining(artifact):
            (beside / NEW).mkdir(parents=True)
            try:
                for name, data in files.items():
                    write_durably(beside / NEW / name, data, executable=is_program(name))
                if place.exists():
                    place.rename(beside / OLD)
                (beside / NEW).rename(place)
            finally:
                _recover(place, beside)
    finally:
        os.close(lock)
    return why_not


def _recover(place: Path, beside: Path) -> None:
    """Put a runtime back that was on its way out, and remove the rest of an exchange, done or not."""
    if not beside.exists() and not beside.is_symlink():
        return
    if beside.is_symlink() or not {entry.name for entry in beside.iterdir()} <= {NEW, OLD}:
        raise _strange(beside)
    _require_own(beside / NEW)
    _require_own(beside / OLD)
    with explaining(beside):
        if (beside / OLD).exists() and not place.exists():
            (beside / OLD).rename(place)
        shutil.rmtree(beside)


def _require_own(folder: Path) -> None:
    """That the folder holds nothing but what hvdc writes there, if it exists. Raises UsageError."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise _strange(folder)
    for entry in folder.iterdir() if folder.exists() else ():
        name = entry.name.removesuffix(TEMPORARY)
        ours = name in (LIST_NAME, SOURCES_NAME, ANSWER_NAME) or name in _LIBRARIES or is_program(name)
        if not ours or entry.is_dir():
            raise _strange(entry)


def _strange(path: Path) -> UsageError:
    return UsageError(
        "something that hvdc has not put there is in the way of the runtime", where=str(path), fix="move it away"
    )


def _entry(name: str, data: bytes) -> RuntimeFile:
    return RuntimeFile(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
