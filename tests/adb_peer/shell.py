"""The services ``shell:``, ``shell,v2:`` and ``exec:``: commands that run in the folder that plays the phone."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import threading
from typing import IO

from tests.adb_peer.phone import Phone
from tests.adb_peer.wire import Stream

STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)
PACKET = struct.Struct("<BI")


class Shell:
    """One command on one stream."""

    def __init__(self, phone: Phone, stream: Stream, *, has_packets: bool) -> None:
        self._phone, self._stream, self._has_packets = phone, stream, has_packets
        self._lock = threading.Lock()

    def run(self, command: str) -> None:
        faults = self._phone.faults
        if faults.endless is not None and faults.endless in command:
            while True:
                self._say(STDOUT, b"y\n" * 4096)
        made_up = faults.answer(command) if faults.answer is not None else None
        if made_up is not None:
            self._say(STDOUT, made_up)
            self._end(0)
            return
        mixed = not self._has_packets
        process = self._phone.start(command, mixed=mixed)
        if not faults.leaves_running:
            self._stream.when_closed = lambda: _kill(process)  # as adbd does
        if self._stream.is_closed and not faults.leaves_running:
            _kill(process)
        threading.Thread(target=self._feed, args=(process,), daemon=True).start()
        pumps = [threading.Thread(target=self._pump, args=(process.stdout, STDOUT), daemon=True)]
        if process.stderr is not None:
            pumps.append(threading.Thread(target=self._pump, args=(process.stderr, STDERR), daemon=True))
        for pump in pumps:
            pump.start()
        for pump in pumps:
            pump.join()
        status = process.wait()
        self._end(status & 0xFF if status >= 0 else 128 - status)

    def _say(self, kind: int, data: bytes) -> None:
        with self._lock:
            self._stream.write(PACKET.pack(kind, len(data)) + data if self._has_packets else data)

    def _end(self, status: int) -> None:
        if self._has_packets:
            with contextlib.suppress(EOFError):
                self._say(EXIT, bytes([status & 0xFF]))

    def _pump(self, source: IO[bytes], kind: int) -> None:
        with contextlib.suppress(EOFError):
            while data := os.read(source.fileno(), 1 << 16):
                self._say(kind, data)

    def _feed(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(EOFError, OSError, ValueError):
            while self._has_packets:
                kind, size = PACKET.unpack(self._stream.read(PACKET.size))
                data = self._stream.read(size)
                if kind == STDIN:
                    process.stdin.write(data)
                    process.stdin.flush()
                elif kind == CLOSE_STDIN:
                    break
            while not self._has_packets:
                process.stdin.write(self._stream.read(1))
                process.stdin.flush()
        with contextlib.suppress(OSError):
            process.stdin.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGHUP)
