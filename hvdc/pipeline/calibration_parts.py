"""What a calibration that was stopped leaves behind: ``NAME.partial``, one file for each process, to go on from.

A part holds the statistics of the trajectories that one process had finished, the list of them, and their final latents
where these are wanted. Statistics merge in any grouping, so a run may go on with another number of processes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from exporters.model import Geometry
from hvdc.errors import HvdcError, UsageError
from hvdc.pipeline.calibration_file import pack, unpack
from hvdc.pipeline.ranks import Ranks
from hvdc.pipeline.workspace import lock_directory, write_durably
from quant.calibration.statistics import Statistics, empty, from_arrays

Pair = tuple[int, int]
"""A trajectory: (prompt, seed), as places in their lists."""

Latents = dict[Pair, np.ndarray[Any, Any]]

IDENTITY = "identity"
PART = "part-"


@dataclass(frozen=True)
class Found:
    """What earlier runs had finished."""

    statistics: Statistics
    jobs: set[Pair]
    latents: Latents


class Parts:
    """The directory, locked by rank 0. Raises UsageError when it is in use, or is there and ``resume`` is False."""

    def __init__(self, output: Path, identity: str, ranks: Ranks, *, resume: bool) -> None:
        self.path = output.with_name(output.name + ".partial")
        self._identity = identity
        self._ranks = ranks
        self._resume = resume
        self._lock: int | None = None
        self._generation = 0

    def __enter__(self) -> Parts:
        error: HvdcError | None = None
        if self._ranks.is_first:
            try:
                self._begin()
            except HvdcError as e:
                error = e
        error = self._ranks.broadcast(error)
        if error is not None:
            self._release()
            raise error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._lock is not None and not any(self.path.glob(f"{PART}*")):
            shutil.rmtree(self.path, ignore_errors=True)
        self._release()

    def take_over(self, geometry: Geometry, steps: int, *, keep: bool) -> Found:
        """What the directory holds of earlier runs: the same on all ranks. Raises HvdcError for a damaged part."""
        found = Found(empty(geometry, steps), set(), {})
        files = self._ranks.broadcast(self._parts())
        for file in files:
            try:
                arrays, facts = unpack(file.read_bytes())
                jobs = [(int(p), int(s)) for p, s in facts["jobs"]]
                statistics = from_arrays(geometry, steps, arrays)
                if set(jobs) & found.jobs:
                    raise ValueError("two parts hold the same trajectory")
                latents = dict(zip(jobs, arrays["latents"], strict=True)) if keep else {}
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise HvdcError(
                    "what an earlier run left is damaged",
                    where=str(file),
                    found=str(error),
                    fix="remove that file: its trajectories are run again",
                ) from error
            found = Found(found.statistics.merged(statistics), found.jobs | set(jobs), found.latents | latents)
        numbers = [file.stem.removeprefix(PART) for file in files]
        self._generation = 1 + max((int(number) for number in numbers if number.isdigit()), default=-1)
        return found

    def keep(self, statistics: Statistics, jobs: list[Pair], latents: Latents) -> None:
        """Save what this rank has finished in this run. Raises HvdcError."""
        arrays = statistics.arrays()
        if latents:
            arrays["latents"] = np.stack([latents[job] for job in jobs])
        name = f"{PART}{self._generation + self._ranks.rank:04d}.safetensors"
        write_durably(self.path / name, pack(arrays, {"jobs": jobs}))

    def discard(self) -> None:
        """Nothing in it is worth going on with, as when the run is complete."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._release()

    def _parts(self) -> list[Path]:
        return sorted(self.path.glob(f"{PART}*.safetensors"))

    def _begin(self) -> None:
        self._lock = lock_directory(self.path)
        if not all(entry.name.startswith((IDENTITY, PART)) for entry in self.path.iterdir()):
            raise UsageError("a directory of this name is in the way", where=str(self.path), fix="choose another -o")
        identity = self.path / IDENTITY
        if not identity.is_file() or not self._parts():  # killed while it was made or removed: it holds nothing
            for entry in self.path.iterdir():
                entry.unlink()
            try:
                write_durably(identity, self._identity.encode("ascii"))
            except HvdcError:
                with contextlib.suppress(OSError):
                    self.path.rmdir()
                raise
            return
        if not self._resume:
            raise UsageError(
                "an unfinished calibration of this output is there",
                where=str(self.path),
                fix="--resume to go on with it, or remove that directory",
            )
        if identity.read_bytes() != self._identity.encode("ascii"):
            raise UsageError(
                "the unfinished calibration is of another checkpoint, other prompts or other settings",
                where=str(self.path),
                fix="repeat the command that began it, or remove that directory",
            )

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
