"""The host's end in tests: the real adb's server, on a port of its own, which ends with the process that started it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from hvdc.deploy.adb import Adb
from hvdc.deploy.adb_program import AdbProgram

_SET_DEATH_SIGNAL = 1


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


class AdbServer:
    """Runs while its block does. ``home``: a folder for adb's keys, which are not this user's."""

    def __init__(self, program: AdbProgram, home: Path) -> None:
        self.program = program
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.adb = Adb(program, port=self.port)
        self._process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """For processes that use this server. It looks for no emulators on this machine's other ports."""
        own = {
            "HOME": str(self.home),
            "ANDROID_ADB_SERVER_PORT": str(self.port),
            "ADB_LOCAL_TRANSPORT_MAX_PORT": "5554",
        }
        kept = {name: value for name, value in os.environ.items() if name not in ("ANDROID_SERIAL", "ADB_TRACE")}
        return {**kept, **own, "ADB_MDNS": "0", "TMPDIR": str(self.home)}

    def __enter__(self) -> AdbServer:
        self._process = subprocess.Popen(
            [self.program.path, "-P", str(self.port), "nodaemon", "server"], env=self.environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=_die_with_parent,
        )  # fmt: skip
        end_s = time.monotonic() + 20
        while time.monotonic() < end_s:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return self
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        self.__exit__(None, None, None)
        raise AssertionError(f"adb's server does not start on port {self.port}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def connect(self, serial: str) -> None:
        """What a person does for a phone on the network."""
        self.adb.run("connect", serial, timeout_s=20)

    def disconnect(self, serial: str) -> None:
        self.adb.run("disconnect", serial, timeout_s=20)
