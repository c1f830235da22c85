"""What a run's folder can hold, by exact names, and how a new run takes the place of an old one there.

The old run's entries move into ``.replaced`` until the new run's stream has begun. Renames of whole folders say how far
that is, so that a process can die anywhere: ``.replacing`` holds entries on their way out or back, and nothing new is
there; ``.replaced`` holds all of the old run, and beside it is what the new one wrote; ``.discarded`` is being removed.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from hvdc.artifact.stream_records import STREAM_NAME
from hvdc.errors import UsageError
from hvdc.files import TEMPORARY, explaining
from hvdc.pipeline.run_trace import TRACE_NAME, is_trace
from hvdc.pipeline.stream_file import DESCRIPTION_NAME

RUN_NAME = "run.json"
LATENTS_NAME, SHEET_NAME = "latents.safetensors", "sheet.png"
STREAM, RESULTS, STRIPS = "stream", "results", "strips"
CLIP_FORMATS = ("mp4", "gif")
REPLACING, REPLACED, DISCARDED = ".replacing", ".replaced", ".discarded"
VIDEO = r"video-\d{6}"

_FILES = re.compile(
    rf"(?:{VIDEO}\.(?:{'|'.join(CLIP_FORMATS)})|{'|'.join(map(re.escape, (RUN_NAME, LATENTS_NAME, SHEET_NAME)))})"
    rf"(?:{re.escape(TEMPORARY)})?",
    re.ASCII,
)
_INSIDE = {
    STREAM: re.compile(rf"(?:{re.escape(STREAM_NAME)}|{re.escape(DESCRIPTION_NAME)})(?:{re.escape(TEMPORARY)})?"),
    RESULTS: re.compile(rf"{VIDEO}\.(?:safetensors|ppm)|\.{VIDEO}\.(?:safetensors|ppm)\.partial", re.ASCII),
    STRIPS: re.compile(rf"{VIDEO}\.png(?:{re.escape(TEMPORARY)})?", re.ASCII),
}
"""Folder -> what a run writes into it, unfinished files included."""


def strange_entries(root: Path) -> list[str]:
    """Paths below ``root``, sorted, that no run has written there; [] for a folder that is a run's, or empty."""
    return sorted(_strange(root, "", outermost=True))


def _strange(folder: Path, before: str, *, outermost: bool) -> list[str]:
    found = []
    for entry in folder.iterdir():
        name, shown = entry.name, before + entry.name
        if entry.is_symlink():
            found.append(shown)
        elif entry.is_dir() and name in _INSIDE:
            found += [f"{shown}/{e.name}" for e in entry.iterdir() if not _is_file_like(e, _INSIDE[name])]
        elif entry.is_dir() and outermost and name in (REPLACING, REPLACED, DISCARDED):
            found += _strange(entry, f"{shown}/", outermost=False)
        elif not (_is_file_like(entry, _FILES) or (name == TRACE_NAME and is_trace(entry))):
            found.append(shown)
    return found


def _is_file_like(entry: Path, names: re.Pattern[str]) -> bool:
    return names.fullmatch(entry.name) is not None and entry.is_file() and not entry.is_symlink()


def is_run(held: Any) -> bool:
    """Whether this is what some version of `hvdc run` keeps in its run.json."""
    run = held.get("run") if isinstance(held, dict) else None
    return (
        isinstance(run, dict) and isinstance(run.get("format"), int) and {"artifact", "prompts", "videos"} <= set(run)
    )


def read_run(path: Path) -> dict[str, Any] | None:
    """A run.json, None where there is none. Raises UsageError."""
    try:
        held = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error
    if not is_run(held):
        raise _unreadable(path, "it is not what a run keeps there")
    whole: dict[str, Any] = held
    return whole


def _unreadable(path: Path, found: str) -> UsageError:
    return UsageError(
        "the state of the run that is there cannot be read", where=str(path), found=found,
        fix="choose another -o, or remove the folder yourself",
    )  # fmt: skip


def move_aside(root: Path) -> None:
    """All entries, of which none is strange, wait in ``.replaced``. Raises HvdcError."""
    with explaining(root):
        (root / REPLACING).mkdir()
        for entry in _entries(root):
            entry.rename(root / REPLACING / entry.name)
        (root / REPLACING).rename(root / REPLACED)


def put_back(root: Path) -> None:
    """Undo `move_aside`, and remove what was written since, unless the old run was let go. Raises HvdcError."""
    with explaining(root):
        if (root / REPLACED).is_dir():
            for entry in _entries(root):
                _remove(entry)
            (root / REPLACED).rename(root / REPLACING)
        if (root / REPLACING).is_dir():
            for entry in list((root / REPLACING).iterdir()):
                entry.rename(root / entry.name)
            (root / REPLACING).rmdir()
        if (root / DISCARDED).is_dir():
            shutil.rmtree(root / DISCARDED)


def let_go(root: Path) -> None:
    """Remove what `move_aside` kept, if it did: the new run has begun. Raises HvdcError."""
    with explaining(root):
        if (root / REPLACED).is_dir():
            (root / REPLACED).rename(root / DISCARDED)
            shutil.rmtree(root / DISCARDED)


def _entries(root: Path) -> list[Path]:
    return [entry for entry in root.iterdir() if entry.name not in (REPLACING, REPLACED, DISCARDED)]


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()
