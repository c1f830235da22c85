"""Devices by the real ``adb``: which there are, which is meant, and what is done on one.

Every call of the program has a list of arguments, a deadline and a limit to what it may answer. What runs on a device
is quoted word by word for its shell. A device that is lost raises `LinkError`, after which the same call may be
repeated.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import selectors
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hvdc.deploy.adb_program import AdbProgram
from hvdc.deploy.adb_push import run_transfer
from hvdc.deploy.devices import PASSING, DeviceState, choose_device, parse_devices, refuse_unusable
from hvdc.deploy.errors import DeviceError, LinkError, NoAnswerError

SHELL_S = 60.0
"""Deadline of a call on a device, unless the caller knows better."""
ANSWER_BYTES = 4 << 20
"""More than any answer that is asked for."""

SETTLE_S = 3.0
"""A device that has just been plugged in is in a passing state for about as long."""

_LOST = re.compile(
    r"device (?:'[^']*' )?(?:not found|offline)|no devices/emulators found|device still (?:connecting|authorizing)|"
    r"protocol fault|closed|connection reset|broken pipe|failed to read|no response|device unauthorized|"
    r"transport|cannot connect|connect failed|connection refused",
    re.IGNORECASE,
)
"""What adb's client says when the device or the way to it went away."""

_REFUSED = re.compile(
    r": remote |cannot (?:l?stat|open)|failed to (?:open|stat)|No such file or directory|Permission denied"
)
"""What it says of a copy that one of the two ends refused; any other failure is the link's."""


@dataclass(frozen=True)
class Answer:
    """What a program left. ``out`` and ``err`` are bytes as they came."""

    status: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        """Standard output as text, without the line breaks of a terminal."""
        return self.out.decode("utf-8", "replace").replace("\r\n", "\n")

    @property
    def said(self) -> str:
        """The last line of what it said to people."""
        lines = (self.err.decode("utf-8", "replace") + "\n" + self.text).strip().splitlines()
        own = [line for line in self.err.decode("utf-8", "replace").strip().splitlines() if line.strip()]
        return (own or lines or [""])[-1].strip()[:400]


class Adb:
    """The program, and which server of it is spoken to: ``host`` and ``port`` None are adb's own default."""

    def __init__(self, program: AdbProgram, *, host: str | None = None, port: int | None = None) -> None:
        self.program = program
        self._server = [*(["-H", host] if host else []), *(["-P", str(port)] if port else [])]

    def command(self, *words: object) -> list[str]:
        """The whole command line of a call."""
        return [str(self.program.path), *self._server, *map(str, words)]

    def run(
        self,
        *words: object,
        timeout_s: float = SHELL_S,
        limit_bytes: int = ANSWER_BYTES,
        stdin: IO[bytes] | None = None,
    ) -> Answer:
        """Call adb to its end. Raises DeviceError: it does not end in time, or answers without end."""
        return _run(self.command(*words), timeout_s, limit_bytes, stdin)

    def devices(self) -> list[DeviceState]:
        """Every device that the server sees, whatever its state. Raises DeviceError."""
        answer = self.run("devices", "-l", timeout_s=30)
        if answer.status != 0:
            raise DeviceError("adb cannot list devices", found=answer.said, fix="adb kill-server, and try again")
        return parse_devices(answer.text)

    def device(self, serial: str | None = None) -> AdbDevice:
        """The device that is meant: ``serial``, else ANDROID_SERIAL, else the only one. Raises DeviceError."""
        wanted, end_s = serial or os.environ.get("ANDROID_SERIAL") or None, time.monotonic() + SETTLE_S
        chosen = choose_device(self.devices(), wanted)
        while chosen.state in PASSING and time.monotonic() < end_s:
            time.sleep(0.2)
            chosen = choose_device(self.devices(), wanted)
        refuse_unusable(chosen)
        return AdbDevice(self, chosen)


