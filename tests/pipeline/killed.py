"""A process that builds an artifact again and again and is killed each time, for `test_interrupted`.

    python -m tests.pipeline.killed CHECKPOINT FOLDER SECONDS

Children are forked from a process that has everything imported, so that a round costs a build and no start-up. Prints
one JSON object: for each round where it was killed, what was there afterwards, and the exit status of the resumed build.
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

import hvdc.cli.compile  # so that children find it imported
from tests.commands import SMALL_VIDEO, hvdc as run_hvdc, partial

POINTS = ("fsync", "rename", "mkdir", "unlink", "rmdir")
"""Calls after which a file system is in another state than before: a build is killed before each of them."""


def build(checkpoint: Path, output: Path, *more: str) -> int:
    return run_hvdc("compile", checkpoint, "-o", output, *SMALL_VIDEO, "--jobs", 1, "-q", *more).status


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


def rounds(checkpoint: Path, folder: Path, seconds: float) -> list[dict[str, Any]]:
    """Kill at every point until a build gets through, then at random times."""
    output, found = folder / "a.hvdc", []

    def first() -> int:
        return build(checkpoint, output)

    def one(label: str, child: int) -> bool:
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        there, unfinished = output.exists(), partial(output).exists()
        status = (
            0
            if there
            else os.waitstatus_to_exitcode(os.waitpid(forked(lambda: build(checkpoint, output, "--resume")), 0)[1])
        )
        found.append(
            {"killed": label if killed else "", "published": there, "unfinished": unfinished, "status": status}
        )
        keep = folder / f"{len(found):03d}.hvdc"
        if output.exists():
            output.rename(keep)
        shutil.rmtree(partial(output), ignore_errors=True)
        return killed

    count = 1
    while one(f"call {count}", kill_at(count, first)):
        count += 1
    begin = time.monotonic()
    os.waitpid(forked(first), 0)
    length = time.monotonic() - begin
    shutil.rmtree(output)
    chance = random.Random(0)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        delay = chance.uniform(0, length)
        one(f"{delay:.4f} s", kill_after(delay, first))
    return found


if __name__ == "__main__":
    print(json.dumps(rounds(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))))
