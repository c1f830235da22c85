"""adb's transport: packets, and streams that share one connection."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable

VERSION = 0x01000001
"""From this version on, packets have no checksum."""
MAX_PAYLOAD = 1 << 20
HEADER = struct.Struct("<6I")


def command(name: bytes) -> int:
    return int.from_bytes(name, "little")


CNXN, OPEN, OKAY, WRTE, CLSE, AUTH = map(command, (b"CNXN", b"OPEN", b"OKAY", b"WRTE", b"CLSE", b"AUTH"))
QUEUE_BYTES = 8 * MAX_PAYLOAD
"""A stream whose reader is this far behind does not acknowledge until it has caught up."""


class Stream:
    """One of a connection's streams. What comes is queued; of what goes, one packet is under way at a time."""

    def __init__(self, connection: Connection, local: int, remote: int) -> None:
        self.connection, self.local, self.remote = connection, local, remote
        self._queue = bytearray()
        self._changed = threading.Condition()
        self._may_send, self._owes_okay = True, False
        self.is_closed = False
        self.when_closed: Callable[[], None] = lambda: None

    def accept(self) -> None:
        self.connection.send(OKAY, self.local, self.remote)

    def feed(self, data: bytes | bytearray) -> None:
        with self._changed:
            self._queue += data
            self._changed.notify_all()
            self._owes_okay = len(self._queue) >= QUEUE_BYTES
            later = self._owes_okay
        if not later:
            self.accept()

    def read(self, size: int) -> bytearray:
        """Exactly so many bytes. Raises EOFError when the stream ends before."""
        with self._changed:
            while len(self._queue) < size and not self.is_closed:
                self._changed.wait()
            if len(self._queue) < size:
                raise EOFError
            data = self._queue[:size]
            del self._queue[:size]
            caught_up = self._owes_okay and len(self._queue) < QUEUE_BYTES // 2
            self._owes_okay = self._owes_okay and not caught_up
        if caught_up:
            self.accept()
        return data

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """All of it, in packets. Raises EOFError when the stream is closed."""
        view, size = memoryview(data), self.connection.max_payload
        for start in range(0, len(view), size):
            with self._changed:
                while not self._may_send and not self.is_closed:
                    self._changed.wait()
                if self.is_closed:
                    raise EOFError
                self._may_send = False
            self.connection.send(WRTE, self.local, self.remote, view[start : start + size])

    def acknowledged(self) -> None:
        with self._changed:
            self._may_send = True
            self._changed.notify_all()

    def close(self, *, tell: bool = True) -> None:
        """End it; ``tell``: the other end, after it has acknowledged what was sent last."""
        with self._changed:
            if self.is_closed:
                return
            end_s = time.monotonic() + 5
            while tell and not self._may_send and time.monotonic() < end_s:
                self._changed.wait(0.1)
            self.is_closed = True
            self._changed.notify_all()
        if tell:
            self.connection.send(CLSE, self.local, self.remote)
        self.connection.streams.pop(self.local, None)
        self.when_closed()


class Connection:
    """One host. ``banner``: what the device says about itself. ``serve``: handles a stream that the host opens.
    ``admits``: whether the host is trusted. ``received``: told of each payload; False cuts the link."""

    def __init__(
        self, link: socket.socket, banner: Callable[[], bytes], serve: Callable[[Stream, str], None],
        admits: Callable[[], bool], received: Callable[[int], bool],
    ) -> None:  # fmt: skip
        self.streams: dict[int, Stream] = {}
        self.max_payload = 4096
        self._link, self._banner, self._serve = link, banner, serve
        self._admits, self._received = admits, received
        self._lock = threading.Lock()
        self._next, self._version = 1, VERSION
        self._is_admitted = False

    def send(self, what: int, first: int, second: int, data: bytes | memoryview = b"") -> None:
        total = 0 if self._version >= VERSION else sum(bytes(data)) & 0xFFFFFFFF
        head = HEADER.pack(what, first, second, len(data), total, what ^ 0xFFFFFFFF)
        with self._lock, contextlib.suppress(OSError):
            self._link.sendall(head)
            if len(data):
                self._link.sendall(data)

    def run(self) -> None:
        """Until the host goes away, or the link is cut."""
        try:
            while True:
                what, first, second, size, _, magic = HEADER.unpack(self._take(HEADER.size))
                if magic != what ^ 0xFFFFFFFF or size > MAX_PAYLOAD:
                    return
                data = self._take(size)
                if not self._received(size):
                    return
                self._handle(what, first, second, data)
        except (EOFError, OSError):
            pass
        finally:
            self.cut()
            for stream in list(self.streams.values()):
                stream.close(tell=False)

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()

    def _take(self, size: int) -> bytearray:
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            count = self._link.recv_into(view[got:])
            if not count:
                raise EOFError
            got += count
        return data

    def _handle(self, what: int, first: int, second: int, data: bytearray) -> None:
        if what == CNXN:
            self._version, self.max_payload = min(first, VERSION), min(second, MAX_PAYLOAD)
            self._admit()
        elif what == AUTH:
            # A signature (2) is of a key that the phone does not know; a key (3) is shown to whoever holds the phone.
            self._admit() if first == 3 and self._admits() else self._ask()
        elif not self._is_admitted:
            return
        elif what == OPEN:
            stream = Stream(self, self._next, first)
            self.streams[stream.local] = stream
            self._next += 1
            name = bytes(data).rstrip(b"\0").decode("utf-8", "surrogateescape")
            threading.Thread(target=self._serve, args=(stream, name), daemon=True).start()
        elif (held := self.streams.get(second)) is None:
            if what != CLSE:
                self.send(CLSE, 0, first)
        elif what == OKAY:
            held.acknowledged()
        elif what == WRTE:
            held.feed(data)
        elif what == CLSE:
            self.send(CLSE, held.local, held.remote)  # as adbd does
            held.close(tell=False)

    def _admit(self) -> None:
        if not self._admits():
            self._ask()
            return
        self._is_admitted = True
        self.send(CNXN, VERSION, MAX_PAYLOAD, self._banner())

    def _ask(self) -> None:
        self.send(AUTH, 1, 0, bytes(20))