class AdbDevice:
    """One device."""

    def __init__(self, adb: Adb, state: DeviceState) -> None:
        self.adb = adb
        self.state = state
        self._has_status: bool | None = None

    @property
    def serial(self) -> str:
        return self.state.serial

    def command(self, *words: object) -> list[str]:
        """The command line of a call to this device."""
        return self.adb.command("-s", self.serial, *words)

    @property
    def passes_status(self) -> bool:
        """Whether its shell says with which status a command ended (Android 7 and newer). Raises LinkError."""
        if self._has_status is None:
            answer = self.adb.run("-s", self.serial, "features", timeout_s=30)
            if answer.status != 0:
                raise self._lost(answer.said)
            self._has_status = "shell_v2" in answer.text.split()
        return self._has_status

    def shell(
        self, *argv: object, timeout_s: float = SHELL_S, limit_bytes: int = ANSWER_BYTES, stdin: IO[bytes] | None = None
    ) -> Answer:
        """Run a program on the device; its words reach it as they are. Returns also what fails.

        Raises LinkError when the device is lost; DeviceError for an answer without end, none in time, or none at all.
        """
        return self.script(quoted(argv), timeout_s=timeout_s, limit_bytes=limit_bytes, stdin=stdin)

    def script(
        self, text: str, timeout_s: float = SHELL_S, limit_bytes: int = ANSWER_BYTES, stdin: IO[bytes] | None = None
    ) -> Answer:
        """Run lines of the device's shell, in which every word of others is quoted. Returns and raises as `shell`."""
        mark = f"hvdc-{secrets.token_hex(8)}"
        # The status comes in the answer, and not only as adb's own, which is 1 also where the device was lost.
        whole = f"(\n{text}\n); hvdc_status=$?; echo; echo {mark} $hvdc_status"
        flags = ["-T"] if stdin is not None else ["-n", "-T"] if self.passes_status else []
        words = ("-s", self.serial, "shell", *flags, whole)
        answer = self.adb.run(*words, timeout_s=timeout_s, limit_bytes=limit_bytes, stdin=stdin)
        head, found, tail = answer.out.rpartition(b"\n" + mark.encode() + b" ")
        status = tail.strip()
        if not found or not status.isdigit():
            if answer.status != 0 or _is_lost(answer):
                raise self._lost(answer.said)
            raise NoAnswerError(  # adb's status is 0, too, where a link was cut at the wrong moment
                "the device's shell gives no answer that can be read", where=self.serial,
                expected="the status of a command", found=_shown(answer.out) or "nothing",
                fix="unplug it and plug it in again; `adb shell` should say the same as a terminal on the phone",
            )  # fmt: skip
        return Answer(int(status), head.removesuffix(b"\r"), answer.err)

    def push(
        self, local: Path, remote: str, progress: Callable[[float], None] = lambda share: None,
        timeout_s: float = 3600.0, silence_s: float = 120.0,
    ) -> None:  # fmt: skip
        """Copy a file to the device. ``progress``: told which share of it is sent, 0 to 1.

        The status says nothing about whether it arrived: look at it. Raises LinkError, and DeviceError with the
        device's own words.
        """
        command = self.command("push", local.absolute(), remote)
        status, said = run_transfer(command, lambda name, share: progress(share), timeout_s, silence_s)
        self._require(status, said, f"copying {local.name} to the device failed", remote)

    def push_all(
        self, files: Sequence[Path], folder: str, progress: Callable[[str, float], None] | None = None,
        timeout_s: float = 3600.0, silence_s: float = 300.0,
    ) -> None:  # fmt: skip
        """Copy files into a folder of the device that exists. ``progress``: told a file's name and what share of it is
        sent, which costs time. Those before one that fails have arrived. Raises as `push`."""
        command = self.command("push", *(path.absolute() for path in files), f"{folder}/")
        status, said = run_transfer(command, progress, timeout_s, silence_s)
        self._require(status, said, f"copying {len(files)} files to the device failed", folder)

    def pull(self, remote: str, local: Path, timeout_s: float = 3600.0) -> None:
        """Copy a file from the device. Raises as `push`."""
        answer = self.adb.run("-s", self.serial, "pull", remote, local.absolute(), timeout_s=timeout_s)
        self._require(answer.status, answer.said, "copying from the device failed", remote)

    @contextlib.contextmanager
    def stream(self, *argv: object) -> Iterator[subprocess.Popen[bytes]]:
        """A program that runs on the device, with pipes: standard output as it is, standard error apart.

        Its status is adb's own where the device `passes_status`. It is ended with the block.
        """
        flags = ["-T"] if self.passes_status else []
        process = subprocess.Popen(
            self.command("shell", *flags, quoted(argv)), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            end_group(process)

    def is_there(self) -> bool:
        """Whether the device can be reached now. A device on the network is connected again."""
        with contextlib.suppress(DeviceError):
            if self._state() == "device":
                return True
            if ":" in self.serial:  # "already connected", says the server of one that it has not given up yet
                self.adb.run("disconnect", self.serial, timeout_s=3)
                self.adb.run("connect", self.serial, timeout_s=3)
                return self._state() == "device"
        return False

    def _state(self) -> str:
        return self.adb.run("-s", self.serial, "get-state", timeout_s=10).text.strip()

    def wait(self, timeout_s: float, given_up: threading.Event | None = None, every_s: float = 0.04) -> bool:
        """Wait until the device can be reached; False: it could not, for so long, or until ``given_up``."""
        stop = given_up or threading.Event()
        end_s = time.monotonic() + timeout_s
        while not self.is_there():
            if time.monotonic() >= end_s:
                return False
            if stop.wait(min(every_s, max(0.0, end_s - time.monotonic()))):
                return False
            every_s = min(2 * every_s, 2.0)
        return True

    def _require(self, status: int, said: str, what: str, remote: str) -> None:
        if status == 0:
            return
        if _REFUSED.search(said) is None:
            raise self._lost(said)
        full = "No space left on device" in said
        fix = "make room on the device and run the same command again: what arrived is kept" if full else ""
        raise DeviceError("the device is full" if full else what, where=f"{self.serial}: {remote}", found=said, fix=fix)

    def _lost(self, said: str) -> LinkError:
        return LinkError(
            "the device was lost", where=self.serial, found=said or "no answer",
            fix="look at the cable and at the phone, and run the same command again: what arrived is kept",
        )  # fmt: skip


def quoted(argv: Sequence[object]) -> str:
    """Words for the device's shell: each reaches the program as it is, whatever is in it."""
    return " ".join(shlex.quote(str(word)) for word in argv)


def _shown(data: bytes) -> str:
    text = data[:200].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in text).strip()


