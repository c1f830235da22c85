"""`hvdc_runner` as a process: started, watched, stopped; what it says becomes progress, notes, facts and errors."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, cast

from hvdc.errors import Exit, HvdcError
from hvdc.pipeline.run_lines import Lines
from hvdc.progress import Progress

LOG_LINES = 200
STATUS = {"usage": Exit.USAGE, "artifact": Exit.BAD_ARTIFACT, "device": Exit.DEVICE}
"""Kind of a failure of the runtime -> exit status; all others are failures. See hvdc/failure.h."""

SAY_EVERY_S = 10
"""How often it is said how far the decoding of a video is, which takes minutes on an emulator."""

STOP_TIMEOUT_S = 60
"""A block on a slow machine takes seconds; after this long the runtime is killed, which costs no finished video."""


class RunnerError(HvdcError):
    """The runtime refused, failed or died. ``log``: what it and its drivers wrote beside the messages."""

    def __init__(self, what: str, *, status: Exit = Exit.FAILURE, log: Sequence[str] = (), **fields: str) -> None:
        super().__init__(what, **fields)
        self.exit_status = status
        self.log = tuple(log)


class Watched:
    """Lines of the runtime's standard error: JSON events, and whatever drivers write."""

    def __init__(
        self, videos: int, executions: int, progress: Progress, say: Callable[[str], None],
        placed: Callable[[int, float, str], None], begun: Callable[[], None] = lambda: None,
        finished: Callable[[dict[str, Any]], None] = lambda record: None,
    ) -> None:  # fmt: skip
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        self.device = ""
        """The GPU's name, once known."""
        self._position = [0] * videos
        self._executions = executions
        self._progress, self.say, self._placed = progress, say, placed
        self._begun, self._finished = begun, finished
        self._started = False
        self._said_s = 0.0

    def take(self, line: str) -> None:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict) or "event" not in event:
            self.log.append(line)
            return
        kind, text = event["event"], str(event.get("text", ""))
        if kind == "started":
            self._begun()
        elif kind == "cut":
            self._placed(int(event["cut"]), float(event["gpu_share"]), str(event["cut_source"]))
        elif kind == "gpu":
            self.device = text.removeprefix("GPU: ")
            self.say(f"GPU: {self.device}")
        elif kind in ("note", "gpu-lost", "cut-chosen"):
            self.say(text)
        elif kind in ("blocks", "handoff", "finished", "skipped"):
            record: dict[str, Any] = event["record"] if isinstance(event.get("record"), dict) else {}
            was_there = kind == "skipped" or bool(record.get("kept"))
            self._advance(int(event["video"]), kind, int(event.get("position", 0)), was_there)
            if kind == "finished" and record:
                self._finished(record)
        elif kind == "decoding":
            self._decoding(int(event["video"]), int(event["done"]), int(event["total"]))

    def _decoding(self, video: int, done: int, total: int) -> None:
        now_s = time.monotonic()
        if done > 1 and now_s - self._said_s < SAY_EVERY_S:
            return
        if done > 1:
            self.say(f"video {video}: {done} of {total} latent frames of tiles decoded")
        self._said_s = now_s

    def _advance(self, video: int, kind: str, position: int, was_there: bool) -> None:
        if not self._started:
            self._started = True
            count = len(self._position)
            self._progress.start("running", count * self._executions, count, unit="blocks")
        whole = kind in ("finished", "skipped")
        position = self._executions if whole else position
        new = max(0, position - self._position[video])
        self._progress.skip(new) if was_there else self._progress.advance(new)
        self._position[video] = max(position, self._position[video])
        if whole:
            self._progress.item_done(f"video {video}")


def run_runner(program: Path, arguments: Sequence[object], watched: Watched, progress: Progress) -> dict[str, Any]:
    """Run the program to its end; returns its report, whose ``stopped`` says whether it was interrupted.

    When this process is interrupted, the runtime stops before its next block, and KeyboardInterrupt goes on. When this
    process dies, the runtime does the same. Raises RunnerError.
    """
    own = ("--json", "--progress", "json", "--on-stop", "abandon", "--with-parent", os.getpid())
    command = [str(program), *map(str, (*arguments, *own))]
    # Standard output is the report, a few lines at the end: a file cannot block whoever writes it.
    with tempfile.TemporaryFile() as report:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=report, stderr=subprocess.PIPE, start_new_session=True
        )
        heard = cast("IO[bytes]", process.stderr)
        lines = Lines(heard.fileno())
        try:
            for line in lines:
                watched.take(line)
            process.wait()
        finally:
            _stop(process)
            if lines.join(STOP_TIMEOUT_S):
                heard.close()
            # Videos that were finished since, and last words. What stopped this loop is what is told.
            with contextlib.suppress(KeyboardInterrupt, HvdcError):
                for line in lines:
                    watched.take(line)
            progress.finish()
        if lines.left_out:
            watched.say(f"{lines.left_out} lines of the runtime were left out: this process was kept from taking them")
        report.seek(0)
        text = report.read().decode("utf-8", "replace")
    return outcome(process.returncode, text, watched.log)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that still runs, gently and then not. Its own child dies with it."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    if process.poll() is None:
        process.kill()
    process.wait()


def outcome(status: int, text: str, log: Sequence[str]) -> dict[str, Any]:
    """The report in what the program printed, which ended with ``status``. Raises RunnerError."""
    try:
        report = json.loads(text)
    except (ValueError, RecursionError):
        report = None
    if isinstance(report, dict) and "error" not in report and status in (Exit.OK, Exit.INTERRUPTED):
        return report
    if isinstance(report, dict) and isinstance(report.get("error"), dict):
        error = report["error"]
        stopped = status == Exit.INTERRUPTED
        kind = Exit.INTERRUPTED if stopped else STATUS.get(str(error.get("kind")), Exit.FAILURE)
        what = str(error.get("what"))
        full = any(os.strerror(number) in what for number in (errno.ENOSPC, errno.EDQUOT))
        fix = "make room and run the same command with --resume: finished videos are kept" if full else ""
        raise RunnerError(what, status=kind, log=log, fix=fix)
    how = f"it was killed by signal {-status}" if status < 0 else f"it ended with status {status}"
    if -status == signal.SIGBUS:
        how += ", as when a file that it reads is cut short: hvdc validate looks at the artifact"
    raise RunnerError(
        "the runtime ended without a report", found=how, log=log,
        fix="run the same command with --resume: finished videos are kept",
    )  # fmt: skip
