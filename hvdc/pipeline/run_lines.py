"""Lines of another process, read as they come, whatever this process does meanwhile."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator

READ_BYTES = 1 << 16
LINE_BYTES = 1 << 14
"""What is longer is cut: a driver may print without ever ending a line."""

WAITING_BYTES = 4 << 20
"""Of lines that nobody has taken; of more than that the oldest are left out."""


class Lines:
    """Iterate to get each line of ``fd`` without its end, until it is closed by those who write; they never wait.

    ``left_out``: how many lines nobody took in time. The descriptor stays the caller's, and open until `join` is True.
    """

    def __init__(self, fd: int) -> None:
        self.left_out = 0
        self._waiting: deque[str] = deque()
        self._bytes = 0
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(fd,), name="lines", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[str]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    return
                line = self._waiting.popleft()
                self._bytes -= len(line)
            yield line

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of what is written, but no longer than this; what comes later is not iterated over.

        False if it has not ended: the descriptor is still read.
        """
        self._thread.join(timeout_s)
        with self._changed:
            self._ended = True
        return not self._thread.is_alive()

    def _read(self, fd: int) -> None:
        part = b""
        try:
            while some := os.read(fd, READ_BYTES):
                *lines, part = (part + some).split(b"\n")
                part = part[: LINE_BYTES + 1]
                self._put(lines)
        except OSError:  # what can be read no more has ended
            pass
        self._put([part] if part else [], ended=True)

    def _put(self, lines: list[bytes], *, ended: bool = False) -> None:
        with self._changed:
            for raw in lines:
                line = raw[:LINE_BYTES].decode("utf-8", "replace") + ("…" if len(raw) > LINE_BYTES else "")
                self._waiting.append(line)
                self._bytes += len(line)
            while self._bytes > WAITING_BYTES:
                self._bytes -= len(self._waiting.popleft())
                self.left_out += 1
            self._ended = self._ended or ended
            self._changed.notify_all()
