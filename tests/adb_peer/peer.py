"""The peer: a port on loopback where a host's adb finds a phone."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

from tests.adb_peer.faults import Faults
from tests.adb_peer.phone import Phone
from tests.adb_peer.shell import Shell
from tests.adb_peer.sync import Sync
from tests.adb_peer.wire import CLSE, Connection, Stream

BUFFER_BYTES = 4 << 20


class Peer:
    """Listens while its block runs. ``serial`` is what ``adb connect`` takes and then calls the device."""

    def __init__(self, phone: Phone, port: int = 0) -> None:
        self.phone = phone
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.serial = f"127.0.0.1:{self.port}"
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def faults(self) -> Faults:
        return self.phone.faults

    def __enter__(self) -> Peer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped = True
        with contextlib.suppress(OSError):  # wakes the thread that accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._thread.join(5)

    def cut(self, away_s: float = 0.0) -> None:
        """Pull the cable, and plug it in again so much later."""
        self.faults.leave(away_s)
        with self._lock:
            for connection in self._connections:
                connection.cut()

    def _accept(self) -> None:
        while not self._stopped:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            if self.faults.is_away():
                link.close()
                continue
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            faults = self.faults
            connection = Connection(link, self.phone.banner, self._serve, faults.admits, faults.receive)
            threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection: Connection) -> None:
        with self._lock:
            self._connections.add(connection)
        try:
            connection.run()
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _serve(self, stream: Stream, service: str) -> None:
        kind, _, rest = service.partition(":")
        words = kind.split(",")
        try:
            if kind == "sync":
                stream.accept()
                Sync(self.phone, stream).run()
            elif words[0] in ("shell", "exec"):
                stream.accept()
                has_packets = words[0] == "shell" and "v2" in words and not self.faults.old_shell
                Shell(self.phone, stream, has_packets=has_packets).run(rest)
            else:
                stream.connection.send(CLSE, 0, stream.remote)
        except EOFError:
            pass
        finally:
            stream.close()
