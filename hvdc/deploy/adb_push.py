"""``adb push``, with its progress where that is wanted: it counts only on a terminal, so that it gets one.

Counting costs both ends about a sixth of a fast link: adb writes a line for every 64 KiB.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable

from hvdc.deploy.errors import DeviceError, LinkError

_PERCENT = re.compile(rb"\[\s*(\d{1,3})%\] \S*?([^/\s]{1,255}?)(?:\x1b|\s|$)")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LINE_BYTES = 1024
"""adb writes a line for every 64 KiB: the last one of what was read says it all."""
_TAIL_BYTES = 4096


def run_transfer(
    command: list[str], progress: Callable[[str, float], None] | None, timeout_s: float, silence_s: float
) -> tuple[int, str]:
    """Run a transfer; returns its status and what it said. ``progress``: told a file's name and its share that is done;
    None: nobody is, and it says nothing until it has ended.

    Raises LinkError when it says nothing for ``silence_s``; DeviceError when it is not done within ``timeout_s``. Newer
    versions of adb show no shares here.
    """
    ours, its = os.pipe() if progress is None else pty.openpty()
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=its, stderr=subprocess.PIPE, start_new_session=True,
            env={**os.environ, "TERM": "xterm"},
        )  # fmt: skip
    finally:
        os.close(its)
    said: dict[str, bytes] = {"out": b"", "err": b""}
    begun_s = heard_s = time.monotonic()
    try:
        with selectors.DefaultSelector() as waiting:
            waiting.register(ours, selectors.EVENT_READ, "out")
            waiting.register(process.stderr, selectors.EVENT_READ, "err")  # type: ignore[arg-type] # it is a pipe
            while waiting.get_map():
                ready = waiting.select(1.0)
                now_s = time.monotonic()
                if now_s - begun_s > timeout_s:
                    raise DeviceError("copying takes too long", expected=f"{timeout_s:g} s", fix="look at the cable")
                if now_s - heard_s > silence_s:
                    raise LinkError(
                        "copying does not go on", found=f"nothing for {silence_s:g} s", fix="look at the cable"
                    )
                for key, _ in ready:
                    try:
                        part = os.read(key.fd, 1 << 16)
                    except OSError:  # the terminal's other end was closed
                        part = b""
                    if not part:
                        waiting.unregister(key.fileobj)
                        continue
                    said[key.data] = (said[key.data] + part)[-_TAIL_BYTES:]
                    heard_s = now_s
                    if progress is not None:
                        _tell(progress, part[-_LINE_BYTES:])
        status = process.wait(10)
    except subprocess.TimeoutExpired:
        status = -1
    finally:
        os.close(ours)
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
    return status, _reason(said["err"] + b"\n" + said["out"])


def _tell(progress: Callable[[str, float], None], lines: bytes) -> None:
    for percent, name in _PERCENT.findall(lines)[-1:]:
        progress(name.decode("utf-8", "replace"), min(int(percent), 100) / 100)


def _reason(data: bytes) -> str:
    """The first error that adb names among its lines, else the last line."""
    text = _ESCAPES.sub("", data.decode("utf-8", "replace"))
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    errors = [line for line in lines if line.startswith("adb: ")]
    return (errors or lines[-1:] or [""])[0][:600]
