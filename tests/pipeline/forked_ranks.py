"""Several ranks of `hvdc calibrate`, forked from one process that has everything imported, for `test_calibrate_ranks`.

    python -m tests.pipeline.forked_ranks < SCENARIOS

Standard input: a JSON list of `Scenario`. Prints a JSON list of lists: for each scenario, status (negative: killed by
that signal) and standard error of each rank.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hvdc.cli.calibrate as verb
import hvdc.pipeline.calibrate as work
from hvdc.pipeline.calibration_parts import Parts
from tests.commands import hvdc

assert verb, "imported so that children need not"
assert work, "and PyTorch"


@dataclass(frozen=True)
class Scenario:
    """``lost``: a rank that gets the signal ``by`` when it has kept ``after`` trajectories. ``apart``: each rank works
    in a folder of its own, as on machines that share none."""

    arguments: list[str]
    folder: str
    world: int = 2
    lost: int = -1
    after: int = 1
    by: int = signal.SIGKILL
    apart: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def run(self) -> list[tuple[int, str]]:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        children = [self._fork(rank, port) for rank in range(self.world)]
        ended = {child: _status(child) for child in children if self.lost != children.index(child)}
        if self.lost >= 0:
            os.kill(children[self.lost], signal.SIGKILL)  # it may be stopped
            ended[children[self.lost]] = _status(children[self.lost])
        said = [self._said(rank) for rank in range(self.world)]
        return [
            (ended[child], said[rank].read_text() if said[rank].exists() else "") for rank, child in enumerate(children)
        ]

    def _said(self, rank: int) -> Path:
        return Path(self.folder, f"rank-{rank}")

    def _fork(self, rank: int, port: int) -> int:
        sys.stdout.flush()
        child = os.fork()
        if child:
            return child
        os.environ.update(
            self.environment, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(self.world),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        )  # fmt: skip
        if self.apart:
            own = Path(self.folder, f"machine-{rank}")
            own.mkdir()
            os.chdir(own)
        if rank == self.lost:
            self._lose()
        done = hvdc(*self.arguments)
        self._said(rank).write_text(done.err)
        os._exit(done.status)

    def _lose(self) -> None:
        keep, left = Parts.keep, [self.after]

        def counted(parts: Parts, *arguments: Any) -> None:
            keep(parts, *arguments)
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), self.by)

        Parts.keep = counted  # type: ignore[method-assign]


def _status(child: int) -> int:
    """Wait for a child; one that hangs is killed."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    print(json.dumps([Scenario(**scenario).run() for scenario in json.load(sys.stdin)]))
