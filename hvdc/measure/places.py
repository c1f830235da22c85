"""Where the runtime's programs run: on this machine, or on a device behind adb."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hvdc.deploy.adb import end_group
from hvdc.errors import Exit, HvdcError
from hvdc.pipeline.runtime_kept import Runtime

SILENCE_S = 1800.0
"""Longer than decoding a video takes on a phone that is hot."""
KEPT_BYTES = 1 << 20
Lines = Callable[[str], None]
LOG_LINES = 200


@dataclass(frozen=True)
class Ended:
    """How a program ended. ``log``: its last lines on standard error that nobody took."""

    status: int
    out: bytes
    log: tuple[str, ...]


class ProgramError(HvdcError):
    """A program of the runtime refused, failed or died. ``log``: what it said."""

    def __init__(self, what: str, *, status: Exit = Exit.FAILURE, log: Sequence[str] = (), **fields: str) -> None:
        super().__init__(what, **fields)
        self.exit_status = status
        self.log = tuple(log)


class Place(Protocol):
    """A machine with the runtime's programs."""

    @property
    def what(self) -> str:
        """Which machine it is, for people and for a table: no serial, no name of a person."""

    def script(self, text: str) -> str:
        """What lines of a POSIX shell print, ``""`` if they cannot be run in seconds. Raises for a lost device only."""

    def follow(self, text: str, lines: Lines, enough: threading.Event) -> None:
        """Run lines of a POSIX shell beside a program until ``enough`` is set, and pass on what they print. Their
        standard input is open for as long as this process lives. Raises HvdcError, OSError."""

    def run(
        self, program: str, arguments: Sequence[object], seen: Callable[[str], bool], lines: Lines | None = None
    ) -> Ended:
        """Run a program to its end. ``seen`` gets each line of standard error and says whether it took it; ``lines``
        gets those of standard output when they come, which are then not kept.

        Raises ProgramError: it cannot be started, says nothing for `SILENCE_S`, or talks without end.
        """

    def lost(self, program: str, ended: Ended) -> HvdcError | None:
        """Why a program may have ended with status 0 in the middle of what it had to say; None: by itself."""

    def artifact(self) -> str:
        """The artifact's path there."""

    def kernel_cache(self) -> str | None:
        """A folder there in which compiled kernels are kept; None: nowhere."""


class HostPlace:
    """This machine."""

    def __init__(self, runtime: Runtime, artifact: Path | None, kernels: Path | None) -> None:
        self._runtime, self._artifact, self._kernels = runtime, artifact, kernels

    @property
    def what(self) -> str:
        return f"this machine ({_processor()})"

    def script(self, text: str) -> str:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["/bin/sh", "-c", text]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
            return done.stdout.decode("utf-8", "replace")
        return ""

    def follow(self, text: str, lines: Lines, enough: threading.Event) -> None:
        process = subprocess.Popen(
            ["/bin/sh", "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        followed(process, lines, enough)

    def run(
        self, program: str, arguments: Sequence[object], seen: Callable[[str], bool], lines: Lines | None = None
    ) -> Ended:
        path = self._runtime.folder / program
        try:
            process = subprocess.Popen(
                [str(path), *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            fix = "hvdc runtime build makes it anew"
            raise ProgramError(f"{program} cannot be started", where=str(path), found=str(error), fix=fix) from error
        return watched(process, program, seen, lines)

    def lost(self, program: str, ended: Ended) -> HvdcError | None:
        return None

    def artifact(self) -> str:
        return "" if self._artifact is None else str(self._artifact.absolute())

    def kernel_cache(self) -> str | None:
        return None if self._kernels is None else str(self._kernels)


def watched(
    process: subprocess.Popen[bytes], program: str, seen: Callable[[str], bool], lines: Lines | None = None,
    silence_s: float = SILENCE_S,
) -> Ended:  # fmt: skip
    """Read what a program says until it ends; it does not outlive this call. Raises ProgramError."""
    out, log = bytearray(), deque[str](maxlen=LOG_LINES)
    rest = {"out": b"", "err": b""}

    def take(name: str, part: bytes) -> None:
        if name == "out" and lines is None:
            out.extend(part)
            return
        *whole, rest[name] = (rest[name] + part).split(b"\n")
        for line in (one.decode("utf-8", "replace").rstrip("\r") for one in whole):
            if name == "out" and lines is not None:
                lines(line)
            elif not seen(line):
                log.append(line[:2000])

    try:
        with selectors.DefaultSelector() as waiting:
            for name, pipe in (("out", process.stdout), ("err", process.stderr)):
                if pipe is not None:
                    waiting.register(pipe, selectors.EVENT_READ, name)
            while waiting.get_map():
                ready = waiting.select(silence_s)
                if not ready:
                    raise ProgramError(f"{program} says nothing", found=f"silence for {silence_s:g} s", log=tuple(log))
                for key, _ in ready:
                    part = os.read(key.fd, 1 << 16)
                    if not part:
                        waiting.unregister(key.fileobj)
                    take(key.data, part)
                if max(len(out), *map(len, rest.values())) > KEPT_BYTES:
                    raise ProgramError(f"{program} talks without end", expected=f"at most {KEPT_BYTES:,} bytes")
        for name, left in rest.items():
            if left:
                take(name, b"\n")
        return Ended(process.wait(), bytes(out), tuple(log))
    finally:
        end_group(process)


def followed(process: subprocess.Popen[bytes], lines: Lines, enough: threading.Event) -> None:
    """Pass on what a process prints, by lines, until it ends or ``enough`` is set; it does not outlive this call."""
    rest = b""
    try:
        with selectors.DefaultSelector() as waiting:
            if process.stdout is not None:
                waiting.register(process.stdout, selectors.EVENT_READ)
            while waiting.get_map() and not enough.is_set():
                for key, _ in waiting.select(0.1):
                    part = os.read(key.fd, 1 << 16)
                    if not part:
                        waiting.unregister(key.fileobj)
                    *whole, rest = (rest + part).split(b"\n")
                    for line in whole:
                        lines(line.decode("utf-8", "replace").rstrip("\r"))
                    rest = rest[-KEPT_BYTES:]
    finally:
        end_group(process)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Hardware"))]
    return f"{names[0] if names else os.uname().machine}, {os.cpu_count()} processors"