def _is_lost(answer: Answer) -> bool:
    return _LOST.search(answer.err.decode("utf-8", "replace")) is not None


def _run(command: list[str], timeout_s: float, limit_bytes: int, stdin: IO[bytes] | None) -> Answer:
    """Run a program, with a deadline and a limit to what is kept of both of its outputs."""
    try:
        process = subprocess.Popen(
            command, stdin=stdin or subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise DeviceError("adb cannot be called", where=command[0], found=str(error)) from error
    kept: dict[str, bytearray] = {"out": bytearray(), "err": bytearray()}
    end_s = time.monotonic() + timeout_s
    try:
        with selectors.DefaultSelector() as waiting:
            for name, pipe in (("out", process.stdout), ("err", process.stderr)):
                waiting.register(pipe, selectors.EVENT_READ, name)  # type: ignore[arg-type] # both are pipes
            while waiting.get_map():
                ready = waiting.select(max(0.0, end_s - time.monotonic()))
                if not ready:
                    raise DeviceError(
                        "the device does not answer", where=_called(command),
                        expected=f"an answer within {timeout_s:g} s", found=_shown(bytes(kept["out"])) or "nothing",
                        fix="look whether the phone is awake; unplug it and plug it in again",
                    )  # fmt: skip
                for key, _ in ready:
                    part = os.read(key.fd, 1 << 16)
                    if not part:
                        waiting.unregister(key.fileobj)
                    kept[key.data] += part
                if max(map(len, kept.values())) > limit_bytes:
                    raise DeviceError(
                        "the device answers without end", where=_called(command),
                        expected=f"at most {limit_bytes:,} bytes", found=_shown(bytes(kept["out"])),
                        fix="run the same in `adb shell`; if it is the phone, restart it",
                    )  # fmt: skip
        status = process.wait(max(1.0, end_s - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise DeviceError("adb does not end", where=_called(command)) from error
    finally:
        end_group(process)
    return Answer(status, bytes(kept["out"]), bytes(kept["err"]))


def _called(command: list[str]) -> str:
    """A command as one short line."""
    text = " ".join(shlex.join(command[:8]).split())
    return text if len(text) <= 120 else text[:119] + "…"


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a group, with all that it started, and close its pipes."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.wait()
