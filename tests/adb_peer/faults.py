"""What goes wrong with a phone: switches that a test sets, before or while the peer is in use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

SLACK_S = 0.01
"""A link's buffers hold so much: sleeping is not exact."""


@dataclass
class Faults:
    """Counts of bytes are of payload that came from the host since the peer was made, or since the last cut."""

    full_at_bytes: int | None = None
    """Writes fail for want of space once files hold so many more bytes."""
    hidden: bool = False
    """... and asked for its free space, it does not say so."""
    full_in_silence: bool = False
    """... and the device says that all went well, as some do."""
    cut_at_bytes: list[int] = field(default_factory=list)
    """The link is cut after the first of so many bytes, then after the second of so many more, …"""
    away_s: float = 0.0
    """For so long after a cut nothing answers."""
    corrupt_at_byte: int | None = None
    """This byte of what is pushed arrives as another one, once."""
    bytes_per_s: float | None = None
    """A slow link: time in which nothing was sent is not made up for."""
    is_trusted: bool = True
    """False: nobody accepts this computer on the phone."""
    missing: frozenset[str] = frozenset()
    """Programs that the phone does not have."""
    old_shell: bool = False
    """No shell protocol 2: no exit status, and standard error mixed with standard output."""
    read_only: bool = False
    """Nothing can be written."""
    clock_off_s: int = 0
    """The phone's clock is wrong by so much."""
    answer: Callable[[str], bytes | None] | None = None
    """Answers a shell's command in place of the phone; None: the phone answers. Nothing at all: ``b""``."""
    leaves_running: bool = False
    """What runs goes on after a cut, as where a device's daemon tells the shell alone."""
    endless: str | None = None
    """A shell's command that holds this text is answered without end."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._received = 0
        self._written = 0
        self._free_s = 0.0
        self._away_until_s = 0.0
        self.cuts = 0

    def receive(self, size: int) -> bool:
        """So many bytes came over the link; False: it is cut now."""
        with self._lock:
            self._received += size
            if self.bytes_per_s:
                now_s = time.monotonic()
                self._free_s = max(self._free_s, now_s - SLACK_S) + size / self.bytes_per_s
                time.sleep(max(0.0, min(self._free_s - now_s, 1.0)))
            if self.cut_at_bytes and self._received >= self.cut_at_bytes[0]:
                del self.cut_at_bytes[0]
                self._received = 0
                self.leave(self.away_s)
                self.cuts += 1
                return False
        return True

    def cut_after(self, *sizes: int, away_s: float = 0.0) -> None:
        """Cut the link so many bytes from now, and then so many after that, …"""
        with self._lock:
            self._received, self.cut_at_bytes, self.away_s, self.cuts = 0, list(sizes), away_s, 0

    def leave(self, away_s: float) -> None:
        self._away_until_s = time.monotonic() + away_s

    def admits(self) -> bool:
        return self.is_trusted

    def is_away(self) -> bool:
        return time.monotonic() < self._away_until_s

    def room(self, size: int) -> int:
        """How many of so many bytes find room."""
        with self._lock:
            left = size if self.full_at_bytes is None else max(0, min(size, self.full_at_bytes - self._written))
            self._written += left
            return left

    def free_bytes(self) -> int | None:
        """Bytes that still find room; None: no limit."""
        return None if self.full_at_bytes is None else max(0, self.full_at_bytes - self._written)

    def corrupt(self, offset: int, data: bytearray) -> None:
        """Change the byte that is to be changed, if it is among these."""
        at = self.corrupt_at_byte
        if at is not None and offset <= at < offset + len(data):
            data[at - offset] ^= 0x40
            self.corrupt_at_byte = None
