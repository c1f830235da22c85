"""One task of the toolchain in a process of its own, with limits of time and memory that are enforced.

The toolchain prints to standard output, may crash in native code, and keeps state that two architectures cannot
share. So each task is `python -m exporters.qnn.worker`: the task goes in as JSON on standard input, one JSON value
comes back on standard output, and whatever the libraries print arrives on standard error, where the lines worth
keeping are picked while it runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from exporters.qnn.options import Limits

Status = Literal["answered", "failed", "refused", "time", "memory", "signal", "silent"]

WORKER = "exporters.qnn.worker"
_LOOK_EVERY_S = 0.02
_KEPT_LINES = 2000
_LAST_LINES = 40
_LINE_BYTES = 4096
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Ended:
    """How a task ended.

    - ``answered``: ``value`` is its result.
    - ``failed``: the toolchain raised; ``error`` is its text.
    - ``refused``: the task raised a `QnnError`; ``value`` holds its fields.
    - ``time`` / ``memory``: killed by a limit.
    - ``signal``: died by signal number ``code``; ``silent``: left with status ``code`` without a result.

    ``fixed_addresses`` says whether libraries were loaded at the same addresses as in every other such process.
    ``log`` holds the lines that ``keep`` chose (the last 2,000 of them), ``tail`` the last 40 lines of any kind.
    """

    status: Status
    value: Any = None
    error: str = ""
    code: int = 0
    log: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()
    seconds: float = 0.0
    peak_rss_bytes: int = 0
    fixed_addresses: bool = False
    limits: Limits = field(default_factory=Limits)


def run(
    task: str,
    arguments: Mapping[str, Any],
    limits: Limits,
    *,
    keep: Callable[[str], bool] = lambda line: False,
    started: Callable[[int], None] = lambda pid: None,
) -> Ended:
    """Runs one task of `exporters.qnn.worker`; ``started`` is given its process id.

    The process ends with this call, whatever happens, also by an exception such as KeyboardInterrupt.
    """
    # -P: the folder that happens to be current is not searched, so the worker imports what this process imports.
    command = [sys.executable, "-P", "-m", WORKER]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONUNBUFFERED": "1"}
    begin = time.monotonic()
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    lines = _Lines(keep)
    try:
        started(child.pid)
        assert child.stdin is not None  # noqa: S101  # for the type checker
        with contextlib.suppress(BrokenPipeError), child.stdin:
            child.stdin.write(json.dumps({"task": task, "arguments": dict(arguments)}).encode())
        reply, stopped, peak = _watch(child, limits, lines, begin)
    finally:
        _kill(child)
    return _ended(child.returncode, reply, stopped, lines, time.monotonic() - begin, peak, limits)


def _watch(
    child: subprocess.Popen[bytes], limits: Limits, lines: _Lines, begin: float
) -> tuple[bytes, Status | None, int]:
    """Reads both streams until the process has ended or a limit is reached.

    The end of the streams is not waited for: something that the process started may hold them open.
    """
    reply, peak, looked = bytearray(), 0, 0.0
    with selectors.DefaultSelector() as selector:
        for stream in (child.stdout, child.stderr):
            assert stream is not None  # noqa: S101  # for the type checker
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ)
        while True:
            gone = child.poll() is not None  # asked before reading: what it wrote by then is read below
            events = selector.select(_LOOK_EVERY_S)
            if gone and not events:
                return bytes(reply), None, peak
            for key, _ in events:
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif key.fileobj is child.stdout:
                    reply += chunk
                else:
                    lines.feed(chunk)
            now = time.monotonic()
            if now - looked < _LOOK_EVERY_S:
                continue
            looked = now
            resident = resident_bytes(child.pid)
            peak = max(peak, resident)
            if resident > limits.memory_bytes:
                return bytes(reply), "memory", peak
            if now - begin > limits.seconds:
                return bytes(reply), "time", peak


def _ended(
    code: int, reply: bytes, stopped: Status | None, lines: _Lines, seconds: float, peak: int, limits: Limits
) -> Ended:
    facts: dict[str, Any] = {
        "log": lines.kept(),
        "tail": lines.last(),
        "seconds": seconds,
        "peak_rss_bytes": peak,
        "limits": limits,
    }
    if stopped:
        return Ended(stopped, **facts)
    if code < 0:
        return Ended("signal", code=-code, **facts)
    try:
        answer = json.loads(reply)
        status, value = answer["status"], answer["value"]
        facts["peak_rss_bytes"] = max(peak, answer["peak_rss_bytes"])
        facts["fixed_addresses"] = answer["fixed_addresses"]
    except (ValueError, KeyError, TypeError):
        return Ended("silent", code=code, **facts)
    if code:
        return Ended("silent", code=code, **facts)
    return Ended(status, error=value, **facts) if status == "failed" else Ended(status, value=value, **facts)


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Ends the process and what it started, and closes the pipes."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 when there is no such process. Source: proc(5), ``statm``."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class _Lines:
    """A stream cut into lines, of which few are held: a large graph logs hundreds of megabytes."""

    def __init__(self, keep: Callable[[str], bool]) -> None:
        self._keep = keep
        self._rest = b""
        self._kept: deque[str] = deque(maxlen=_KEPT_LINES)
        self._last: deque[str] = deque(maxlen=_LAST_LINES)

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes. Of a line longer than 4 KiB the beginning is used."""
        *whole, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest[:_LINE_BYTES]
        for line in whole:
            self._take(line)

    def _take(self, line: bytes) -> None:
        text = _COLOUR.sub("", line[:_LINE_BYTES].decode("utf-8", "replace")).rstrip()
        if not text:
            return
        self._last.append(text)
        if self._keep(text):
            self._kept.append(text)

    def kept(self) -> tuple[str, ...]:
        return tuple(self._kept)

    def last(self) -> tuple[str, ...]:
        """The last lines of any kind, the unfinished one included."""
        if self._rest:
            rest, self._rest = self._rest, b""
            self._take(rest)
        return tuple(self._last)
