"""What is told while a call waits for Qualcomm AI Hub. Nothing here has run against the real service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class JobState:
    """A job as the service last described it. ``name`` is what it does; ``state`` the client's word for its state."""

    name: str
    job_id: str
    url: str
    state: str


@dataclass(frozen=True)
class Progress:
    """``step`` is upload, compile, link, download, check, profile or infer.

    ``waited_s`` counts the seconds of this step, ``next_poll_s`` those until the jobs are asked for again. ``note`` is
    a sentence for a person, such as why something is tried again, or "".
    """

    step: str
    jobs: tuple[JobState, ...] = ()
    waited_s: float = 0.0
    next_poll_s: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        parts = [f"{job.name} {job.state} ({job.job_id})" for job in self.jobs] + [self.note] * bool(self.note)
        waited = f", {self.waited_s:.0f} s" if self.waited_s else ""
        return f"{self.step}{waited}: {'; '.join(parts)}"


Say = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Tells nobody."""
