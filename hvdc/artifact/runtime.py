"""The folder ``runtime/`` of an artifact: the runtime's sources, the programs that were built of them, and an answer to
try a device with.

It is no part of the model: neither the manifest nor ``model_sha256`` knows it, engines never read it, and it can be
exchanged for that of another version. Its own list, ``runtime.json``, says what is in it, with hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from hvdc.artifact.answer import read_answers
from hvdc.artifact.answer_records import ANSWER_NAME
from hvdc.artifact.codes import Code
from hvdc.artifact.directory import Directory
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.fields import Bytes, Model, Sha256
from hvdc.artifact.index_read import parse_index
from hvdc.artifact.manifest import INDEX_NAME

FOLDER, LIST_NAME = "runtime", "runtime.json"
SOURCES_NAME = "sources.tar"
MAX_LIST_BYTES = 1 << 20

MAKE_ANEW = "hvdc runtime build --into ARTIFACT makes the folder anew"

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class RuntimeFile(Model):
    """One file of the folder."""

    name: FileName
    bytes: Bytes
    sha256: Sha256


class Build(Model):
    """Programs for one kind of machine, built of the sources beside them. ``machine``: as Python's `platform.machine`
    names it, such as aarch64. ``compiler``: its own first line."""

    target: str
    machine: str
    compiler: str
    programs: tuple[RuntimeFile, ...]


class Runtime(Model):
    """``runtime.json``. ``sources_sha256`` is of what the archive holds, not of the archive. ``answer``: format 1 has
    none."""

    format: Literal["hvdc-runtime-1", "hvdc-runtime-2"] = "hvdc-runtime-2"
    hvdc: str
    sources_sha256: Sha256
    sources: RuntimeFile
    builds: tuple[Build, ...] = ()
    answer: RuntimeFile | None = None

    def files(self) -> tuple[RuntimeFile, ...]:
        """All but the list itself."""
        programs = (program for build in self.builds for program in build.programs)
        return (self.sources, *programs, *(() if self.answer is None else (self.answer,)))

    def text(self) -> str:
        """One line for people."""
        built = "; ".join(f"{b.target} ({', '.join(p.name for p in b.programs)})" for b in self.builds)
        answer = "an answer to try devices with" if self.answer is not None else "no answer to try devices with"
        return f"sources of hvdc {self.hvdc}; programs: {built or 'none'}; {answer}"


def read_runtime(artifact: Path) -> Runtime | None:
    """The list of an artifact's runtime, None without one. Raises ArtifactError DATA_RUNTIME, IO."""
    directory = Directory(artifact)
    try:
        return _read(directory) if f"{FOLDER}/" in set(directory.entries()) else None
    finally:
        directory.close()


def runtime_facts(artifact: Path) -> dict[str, Any] | None:
    """`Runtime` as JSON, or ``{"fault": …}`` where there is none to read; None without one."""
    try:
        runtime = read_runtime(artifact)
    except ArtifactError as error:
        return {"fault": str(error)}
    return None if runtime is None else runtime.model_dump(mode="json")


def runtime_line(artifact: Path) -> str:
    """What an artifact's ``runtime/`` holds, for people; what is wrong with it is said, and no error."""
    try:
        runtime = read_runtime(artifact)
    except ArtifactError as error:
        return f"unusable: {str(error).splitlines()[0]}; see hvdc validate"
    return "none" if runtime is None else runtime.text()


def runtime_findings(artifact: Path) -> list[ArtifactError]:
    """Every fault of the folder; ``[]`` where there is none, or nothing wrong with it."""
    directory = Directory(artifact)
    try:
        return list(_findings(directory))
    except ArtifactError as error:
        return [error]
    finally:
        directory.close()


def _findings(directory: Directory) -> Iterator[ArtifactError]:
    entries = [entry for entry in directory.entries() if entry.startswith(f"{FOLDER}/")]
    if not entries:
        return
    runtime = _read(directory)
    names = [file.name for file in runtime.files()]
    for name in sorted({name for name in [*names, LIST_NAME] if [*names, LIST_NAME].count(name) > 1}):
        yield _fault(directory, LIST_NAME, "each file once", name)
    known = {f"{FOLDER}/", f"{FOLDER}/{LIST_NAME}", *(f"{FOLDER}/{name}" for name in names)}
    for entry in entries:
        if entry not in known:
            name, expected = entry.removeprefix(f"{FOLDER}/"), f"nothing that {LIST_NAME} does not name"
            yield _fault(directory, name, expected, entry, "move it away")
    for file in runtime.files():
        try:
            data = _bytes(directory, file.name, file.bytes)
        except ArtifactError as error:
            yield error
            continue
        found = hashlib.sha256(data).hexdigest()
        if found != file.sha256:
            yield _fault(directory, file.name, f"SHA-256 {file.sha256}", found)
        elif file is runtime.answer:
            try:
                read_answers(data, parse_index(_index(directory)), directory.where(f"{FOLDER}/{file.name}"))
            except ArtifactError as error:
                yield error


def _read(directory: Directory) -> Runtime:
    data = _bytes(directory, LIST_NAME, None)
    try:
        runtime = Runtime.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _fault(directory, LIST_NAME, "a list as hvdc writes it", f"{place}: {first['msg']}") from error
    if runtime.answer is not None and runtime.answer.name != ANSWER_NAME:
        raise _fault(directory, LIST_NAME, f"an answer named {ANSWER_NAME}", runtime.answer.name)
    return runtime


def read_answer(artifact: Path) -> bytes | None:
    """The bytes of ``answer.bin`` as its list has them, unread; None without one. Raises ArtifactError."""
    directory = Directory(artifact)
    try:
        runtime = _read(directory) if f"{FOLDER}/" in set(directory.entries()) else None
        answer = None if runtime is None else runtime.answer
        return None if answer is None else _bytes(directory, answer.name, answer.bytes)
    finally:
        directory.close()


def _index(directory: Directory) -> bytes:
    fd, _ = directory.open(INDEX_NAME)
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
        return file.read()


def _bytes(directory: Directory, name: str, size: int | None) -> bytes:
    fd, found = directory.open(f"{FOLDER}/{name}")
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
        if size is None and found > MAX_LIST_BYTES:
            raise _fault(directory, name, f"at most {MAX_LIST_BYTES} bytes", str(found))
        if size is not None and found != size:
            raise _fault(directory, name, f"{size} bytes", str(found))
        return file.read()


def _fault(directory: Directory, name: str, expected: str, found: str, fix: str = MAKE_ANEW) -> ArtifactError:
    return ArtifactError(
        Code.DATA_RUNTIME,
        where=directory.where(f"{FOLDER}/{name}"),
        expected=expected,
        found=found,
        fix=fix,
    )
