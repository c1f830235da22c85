"""The folder that `hvdc run` fills: what lies where, who may write it, and whether an unfinished run can go on.

``run.json`` says what is made (`Identity`), then where the cut is, at the end how it went. A folder whose run.json
names the same identity can be resumed; nothing in it is of anything else (`run_entries`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hvdc.errors import UsageError
from hvdc.files import TEMPORARY, explaining, write_durably
from hvdc.pipeline.run_entries import (
    LATENTS_NAME,
    REPLACED,
    RESULTS,
    RUN_NAME,
    SHEET_NAME,
    STREAM,
    STRIPS,
    let_go,
    move_aside,
    put_back,
    read_run,
    strange_entries,
)
from hvdc.pipeline.run_policy import RunPolicy
from hvdc.pipeline.stream_file import StreamVideo
from hvdc.pipeline.workspace import lock_directory

FORMAT = 1


@dataclass(frozen=True)
class Identity:
    """What decides every value of a run. ``cut`` and ``gpu_share``: as asked for; None is auto. ``rates``: seconds, of
    a table. ``device``: the kind of device that runs it, None for this machine. ``policy``: None is one cut for all."""

    artifact: str
    prompts: str
    videos: tuple[StreamVideo, ...]
    mode: str
    cut: int | None
    gpu_share: float | None
    npu_sums: str
    rates: tuple[float, float, float] | None
    device: str | None = None
    policy: RunPolicy | None = None

    def as_json(self) -> dict[str, Any]:
        held: dict[str, Any] = json.loads(json.dumps(asdict(self)))  # tuples become lists, as they are read back
        for name in ("device", "policy"):  # runs that were begun before there were others go on
            if held[name] is None:
                del held[name]
        return held | {"format": FORMAT}


@dataclass(frozen=True)
class Place:
    """Names inside the output folder."""

    root: Path

    @property
    def stream(self) -> Path:
        return self.root / STREAM

    @property
    def results(self) -> Path:
        return self.root / RESULTS

    @property
    def strips(self) -> Path:
        return self.root / STRIPS

    @property
    def latents(self) -> Path:
        return self.root / LATENTS_NAME

    @property
    def sheet(self) -> Path:
        return self.root / SHEET_NAME

    def result(self, video: int) -> Path:
        return self.results / f"video-{video:06d}.safetensors"

    def frames(self, video: int) -> Path:
        """Where the runtime decodes."""
        return self.results / f"video-{video:06d}.ppm"

    def clip(self, video: int, suffix: str) -> Path:
        return self.root / f"video-{video:06d}.{suffix}"

    def strip(self, video: int) -> Path:
        return self.strips / f"video-{video:06d}.png"


@contextlib.contextmanager
def opened_place(root: Path, identity: Identity, *, resume: bool, force: bool) -> Iterator[tuple[Place, Run]]:
    """The folder, locked, with all its own folders. Raises UsageError for one that is not new, or not of this run."""
    if root.is_symlink() and not root.exists():
        raise UsageError("the output is a link to nothing", where=str(root), fix="remove it, or choose another -o")
    root = root.resolve() if root.is_symlink() else root
    place = Place(root)
    if not root.parent.is_dir():
        fix = f"mkdir -p {shlex.quote(str(root.parent))}"
        raise UsageError("the output's directory does not exist", where=str(root.parent), fix=fix)
    if root.exists() and not root.is_dir():
        raise UsageError("the output is a file, and a run fills a folder", where=str(root), fix="choose another -o")
    lock = lock_directory(root)
    try:
        run = _begun(place, identity, resume=resume, force=force)
        try:
            for folder in (place.stream, place.results, place.strips):
                with explaining(folder):
                    folder.mkdir(exist_ok=True)
            yield place, run
        finally:
            put_back(root)  # does nothing once the run has begun
    finally:
        os.close(lock)


class Run:
    """``run.json``. ``cut``, ``gpu_share`` and ``cut_source``: where a run that is resumed has put its cut, or what
    share of columns it gave the GPU; None before that."""

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
    def gpu_share(self) -> float | None:
        share = self._facts.get("gpu_share")
        return share if isinstance(share, float) else None

    @property
    def cut_source(self) -> str | None:
        source = self._facts.get("cut_source")
        return source if isinstance(source, str) else None

    @property
    def report(self) -> dict[str, Any]:
        """Of the runtime, when it last ended; {} before that."""
        return self._table("report")

    @property
    def gpu(self) -> str:
        return str(self._facts.get("gpu") or "")

    def video(self, video: int) -> dict[str, Any]:
        """The runtime's record of a video that is finished, of whichever start made it; {} for none."""
        return _dict(self._table("videos").get(str(video)))

    def note_videos(self, records: Iterable[dict[str, Any]]) -> None:
        """Keep records of videos that are finished; of one that was only decoded, what computed it stays. What is held
        already is not written again."""
        held = self._table("videos")
        new = held | {str(record["video"]): self._with_earlier(record) for record in records}
        if new != held:
            self.note(videos=new)

    def _with_earlier(self, record: dict[str, Any]) -> dict[str, Any]:
        earlier = self.video(record["video"])
        if record.get("kept") and earlier.keys() == record.keys():
            return earlier | {"decode_s": record["decode_s"]}
        return record

    def clip(self, name: str) -> dict[str, Any]:
        """What a clip was made from, and the SHA-256 of what was written (`run_clips`); {} for none. A copy."""
        return dict(_dict(self._table("clips").get(name)))

    def note_clip(self, name: str, made: dict[str, Any]) -> None:
        self.note(clips=self._table("clips") | {name: made})

    def _table(self, name: str) -> dict[str, Any]:
        return _dict(self._facts.get(name))

    def begin(self) -> None:
        """The stream has begun: an old run that this one replaces is let go. Raises HvdcError."""
        let_go(self._path.parent)

    @property
    def has_begun(self) -> bool:
        """Whether anything of it is kept when it ends now."""
        return not (self._path.parent / REPLACED).exists()

    def note(self, **facts: Any) -> None:
        """Keep facts, durably."""
        self._facts |= facts
        self._write()

    def _write(self) -> None:
        write_durably(self._path, (json.dumps(self._facts, indent=1) + "\n").encode())


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _begun(place: Place, identity: Identity, *, resume: bool, force: bool) -> Run:
    root, path = place.root, place.root / RUN_NAME
    with explaining(root):
        strange = strange_entries(root)
    if strange:
        raise UsageError(
            "the output is a folder with other things in it", where=str(root), found=", ".join(strange[:5]),
            fix="choose another -o",
        )  # fmt: skip
    put_back(root)  # of a process that died before its run began
    entries = [entry for entry in root.iterdir() if not entry.name.endswith(TEMPORARY)]
    if entries and not (resume or force):
        raise UsageError(
            "the output is not empty", where=str(root),
            fix="--resume to go on with the run that is there, --force to start over, or choose another -o",
        )  # fmt: skip
    held = read_run(path)
    if held is None and entries:
        raise UsageError(
            "there is no run to go on with or to replace: the output lacks its state", where=str(path),
            fix="choose another -o, or remove the folder yourself",
        )  # fmt: skip
    if held is None or force:
        try:
            move_aside(root)
            return Run(path, identity)
        except BaseException:
            put_back(root)
            raise
    if held.get("run") != identity.as_json():
        raise UsageError(
            "the run that is there is of something else: another artifact, prompts, seeds, mode, cut, policy, share, "
            "sums, rates or device",
            where=str(path), fix="give what it was started with, --force to start over, or choose another -o",
        )  # fmt: skip
    return Run(path, identity, held)
