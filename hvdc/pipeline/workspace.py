"""The directory in which an artifact grows: ``NAME.hvdc.partial``, locked and journaled.

``NAME.hvdc.partial/artifact`` becomes ``NAME.hvdc`` by one rename when it is whole; beside it lies the journal. Files
appear under their final name only after they were written and synced; a line of the journal then says so. A build that
was stopped anywhere therefore leaves whole files, and at most one ``.tmp`` and one torn line, which are ignored.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shlex
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from hvdc.artifact.manifest import INDEX_NAME, MANIFEST_NAME
from hvdc.errors import UsageError
from hvdc.files import TEMPORARY, explaining, file_sha256, sync_folder, write_durably

JOURNAL = "journal.jsonl"
ARTIFACT, REPLACED = "artifact", "replaced"
OWN_ENTRIES = {JOURNAL, JOURNAL + TEMPORARY, ARTIFACT, REPLACED}
"""All that a ``.partial`` directory of ours can hold: one with anything else is somebody's, and is left alone."""


@dataclass(frozen=True)
class Done:
    """A finished data file: its hash, the value hashes of the canonical tensors in it, and the shares of energy that
    splitting a merged checkpoint left out of its linears."""

    path: str
    bytes: int
    sha256: str
    sources: dict[str, str]
    left_out_energy: dict[str, float]


def check_output(output: Path, *, force: bool, resume: bool) -> None:
    """Refuse an output that cannot be written, before any work. Raises UsageError."""
    if output.suffix != ".hvdc":
        named = output.name not in ("", "..", ".hvdc")
        better = output.with_suffix(".hvdc") if named else output / "NAME.hvdc"
        raise UsageError("an artifact's name ends in .hvdc", where=str(output), fix=f"write -o {better}")
    parent = output.parent
    if not parent.is_dir():
        fix = "choose another -o" if parent.exists() else f"mkdir -p {shlex.quote(str(parent))}"
        raise UsageError("the output's directory does not exist", where=str(parent), fix=fix)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError("the output's directory is not writable", where=str(parent), fix="choose another -o")
    partial = partial_path(output)
    _check_own(partial)
    if _is_there(output):
        if not (force or (resume and _replaces(partial))):
            raise UsageError("the output exists", where=str(output), fix="choose another -o, or --force to replace it")
        if not _is_artifact(output):
            raise UsageError(
                "the output exists and is not an artifact, so --force does not replace it",
                where=str(output),
                fix="choose another -o, or remove it yourself",
            )
    if partial.exists() and not (resume or force):
        os.close(lock_directory(partial))  # says so if that build is still running
        raise UsageError(
            "an unfinished build of this output is there",
            where=str(partial),
            fix="--resume to go on with it, or --force to start over",
        )


