"""What of the runtime goes into an artifact: its sources, and whatever was built of them on this machine."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from device_runtime.sources import source_files, sources_sha256, sources_tar
from hvdc import __version__
from hvdc.artifact.reader import open_artifact
from hvdc.artifact.runtime import FOLDER, LIST_NAME, SOURCES_NAME, Build, Runtime, RuntimeFile
from hvdc.pipeline import runtime_build
from hvdc.pipeline.workspace import explaining, write_durably

CARRIED = ("android-arm64", "aarch64-linux", "host")
"""Targets whose programs travel with an artifact, if the cache holds them: not those with sanitizers."""


def kept_runtimes() -> list[runtime_build.Runtime]:
    """Of `CARRIED`, what was built on this machine before, of these very sources."""
    return [kept for target in CARRIED if (kept := runtime_build.kept_runtime(target)) is not None]


def runtime_files(builds: Iterable[runtime_build.Runtime]) -> dict[str, bytes]:
    """The files of the folder ``runtime/`` by name; the list of all comes last."""
    sources = source_files()
    files, entries = {SOURCES_NAME: sources_tar(sources)}, []
    for build in builds:
        programs = {f"{build.target}-{name}": (build.folder / name).read_bytes() for name in build.programs}
        files |= programs
        listed = tuple(_entry(name, data) for name, data in programs.items())
        entries.append(Build(target=build.target, compiler=build.compiler, programs=listed))
    runtime = Runtime(
        hvdc=__version__, sources_sha256=sources_sha256(sources), builds=tuple(entries),
        sources=_entry(SOURCES_NAME, files[SOURCES_NAME]),
    )  # fmt: skip
    return files | {LIST_NAME: (runtime.model_dump_json(indent=2) + "\n").encode()}


def put_runtime(artifact: Path, builds: Iterable[runtime_build.Runtime]) -> None:
    """Exchange the runtime of an artifact, whole or not at all. Raises ArtifactError for what is none, HvdcError."""
    open_artifact(artifact).close()
    place, beside = artifact / FOLDER, artifact.with_name(f".{artifact.name}.{FOLDER}")
    with explaining(artifact):
        shutil.rmtree(beside, ignore_errors=True)
        try:
            for name, data in runtime_files(builds).items():
                (beside / "new").mkdir(parents=True, exist_ok=True)
                write_durably(beside / "new" / name, data)
            if place.exists():
                place.rename(beside / "old")
            (beside / "new").rename(place)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _entry(name: str, data: bytes) -> RuntimeFile:
    return RuntimeFile(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
