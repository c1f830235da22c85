"""One process at a time changes a device's target folder."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time

from hvdc.deploy.adb import AdbDevice, quoted
from hvdc.deploy.errors import DeviceError, LinkError

HOLD = "held-by-this-hvdc"
LOCK_S = 10.0
"""After a cut link the device may take as long to notice that whoever held it is gone."""


class Lock:
    """A process on the device that holds a lock for as long as the link to it lasts."""

    def __init__(self, device: AdbDevice, path: str) -> None:
        self._device, self._path = device, path
        self._stack = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self.is_kept = True
        """False: the device has no ``flock``, and nobody is kept out."""

    def take(self) -> None:
        """Raises DeviceError: another process holds it, and goes on to."""
        end_s = time.monotonic() + LOCK_S
        while not self._try():
            if time.monotonic() > end_s:
                raise DeviceError(
                    "another hvdc is changing this device now", where=f"{self._device.serial}: {self._path}",
                    fix="wait for it, and run the same command again",
                )  # fmt: skip
            time.sleep(0.5)

    def keep(self) -> None:
        """Take it again, if a cut link has ended it. Raises as `take`; LinkError."""
        if self.is_kept and (self._process is None or self._process.poll() is not None):
            self.release()
            self.take()

    def release(self) -> None:
        self._stack.close()
        self._process = None

    def _try(self) -> bool:
        path = quoted([self._path])
        script = (
            f"command -v flock >/dev/null 2>&1 || {{ echo unkept; exit 0; }}\n"
            f"( flock -n 9 || {{ echo busy; exit 0; }}; echo {HOLD}; cat >/dev/null ) 9>>{path}"
        )
        process = self._stack.enter_context(self._device.stream("sh", "-c", script))
        said = _first_line(process, timeout_s=15)
        if said == HOLD:
            self._process = process
            return True
        self.release()
        if said == "unkept":
            self.is_kept = False
            return True
        if said == "busy":
            return False
        raise LinkError("the device was lost", where=self._device.serial, found=said or "no answer",
                        fix="look at the cable, and run the same command again")  # fmt: skip


def _first_line(process: subprocess.Popen[bytes], timeout_s: float) -> str:
    """Its first line; ``""`` where none comes in time."""
    lines: list[bytes] = []

    def read() -> None:
        if process.stdout is not None:
            with contextlib.suppress(OSError, ValueError):
                lines.append(process.stdout.readline(4096))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(timeout_s)
    return lines[0].decode("utf-8", "replace").strip() if lines else ""
