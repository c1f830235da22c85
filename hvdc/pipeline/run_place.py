"""The folder that `hvdc run` fills: what lies where, who may write it, and whether an unfinished run can go on.

``run.json`` says what is made (`Identity`), then where the cut is, at the end how it went. A folder whose run.json
names the same identity can be resumed; nothing in it is of anything else.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hvdc.errors import UsageError
from hvdc.pipeline.stream_file import StreamVideo
from hvdc.pipeline.workspace import TEMPORARY, explaining, lock_directory, write_durably

RUN_NAME = "run.json"
FORMAT = 1
CLIP_FORMATS = ("mp4", "gif")


@dataclass(frozen=True)
class Identity:
    """What decides every value of a run. ``cut``: as asked for; None is auto. ``rates``: seconds, of a table."""

    artifact: str
    prompts: str
    videos: tuple[StreamVideo, ...]
    mode: str
    cut: int | None
    rates: tuple[float, float, float] | None

    def as_json(self) -> dict[str, Any]:
        held: dict[str, Any] = json.loads(json.dumps(asdict(self)))  # tuples become lists, as they are read back
        return held | {"format": FORMAT}


@dataclass(frozen=True)
class Place:
    """Names inside the output folder."""

    root: Path

    @property
    def stream(self) -> Path:
        return self.root / "stream"

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def strips(self) -> Path:
        return self.root / "strips"

    @property
    def latents(self) -> Path:
        return self.root / "latents.safetensors"

    @property
    def sheet(self) -> Path:
        return self.root / "sheet.png"

    def result(self, video: int) -> Path:
        return self.results / f"video-{video:06d}.safetensors"

    def clip(self, video: int, suffix: str) -> Path:
        return self.root / f"video-{video:06d}.{suffix}"

    def strip(self, video: int) -> Path:
        return self.strips / f"video-{video:06d}.png"

    def _is_own(self, entry: Path) -> bool:
        name = entry.name.removesuffix(TEMPORARY)
        folders = {self.stream.name, self.results.name, self.strips.name}
        if entry.is_dir():
            return not entry.is_symlink() and name in folders
        clip = name.startswith("video-") and name.rpartition(".")[2] in CLIP_FORMATS
        return clip or name in {RUN_NAME, self.latents.name, self.sheet.name}


@contextlib.contextmanager
def opened_place(root: Path, identity: Identity, *, resume: bool, force: bool) -> Iterator[tuple[Place, Run]]:
    """The folder, locked, with all its own folders. Raises UsageError for one that is not new, or not of this run."""
    place = Place(root)
    if not root.parent.is_dir():
        fix = f"mkdir -p {shlex.quote(str(root.parent))}"
        raise UsageError("the output's directory does not exist", where=str(root.parent), fix=fix)
    if root.exists() and not root.is_dir():
        raise UsageError("the output is a file, and a run fills a folder", where=str(root), fix="choose another -o")
    lock = lock_directory(root)
    try:
        run = _begun(place, identity, resume=resume, force=force)
        for folder in (place.stream, place.results, place.strips):
            with explaining(folder):
                folder.mkdir(exist_ok=True)
        yield place, run
    finally:
        os.close(lock)


class Run:
    """``run.json``. ``cut`` and ``cut_source``: where a run that is resumed has put its cut; None before that."""

    def __init__(self, path: Path, identity: Identity, held: dict[str, Any] | None = None) -> None:
        self._path = path
        self._facts: dict[str, Any] = held or {"run": identity.as_json()}
        if held is None:
            self._write()

    @property
    def cut(self) -> int | None:
        cut = self._facts.get("cut")
        return cut if isinstance(cut, int) else None

    @property
    def cut_source(self) -> str | None:
        source = self._facts.get("cut_source")
        return source if isinstance(source, str) else None

    def note(self, **facts: Any) -> None:
        """Keep facts, durably."""
        self._facts |= facts
        self._write()

    def _write(self) -> None:
        write_durably(self._path, (json.dumps(self._facts, indent=1) + "\n").encode())


def _begun(place: Place, identity: Identity, *, resume: bool, force: bool) -> Run:
    path = place.root / RUN_NAME
    entries = list(place.root.iterdir())
    if strange := sorted(entry.name for entry in entries if not place._is_own(entry)):
        raise UsageError(
            "the output is a folder with other things in it", where=str(place.root), found=", ".join(strange[:5]),
            fix="choose another -o",
        )  # fmt: skip
    if entries and not (resume or force):
        raise UsageError(
            "the output is not empty", where=str(place.root),
            fix="--resume to go on with the run that is there, --force to start over, or choose another -o",
        )  # fmt: skip
    held = _read(path) if resume else None
    if held is None:
        for entry in entries:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        return Run(path, identity)
    if held.get("run") != identity.as_json():
        raise UsageError(
            "the run that is there is of something else: another artifact, prompts, seeds, mode, cut or rates",
            where=str(path), fix="give what it was started with, --force to start over, or choose another -o",
        )  # fmt: skip
    return Run(path, identity, held)


def _read(path: Path) -> dict[str, Any] | None:
    """None where a run never began."""
    try:
        held = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            "the state of the run that is there cannot be read", where=str(path), found=str(error),
            fix="--force to start over, or choose another -o",
        ) from error  # fmt: skip
    return held if isinstance(held, dict) else {}
