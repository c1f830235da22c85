"""Pieces that arrived are hashed on the device and put in place, while others are sent.

One script handles all that have arrived since the last one, so that small files cost little.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from hvdc.deploy.adb import quoted
from hvdc.deploy.errors import DeviceError
from hvdc.deploy.layout import PART

OUTSTANDING_BYTES, OUTSTANDING = 256 << 20, 64
"""So much is sent at most that is not verified yet."""
ATTEMPTS = 4
"""How often a piece may arrive damaged."""
STOP_S = 15.0
"""So long at most an interrupt waits for an answer that is due."""
EXECUTABLE, PLAIN = "755", "644"
"""Modes of files."""
SLOWEST_HASH_BYTES_S = 8 << 20
"""A device that hashes more slowly counts as one that does not answer."""

_ANSWER = re.compile(r"(good|bad) ([0-9a-f]{64}) ?(.*)")

_VERIFY = f"""
look() {{
  while [ $# -gt 0 ]; do
    p=$1{PART}
    if [ ! -f "$p" ]; then p=$2; fi
    files="$files $p"
    shift 4
  done
}}
judge() {{
  while [ $# -gt 0 ]; do
    p=$1{PART}
    if [ ! -f "$p" ]; then p=$2; fi
    case "$sums" in
      *"$line$3 "?"$p$line"*)
        good="$good $3 $p $2"
        if [ "$4" = {EXECUTABLE} ]; then programs="$programs $p"; else data="$data $p"; fi;;
      *)
        bytes=0 hash=
        if [ -f "$p" ]; then bytes=$(stat -c %s "$p") hash=$(sha256sum < "$p"); fi
        echo "bad $3 $bytes bytes, SHA-256 ${{hash%% *}}"
        rm -f "$p";;
    esac
    shift 4
  done
}}
place() {{
  while [ $# -gt 0 ]; do
    if [ "$2" != "$3" ]; then mv -f "$2" "$3"; fi
    echo "good $1"
    shift 3
  done
}}
files= good= programs= data=
line='
'
look "$@"
sums="$line$(sha256sum $files 2>/dev/null || true)$line"
judge "$@"
if [ -n "$data" ]; then chmod {PLAIN} $data; fi
if [ -n "$programs" ]; then chmod {EXECUTABLE} $programs; fi
place $good
"""
"""Of each four words, what arrived (1) is renamed (2) if its hash is right (3), with a mode (4); or, where that was
done before a cut, what it became is looked at. Starting a program takes as long as hashing megabytes: one hashes all.
No name has a letter in it that a shell interprets."""


@dataclass(frozen=True)
class Arrived:
    """A piece on the device. ``part``: its name without ``.part``. ``place``: where it goes. ``name``: for people."""

    sha256: str
    bytes: int
    part: str
    place: str
    mode: str
    name: str


@dataclass(frozen=True)
class Step:
    """A script that runs after what was added before it. ``done``: called then."""

    script: str
    what: str
    timeout_s: float
    done: Callable[[], None]


class Verifier:
    """A thread that verifies in the order of adding.

    ``run``: a script on the device, whatever becomes of the link. ``send_again``: called in the thread. ``good``: told
    of each piece that is in place. Leaving the block waits for the thread, which stops early after an error, and at
    once after an interrupt: ``give_up`` ends what ``run`` waits for.
    """

    def __init__(
        self,
        run: Callable[[str, str, float], str],
        send_again: Callable[[Arrived, str], None],
        good: Callable[[Arrived], None],
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._run, self._send_again, self._good, self._give_up = run, send_again, good, give_up
        self._waiting: deque[Arrived | Step] = deque()
        self._open: list[Arrived] = []
        self._changed = threading.Condition()
        self._is_done = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Verifier:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._finish(is_early=error is not None)
        if isinstance(error, KeyboardInterrupt):
            self._give_up()
        try:
            self._thread.join(STOP_S if isinstance(error, KeyboardInterrupt) else None)
        except KeyboardInterrupt:
            self._finish(is_early=True)
            self._give_up()
            self._thread.join(STOP_S)
            raise
        if error is None and self._error is not None:
            raise self._error

    def _finish(self, *, is_early: bool) -> None:
        """Tell the thread to end, when nothing is left to do or at once."""
        with self._changed:
            if is_early:
                self._waiting.clear()
            self._is_done = True
            self._changed.notify_all()

    def add(self, work: Arrived | Step) -> None:
        """Waits while too much is open. Raises what an earlier piece has met."""
        with self._changed:
            while self._error is None and self._is_full():
                self._changed.wait()
            self._raise()
            if isinstance(work, Arrived):
                self._open.append(work)
            self._waiting.append(work)
            self._changed.notify_all()

    def wait_for(self, sha256: str) -> None:
        """Until no piece with this hash is open: its name on the device is free then."""
        with self._changed:
            while self._error is None and any(piece.sha256 == sha256 for piece in self._open):
                self._changed.wait()
            self._raise()

    def _is_full(self) -> bool:
        return len(self._open) >= OUTSTANDING or sum(piece.bytes for piece in self._open) >= OUTSTANDING_BYTES

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self._waiting and not self._is_done:
                        self._changed.wait()
                    if not self._waiting:
                        return
                    batch = self._next()
                if isinstance(batch, Step):
                    self._run(batch.script, batch.what, batch.timeout_s)
                    batch.done()
                else:
                    self._verify(batch)
        except BaseException as error:  # for the thread that adds
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _next(self) -> list[Arrived] | Step:
        batch: list[Arrived] = []
        while self._waiting:
            work = self._waiting[0]
            if isinstance(work, Step):
                return batch or self._taken()
            self._waiting.popleft()
            batch.append(work)
        return batch

    def _taken(self) -> Step:
        work = self._waiting.popleft()
        if not isinstance(work, Step):
            raise TypeError
        return work

    def _verify(self, batch: list[Arrived]) -> None:
        left = batch
        for attempt in range(ATTEMPTS):
            said = self._ask(left)
            for piece in left:
                if said.get(piece.sha256) == "":
                    self._good(piece)
            left = [piece for piece in left if said.get(piece.sha256) != ""]
            if not left:
                break
            if attempt + 1 == ATTEMPTS:
                _refuse(left[0], said.get(left[0].sha256, "nothing"))
            for piece in left:
                self._send_again(piece, said.get(piece.sha256, "no answer"))
        with self._changed:
            done = set(map(id, batch))
            self._open = [piece for piece in self._open if id(piece) not in done]
            self._changed.notify_all()

    def _ask(self, batch: list[Arrived]) -> dict[str, str]:
        """SHA-256 -> what is wrong; ``""`` for a piece that is in place."""
        words = [word for piece in batch for word in (piece.part, piece.place, piece.sha256, piece.mode)]
        size = sum(piece.bytes for piece in batch)
        said = self._run(f"set -- {quoted(words)}\n{_VERIFY}", "verifying what arrived", hash_s(size))
        answers = (_ANSWER.fullmatch(line.strip()) for line in said.splitlines())
        return {match[2]: "" if match[1] == "good" else match[3] or "?" for match in answers if match}


def hash_s(size: int) -> float:
    """Deadline of hashing so many bytes on a device, in seconds."""
    return 60.0 + size / SLOWEST_HASH_BYTES_S


def _refuse(piece: Arrived, said: str) -> None:
    word = said.partition(" ")[0]
    full = word.isdigit() and int(word) < piece.bytes
    raise DeviceError(
        "the device keeps less than it was sent, and says nothing: it is full" if full
        else "what arrives on the device is not what was sent, again and again",
        where=piece.name, expected=f"{piece.bytes} bytes, SHA-256 {piece.sha256}", found=said,
        fix="make room on the device and run the same command again: what arrived is kept" if full
        else "try another cable or port; if the file is being written now, wait until it is done",
    )  # fmt: skip
