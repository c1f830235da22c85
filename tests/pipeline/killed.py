"""A process that builds an artifact again and again and is killed each time, for `test_killed`.

    python -m tests.pipeline.killed CHECKPOINT FOLDER SECONDS

Children are forked from a process that has everything imported, so that a round costs a build and no start-up. Prints
one JSON list: for each round when it was killed, what was there afterwards, and the exit status of the resumed build.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hvdc.cli.compile as verb
import hvdc.pipeline.answer as answer
from tests import commands

POINTS = ("fsync", "rename", "mkdir", "unlink", "rmdir")
"""Calls after which a file system is in another state than before: a build is killed before each of them."""

assert verb, "imported so that children need not"
assert answer, "so is PyTorch with it"


class Killer:
    """Builds ``output`` in children, one at a time."""

    def __init__(self, checkpoint: Path, folder: Path) -> None:
        self.checkpoint, self.folder = checkpoint, folder
        self.output = folder / "a.hvdc"
        self.rounds: list[dict[str, Any]] = []

    def build(self, *more: str) -> int:
        video = commands.SMALL_VIDEO
        return commands.hvdc("compile", self.checkpoint, "-o", self.output, *video, "--jobs", 1, "-q", *more).status

    def round(self, label: str, child: int) -> bool:
        """Wait for a child that is killed at ``label``, resume its build, keep the result. False: it got through."""
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        published, status = self.output.exists(), 0
        if not published:
            status = os.waitstatus_to_exitcode(os.waitpid(forked(lambda: self.build("--resume")), 0)[1])
        self.rounds.append({"killed": label if killed else "", "published": published, "status": status})
        if self.output.exists():
            self.output.rename(self.folder / f"{len(self.rounds):03d}.hvdc")
        shutil.rmtree(commands.partial(self.output), ignore_errors=True)
        return killed

    def everywhere(self) -> None:
        """Killed before the first, second … call of POINTS, until a build gets through."""
        count = 1
        while self.round(f"call {count}", kill_at(count, self.build)):
            count += 1

    def at_random(self, seconds: float) -> None:
        begin = time.monotonic()
        os.waitpid(forked(self.build), 0)
        length = time.monotonic() - begin
        shutil.rmtree(self.output)
        chance = random.Random(0)
        while time.monotonic() < begin + seconds:
            delay = chance.uniform(0, length)
            self.round(f"{delay:.4f} s", kill_after(delay, self.build))


def forked(work: Callable[[], int]) -> int:
    """Process id of a child that does ``work`` and exits with its status."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os._exit(work())
    return child


def kill_at(count: int, work: Callable[[], int]) -> int:
    """A child that kills itself, without any clean-up, before its ``count``-th call of POINTS."""

    def watched() -> int:
        left = [count]

        def patched(original: Any) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments, **options)

            return call

        for name in POINTS:
            setattr(os, name, patched(getattr(os, name)))
        return work()

    return forked(watched)


def kill_after(seconds: float, work: Callable[[], int]) -> int:
    child = forked(work)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return child


if __name__ == "__main__":
    killer = Killer(Path(sys.argv[1]), Path(sys.argv[2]))
    killer.everywhere()
    killer.at_random(float(sys.argv[3]))
    print(json.dumps(killer.rounds))
