"""One fact of a report, and how it is found: beside all others, within a limit, and without taking them down."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "missing", "error", "unknown"]

PROGRAM_TIMEOUT_S = 3.0
"""For a program that is asked for its version."""


@dataclass(frozen=True)
class Check:
    """One fact. ``missing`` disables only what it is needed for; ``error`` breaks hvdc itself; ``unknown``: the
    question itself failed, or got no answer in time."""

    name: str
    status: Status
    found: str
    needed_for: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Probe:
    """Finds facts. ``names``: what its answer is called where there is none."""

    names: str
    needed_for: str
    ask: Callable[[], Iterable[Check]]


def ask_all(probes: Sequence[Probe], limit_s: float) -> list[Check]:
    """The facts of all probes, in their order.

    All run at once, each in a thread of its own, for at most ``limit_s``; one that raises or is late becomes an unknown
    fact. Late ones are left behind, and end with the process.
    """
    answers: list[list[Check] | None] = [None] * len(probes)

    def work(i: int) -> None:
        try:
            answers[i] = list(probes[i].ask())
        except BaseException as error:
            answers[i] = [unknown(probes[i], f"the check itself failed: {type(error).__name__}: {error}")]

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(len(probes))]
    end = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = [[unknown(probe, f"no answer within {limit_s:g} s")] for probe in probes]
    return [check for i, answer in enumerate(answers) for check in (late[i] if answer is None else answer)]


def unknown(probe: Probe, found: str) -> Check:
    """A fact that could not be found."""
    return Check(probe.names, "unknown", found, probe.needed_for, "run it again; if it stays so, report this line")


def first_line(command: Sequence[str], timeout_s: float = PROGRAM_TIMEOUT_S) -> str:
    """What a program says first on standard output. Raises OSError or subprocess.SubprocessError."""
    done = subprocess.run(
        list(command), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s,
        check=True,
    )  # fmt: skip
    return (done.stdout.splitlines() or [""])[0].strip()