def partial_path(output: Path) -> Path:
    """``NAME.hvdc.partial`` beside the output."""
    return output.with_name(output.name + ".partial")


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _is_artifact(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and all((path / n).is_file() for n in (MANIFEST_NAME, INDEX_NAME))


def _check_own(partial: Path) -> None:
    """Refuse a ``.partial`` that no build of ours left there. Raises UsageError."""
    if _is_there(partial):
        ours = partial.is_dir() and not partial.is_symlink()
        if not ours or not {entry.name for entry in partial.iterdir()} <= OWN_ENTRIES:
            raise UsageError(
                "something that is not an unfinished build is in its place",
                where=str(partial),
                fix="choose another -o, or move it away",
            )


def _replaces(partial: Path) -> bool:
    """Was the unfinished build begun with leave to replace the output?"""
    journal = partial / JOURNAL
    lines = _whole_lines(journal)[0] if journal.is_file() else []
    return bool(lines and lines[0].get("replace"))


class Workspace:
    """An open, locked ``.partial`` directory. A context manager; leaving it releases the lock and keeps the files."""

    def __init__(self, output: Path, fingerprint: str, *, resume: bool, replace: bool = False) -> None:
        """Create or reopen the directory and lock it. ``replace``: an artifact in the place of the output may go.

        Raises UsageError: another process builds this output; the unfinished build was of something else.
        """
        self.output = output
        self.partial = partial_path(output)
        self.path = self.partial / ARTIFACT
        """Where the artifact's files are written."""
        self._journal = self.partial / JOURNAL
        self._replace = replace
        self._lock = lock_directory(self.partial)
        try:
            _check_own(self.partial)
            self._restore()
            self.done = self._take_over(fingerprint, resume)
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)

    def _restore(self) -> None:
        """Put back an artifact that was on its way out when a build was killed between the two renames of `publish`."""
        if (self.partial / REPLACED).is_dir() and not _is_there(self.output):
            (self.partial / REPLACED).rename(self.output)

    def _take_over(self, fingerprint: str, resume: bool) -> dict[str, Done]:
        if not resume or not self._journal.exists():
            _empty(self.partial)
            first = {"fingerprint": fingerprint, "replace": self._replace}
            write_durably(self._journal, (json.dumps(first) + "\n").encode())
            self.path.mkdir()
            return {}
        self.path.mkdir(exist_ok=True)
        lines, good = _whole_lines(self._journal)
        if not lines or lines[0].get("fingerprint") != fingerprint:
            raise UsageError(
                "the unfinished build was of another checkpoint or configuration, or by another version",
                where=str(self.partial),
                fix="--force to start over",
            )
        os.truncate(self._journal, good)  # a torn tail is cut off, so that new lines start cleanly
        self._replace = bool(lines[0].get("replace"))
        entries = [Done(**line) for line in lines[1:]]
        done = {entry.path: entry for entry in entries if _intact(self.path / entry.path, entry)}
        for file in [f for f in self.path.rglob("*") if not f.is_dir()]:
            if file.relative_to(self.path).as_posix() not in done:
                file.unlink()  # torn, or not yet noted in the journal when the build stopped
        return done

    def write(self, path: str, data: memoryview, sources: dict[str, str], left_out_energy: dict[str, float]) -> Done:
        """Write and sync a data file, then note it in the journal. Raises HvdcError when the disk refuses."""
        done = Done(path, len(data), hashlib.sha256(data).hexdigest(), sources, left_out_energy)
        with explaining(self.path / path):
            (self.path / path).parent.mkdir(exist_ok=True)
        write_durably(self.path / path, data)
        line = (json.dumps(asdict(done)) + "\n").encode()
        with explaining(self._journal), self._journal.open("ab", buffering=0) as journal:
            if journal.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(journal.fileno())
        return done

    def write_plain(self, name: str, data: bytes, *, executable: bool = False) -> None:
        """Write and sync a file that no journal needs to know: ``manifest.json``, ``index.bin``, the runtime's."""
        (self.path / name).parent.mkdir(exist_ok=True)
        write_durably(self.path / name, data, executable=executable)

    def publish(self) -> None:
        """Rename the artifact to its final name, replacing one that may go, and remove the rest of the directory.

        Raises UsageError for something that appeared there in the meantime and may not go.
        """
        for directory in [self.path, *(d for d in self.path.iterdir() if d.is_dir())]:
            sync_folder(directory)
        if _is_there(self.output):
            if not (self._replace and _is_artifact(self.output)):
                raise UsageError(
                    "the output has appeared while it was built, and is not replaced",
                    where=str(self.output),
                    fix="move it away and run the same command with --resume",
                )
            self.output.rename(self.partial / REPLACED)
        self.path.rename(self.output)
        sync_folder(self.output.parent)
        shutil.rmtree(self.partial)

    def discard(self) -> None:
        """Remove the directory: nothing in it is worth resuming."""
        shutil.rmtree(self.partial)


def lock_directory(path: Path) -> int:
    """Create the directory if need be and hold an exclusive lock on it; the lock dies with the process.

    Raises UsageError when another process holds it.
    """
    while True:
        with explaining(path):
            path.mkdir(exist_ok=True)
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError as error:
            os.close(descriptor)
            raise UsageError(
                "another hvdc is writing this output now", where=str(path), fix="wait for it, or choose another -o"
            ) from error
        os.close(descriptor)  # the other process published between mkdir and flock: this is no longer our directory


def _empty(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _whole_lines(journal: Path) -> tuple[list[dict[str, Any]], int]:
    """Lines up to the first torn one, and how many bytes they take."""
    lines: list[dict[str, Any]] = []
    good = 0
    for line in journal.read_bytes().splitlines(keepends=True):
        try:
            entry = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            break
        if not isinstance(entry, dict) or (lines and entry.keys() != Done.__dataclass_fields__.keys()):
            break
        lines.append(entry)
        good += len(line)
    return lines, good


def _intact(path: Path, entry: Done) -> bool:
    return path.is_file() and path.stat().st_size == entry.bytes and file_sha256(path) == entry.sha256
