"""What a calibration that was stopped leaves behind: ``NAME.partial``, to go on from.

A part, one file for each process, holds the statistics of the trajectories that the process had finished and the list
of them; beside it lies the final latent of each, where these are wanted. Statistics merge in any grouping, so a run may
go on with another number of processes. All processes write into the directory, which rank 0 makes and reads.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from exporters.model import Geometry
from hvdc.errors import HvdcError, UsageError
from hvdc.files import write_durably
from hvdc.pipeline.calibration_file import pack, unpack
from hvdc.pipeline.ranks import Ranks
from hvdc.pipeline.workspace import lock_directory, partial_path
from quant.calibration.statistics import Statistics, empty, from_arrays

Pair = tuple[int, int]
"""A trajectory: (prompt, seed), as places in their lists."""

Latent = np.ndarray[Any, Any]

IDENTITY = "identity"
REPLACE = "replace"
"""A file whose presence says that the outputs may be replaced: leave was given, or they are this run's own."""
PART = "part-"
LATENT = "latent-"

VISIBLE_S = 5.0
"""How long a rank looks for what rank 0 wrote: a network's file system may show it a moment later."""


@dataclass(frozen=True)
class Found:
    """What earlier runs had finished. ``statistics``: on rank 0; elsewhere of no trajectory."""

    statistics: Statistics
    jobs: set[Pair]


