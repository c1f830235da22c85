"""The service ``sync:``: files come and go, as Android's adbd serves it, in both versions of its records."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from pathlib import Path
from typing import BinaryIO

from tests.adb_peer.phone import Phone
from tests.adb_peer.wire import Stream

CHUNK_BYTES = 1 << 16
NAME_BYTES = 1024
HEAD = struct.Struct("<4sI")
STAT_V1, STAT_V2 = struct.Struct("<4s3I"), struct.Struct("<4sIQQIIIIQqqq")


class Sync:
    """Requests on one stream, until it says QUIT."""

    def __init__(self, phone: Phone, stream: Stream) -> None:
        self._phone, self._stream = phone, stream

    def run(self) -> None:
        while True:
            what, size = HEAD.unpack(self._stream.read(HEAD.size))
            if what == b"QUIT":
                return
            if size > NAME_BYTES:
                self._fail("path too long")
                return
            name = self._stream.read(size).decode("utf-8", "surrogateescape")
            if what == b"SEND":
                self._receive(name)
            elif what == b"RECV":
                self._send(name)
            elif what in (b"STAT", b"STA2", b"LST2"):
                self._stat(what, self._phone.place(name))
            elif what in (b"LIST", b"LIS2"):
                self._list(what == b"LIS2", self._phone.place(name))
            else:
                self._fail("unknown sync command")
                return

    def _fail(self, why: str) -> None:
        self._stream.write(HEAD.pack(b"FAIL", len(why.encode())) + why.encode())

    def _stat(self, what: bytes, path: Path) -> None:
        try:
            found = path.lstat() if what != b"STA2" else path.stat()
        except OSError as error:
            number = error.errno or errno.EIO
            empty = STAT_V1.pack(what, 0, 0, 0) if what == b"STAT" else STAT_V2.pack(what, number, *[0] * 10)
            self._stream.write(empty)
            return
        if what == b"STAT":
            facts = (found.st_mode, min(found.st_size, 0xFFFFFFFF), int(found.st_mtime))
            self._stream.write(STAT_V1.pack(what, *facts))
        else:
            self._stream.write(_stat_v2(what, found))

    def _list(self, is_v2: bool, path: Path) -> None:
        with contextlib.suppress(OSError):
            for entry in sorted(path.iterdir()):
                found, name = entry.lstat(), os.fsencode(entry.name)
                if is_v2:
                    self._stream.write(_stat_v2(b"DNT2", found) + struct.pack("<I", len(name)) + name)
                else:
                    facts = (found.st_mode, found.st_size & 0xFFFFFFFF, int(found.st_mtime), len(name))
                    self._stream.write(struct.pack("<4s4I", b"DENT", *facts) + name)
        self._stream.write(
            struct.pack("<4sIQQIIIIQqqqI", b"DONE", *[0] * 12) if is_v2 else struct.pack("<4s4I", b"DONE", 0, 0, 0, 0)
        )

    def _receive(self, request: str) -> None:
        name, _, mode = request.rpartition(",")
        path, faults = self._phone.place(name), self._phone.faults
        self._phone.when_sent(name)
        why, file = "", None
        try:
            if faults.read_only:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            file = path.open("wb", buffering=0)
        except OSError as error:
            why = error.strerror or str(error)
        try:
            why, when = self._take_data(file, why)
        except EOFError:
            if file is not None:  # as adbd does: what did not arrive whole does not stay
                file.close()
                path.unlink(missing_ok=True)
            raise
        if file is not None:
            file.close()
        if why and not (faults.full_in_silence and why == os.strerror(errno.ENOSPC)):
            path.unlink(missing_ok=True)
            self._fail(why)
            return
        path.chmod(int(mode) & 0o777)
        os.utime(path, (when + faults.clock_off_s,) * 2)
        self._stream.write(HEAD.pack(b"OKAY", 0))

    def _take_data(self, file: BinaryIO | None, why: str) -> tuple[str, int]:
        """All of a file's data, whatever becomes of it; returns what went wrong, and its time."""
        faults, offset = self._phone.faults, 0
        while True:
            what, size = HEAD.unpack(self._stream.read(HEAD.size))
            if what == b"DONE":
                return why, size
            if what != b"DATA" or size > CHUNK_BYTES:
                raise EOFError
            data = self._stream.read(size)
            faults.corrupt(self._phone.pushed_bytes, data)
            self._phone.pushed_bytes += size
            offset += size
            if file is None or why:
                continue
            room = faults.room(size)
            try:
                file.write(data[:room] if room < size else data)
            except OSError as error:
                why = error.strerror or str(error)
            if room < size:
                why = os.strerror(errno.ENOSPC)

    def _send(self, name: str) -> None:
        try:
            with self._phone.place(name).open("rb") as file:
                while data := file.read(CHUNK_BYTES):
                    self._stream.write(HEAD.pack(b"DATA", len(data)) + data)
            self._stream.write(HEAD.pack(b"DONE", 0))
        except OSError as error:
            self._fail(error.strerror or str(error))


def _stat_v2(what: bytes, found: os.stat_result) -> bytes:
    times = (int(found.st_atime), int(found.st_mtime), int(found.st_ctime))
    ids = (found.st_mode, found.st_nlink, found.st_uid, found.st_gid)
    return STAT_V2.pack(what, 0, found.st_dev & (2**64 - 1), found.st_ino, *ids, found.st_size, *times)