class Parts:
    """The directory, locked by rank 0. Raises UsageError, HvdcError.

    What an earlier run left there is gone on with if ``resume``, and removed if ``discard``; with both, it is removed
    where it cannot be gone on with. With neither it is refused. ``discard`` is also leave to replace outputs.
    """

    def __init__(self, output: Path, identity: str, ranks: Ranks, *, resume: bool, discard: bool = False) -> None:
        self.path = partial_path(output)
        self._identity = identity
        self._ranks = ranks
        self._resume = resume
        self._discard = discard
        self._lock: int | None = None
        self._generation = 0

    def __enter__(self) -> Parts:
        error: HvdcError | None = None
        if self._ranks.is_first:
            try:
                self._begin()
            except HvdcError as e:
                error = e
        error, identity = self._ranks.broadcast((error, self._identity))
        if error is not None:
            self._release()
            raise error
        unseen = [error for error in self._ranks.gather(self._unseen(identity)) if error is not None]
        if unseen:
            self.__exit__(None, None, None)
            raise unseen[0]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._lock is not None and not any(self.path.glob(f"{PART}*")):
            shutil.rmtree(self.path, ignore_errors=True)
        self._release()

    def take_over(self, geometry: Geometry, steps: int, *, keep: bool) -> Found:
        """What the directory holds of earlier runs; ``keep``: with latents. Raises HvdcError for a damaged part."""
        error: HvdcError | None = None
        found = Found(empty(geometry, steps), set())
        if self._ranks.is_first:
            try:
                found = self._read_parts(found, geometry, keep=keep)
            except HvdcError as e:
                error = e
        error, jobs, self._generation = self._ranks.broadcast((error, found.jobs, self._generation))
        if error is not None:
            raise error
        return Found(found.statistics, jobs)

    def keep(self, statistics: Statistics, jobs: list[Pair], latent: Latent | None) -> None:
        """Save what this rank has finished in this run; ``latent``: of the last of ``jobs``. Raises HvdcError."""
        if latent is not None:
            write_durably(self._latent(jobs[-1]), pack({"latent": latent}, {}))
        name = f"{PART}{self._generation + self._ranks.rank:04d}.safetensors"
        write_durably(self.path / name, pack(statistics.arrays(), {"jobs": jobs}))

    def latent(self, job: Pair) -> Latent:
        """The final latent of a trajectory that any rank kept. Raises HvdcError."""
        path = self._latent(job)
        try:
            return unpack(path.read_bytes())[0]["latent"]
        except (OSError, ValueError, KeyError) as error:
            raise HvdcError(
                "a latent that was kept cannot be read",
                where=str(path),
                found=str(error),
                fix="start over with --force",
            ) from error

    def may_replace(self) -> None:
        """From here on the outputs are this run's own, and a run that resumes it may replace them. Raises HvdcError."""
        write_durably(self.path / REPLACE, b"")

    def discard(self) -> None:
        """Nothing in it is worth going on with, as when the run is complete."""
        with contextlib.suppress(OSError):  # first, so that outputs that are whole are not taken for unfinished ones
            (self.path / REPLACE).unlink()
        shutil.rmtree(self.path, ignore_errors=True)
        self._release()

    def _latent(self, job: Pair) -> Path:
        return self.path / f"{LATENT}{job[0]:06d}-{job[1]:04d}.safetensors"

    def _parts(self) -> list[Path]:
        return sorted(self.path.glob(f"{PART}*.safetensors"))

    def _begin(self) -> None:
        self._lock = lock_directory(self.path)
        if not all(entry.name.startswith((IDENTITY, REPLACE, PART, LATENT)) for entry in self.path.iterdir()):
            raise UsageError("a directory of this name is in the way", where=str(self.path), fix="choose another -o")
        identity = self.path / IDENTITY
        if not identity.is_file() or not self._parts():  # killed while it was made or removed: it holds nothing
            self._start_over()
        elif not self._resume:
            if not self._discard:
                raise UsageError(
                    "an unfinished calibration of this output is there",
                    where=str(self.path),
                    fix="--resume to go on with it, or --force to start over",
                )
            self._start_over()
        elif identity.read_bytes() != self._identity.encode("ascii"):
            if not self._discard:
                raise UsageError(
                    "the unfinished calibration is of another checkpoint, other prompts or other settings",
                    where=str(self.path),
                    fix="repeat the command that began it, or --force instead of --resume to start over",
                )
            self._start_over()

    def _start_over(self) -> None:
        replaces = self._discard or (self._resume and (self.path / REPLACE).is_file())
        try:
            for entry in self.path.iterdir():
                if entry.name != REPLACE:
                    entry.unlink()
            if replaces:
                self.may_replace()
            else:
                (self.path / REPLACE).unlink(missing_ok=True)
            write_durably(self.path / IDENTITY, self._identity.encode("ascii"))
        except HvdcError:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def _unseen(self, identity: str) -> UsageError | None:
        """An error where this rank does not find what rank 0 has made."""
        end = time.monotonic() + VISIBLE_S
        while not self._ranks.is_first:
            with contextlib.suppress(OSError):
                if (self.path / IDENTITY).read_bytes() == identity.encode("ascii"):
                    return None
            if time.monotonic() > end:
                return UsageError(
                    f"process {self._ranks.rank}, on {socket.gethostname()}, does not see the folder that the first "
                    "process writes to",
                    where=str(self.path.absolute()),
                    expected="one folder for all processes, which they keep what they have finished in",
                    fix="give an -o in a folder that all machines share",
                )
            time.sleep(0.1)
        return None

    def _read_parts(self, found: Found, geometry: Geometry, *, keep: bool) -> Found:
        steps = len(found.statistics.output_absmax)
        files = self._parts()
        for file in files:
            try:
                arrays, facts = unpack(file.read_bytes())
                jobs = {(int(p), int(s)) for p, s in facts["jobs"]}
                statistics = from_arrays(geometry, steps, arrays)
                if jobs & found.jobs:
                    raise ValueError("two parts hold the same trajectory")
                if keep:
                    for job in sorted(jobs):
                        self.latent(job)
            except (OSError, ValueError, KeyError, TypeError, HvdcError) as error:
                if self._discard:
                    file.unlink()
                    continue
                raise HvdcError(
                    "what an earlier run left is damaged",
                    where=str(file),
                    found=f"{error.where}: {error.found}" if isinstance(error, HvdcError) else str(error),
                    fix="remove that file: its trajectories are run again",
                ) from error
            found = Found(found.statistics.merged(statistics), found.jobs | jobs)
        numbers = [file.stem.removeprefix(PART) for file in files]
        self._generation = 1 + max((int(number) for number in numbers if number.isdigit()), default=-1)
        return found

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def may_replace(output: Path) -> bool:
    """Has an unfinished calibration of ``output`` leave to replace what is there?"""
    return (partial_path(output) / REPLACE).is_file()
