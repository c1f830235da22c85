"""A version's files onto a device: only what is not there yet, in pieces that are verified there.

A piece is pushed under the name ``SHA256.part``, hashed on the device, and renamed: a file of one piece into the new
version, pieces of a larger one to be joined there. While one piece is hashed there, the next is sent. After a cut link
the device is waited for, and every step may be repeated.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hvdc.deploy.adb import quoted
from hvdc.deploy.found import Found
from hvdc.deploy.layout import NEW, PART
from hvdc.deploy.package import Chunk, Item, Package
from hvdc.deploy.patience import LOSSES, Patience
from hvdc.deploy.store import Store
from hvdc.deploy.todo import Copy, Todo
from hvdc.deploy.verifier import EXECUTABLE, PLAIN, Arrived, Step, Verifier, hash_s
from hvdc.progress import Progress, Silent

REUSED_BYTES, HASHED_BYTES = 256 << 20, 512 << 20
"""Of files that one script copies or hashes on the device."""
SCRIPT_LETTERS = 30_000
"""Of commands that are sent at once; adb takes 65,535."""
SMALLEST_GROUP_BYTES, LARGEST_GROUP_BYTES, GROUP = 32 << 20, 256 << 20, 64
"""What one call of adb sends: starting one takes as long as some megabytes."""
SHARE_OF_REST = 1 / 3
"""Of what is left to send, in one call: nothing is sent while the last one is verified, so that it is small."""
SLOWEST_LINK_BYTES_S = 0.5e6
BLOCK_BYTES = 1 << 20
COUNTED_S = 1.0
"""Of a group that takes less, by the rate of the one before, nobody needs to see shares."""


@dataclass
class Sent:
    """``bytes``: that crossed the link for pieces that arrived; ``again``: pieces that were sent more than once;
    ``copied_bytes``: of pieces that were found in other versions' files, and are what their list says."""

    bytes: int = 0
    chunks: int = 0
    again: int = 0
    copied_bytes: int = 0
    seconds: float = 0.0


class Pusher:
    """Sends a package into ``NAME/VERSION.new``."""

    def __init__(
        self, store: Store, name: str, package: Package, patience: Patience, progress: Progress,
        say: Callable[[str], None], *, link: bool,
    ) -> None:  # fmt: skip
        self.store, self.device, self.package = store, store.device, package
        self.name, self.new = name, store.layout.version(name, package.version) + NEW
        self.sent = Sent()
        self._patience, self._progress, self._say, self._link = patience, progress, say, link
        self._unverified: dict[str, int] = {}
        self._pieces: dict[str, tuple[Item, Chunk]] = {}
        self._copies: dict[str, Copy] = {}
        self._uses: Counter[str] = Counter()
        self._rate_bytes_s = 0.0

    def prepare(self, found: Found, todo: Todo) -> None:
        """Make the folders of the new version."""
        self._unverified = dict(found.unverified)
        self._uses = Counter(c.sha256 for item, _ in todo.sent if len(item.chunks) > 1 for c in item.chunks)
        folders = sorted({f"{self.new}/{item.path.rpartition('/')[0]}" for item in self.package.items})
        new = quoted([self.new])  # with links in it, it is not what a deployment has left
        script = f'if [ -L {new} ] || [ -n "$(find {new} -type l 2>/dev/null)" ]; then rm -rf {new}; fi'
        make = f"{script}\n{self.store.made(*folders)}"
        self._patience(partial(self.store.run, make, "making folders on the device"))

    def reuse(self, linked: tuple[tuple[Item, str], ...]) -> None:
        """Files of the same contents, of another version: a link where the file system has them, else a copy."""
        lines, size = [], 0
        for item, path in linked:
            there = quoted([f"{self.new}/{item.path}"])  # removed first: toybox's `ln -f` leaves a third name of a file
            lines.append(f"rm -f {there} && {'ln' if self._link else 'cp'} {quoted([path])} {there} || rm -f {there}")
            size += item.bytes
            if size > REUSED_BYTES or sum(map(len, lines)) > SCRIPT_LETTERS or item is linked[-1][0]:
                self._patience(partial(self.store.run, "\n".join(lines), "reusing files on the device", 600))
                self._progress.advance(size)
                lines, size = [], 0

    def copy(self, copies: tuple[Copy, ...]) -> None:
        """Take pieces out of files of other versions. One that is not what its list says is sent."""
        self._copies |= {copy.chunk.sha256: copy for copy in copies}
        with self._verifier() as verifier:
            for copy in copies:
                item, chunk = copy.item, copy.chunk
                if self._unverified.pop(chunk.sha256, None) != chunk.bytes:
                    script = _carving(copy, self.store.layout.part(chunk.sha256) + PART)
                    self._patience(
                        partial(self.store.run, script, "copying a piece on the device", hash_s(chunk.bytes))
                    )
                self._pieces[chunk.sha256] = (item, chunk)
                verifier.add(self._arrived(item, chunk))
                self._progress.advance(chunk.bytes)
        self.sent.copied_bytes += sum(copy.chunk.bytes for copy in copies if copy.chunk.sha256 in self._copies)

    def push(self, wanted: tuple[tuple[Item, tuple[Chunk, ...]], ...]) -> None:
        """Send what is missing, and put every file together. Raises DeviceError, LinkError; OSError for a file here."""
        begun_s = time.monotonic()
        with self._verifier() as verifier:
            for group in _groups(wanted):
                chunks = [(item, chunk) for item, chunk in group if chunk is not None]
                for item, chunk in chunks:
                    verifier.wait_for(chunk.sha256)  # the same name on the device
                    self._pieces[chunk.sha256] = (item, chunk)
                self._send(chunks)
                for item, piece in group:
                    verifier.add(self._joining(item) if piece is None else self._arrived(item, piece))
        self.sent.seconds += time.monotonic() - begun_s

    def verify(self) -> list[Item]:
        """Hash every file on the device; returns those that are not what they must be."""
        return [item for bad in self._differing(self.new, "verifying on the device") for item in bad]

    def is_intact(self, folder: str) -> bool:
        """Whether a version in a folder has every file as it must be."""
        return not any(self._differing(folder, "hashing what is on the device"))

    def _differing(self, folder: str, what: str) -> Iterator[list[Item]]:
        batches = [*_batches(self.package.items)]
        self._progress.start(what, self.package.bytes, len(batches))
        try:
            for batch in batches:
                size = sum(item.bytes for item in batch)
                found = self._patience(partial(self.store.hashes, folder, [i.path for i in batch], hash_s(size)))
                yield [item for item in batch if found.get(item.path) != item.sha256]
                self._progress.advance(size)
                self._progress.item_done(batch[-1].path)
        finally:
            self._progress.finish()

    def put(self, sources: dict[str, Path]) -> None:
        """Small files of the new version, by their paths in it, which no list names. They appear in this order."""
        items = []
        for path, source in sources.items():
            digest, size = hashlib.sha256(source.read_bytes()).hexdigest(), source.stat().st_size
            items.append(Item(path, source, size, digest, (Chunk(0, size, digest),)))
        with_progress, self._progress = self._progress, Silent()
        try:
            self.push(tuple((item, item.chunks) for item in items))
        finally:
            self._progress = with_progress

    def discard(self, items: list[Item]) -> None:
        """Remove files of the new version."""
        paths = [f"{self.new}/{item.path}" for item in items]
        self._patience(lambda: self.store.run(f"rm -f {quoted(paths)}", "removing damaged files"))

    def _send(self, chunks: list[tuple[Item, Chunk]]) -> None:
        """One call of adb for all; after a cut link, for those that have not arrived."""
        there = {c.sha256 for _, c in chunks if self._unverified.pop(c.sha256, None) == c.bytes}
        self._progress.skip(sum(chunk.bytes for _, chunk in chunks if chunk.sha256 in there))
        left = {chunk.sha256: (item, chunk) for item, chunk in chunks if chunk.sha256 not in there}
        with tempfile.TemporaryDirectory(prefix="hvdc-deploy-") as place:
            files = {digest: _piece(Path(place), item, chunk) for digest, (item, chunk) in left.items()}
            told = {f"{digest}{PART}": _Told(self._progress, chunk.bytes) for digest, (_, chunk) in left.items()}
            is_again = False

            def work() -> None:
                nonlocal is_again
                if is_again:
                    sizes = self.store.part_sizes([*files])
                    for digest in [d for d in files if sizes.get(d) == left[d][1].bytes]:
                        del files[digest]
                is_again = True
                if files:
                    self._send_files([*files.values()], sum(left[digest][1].bytes for digest in files), told)

            self._patience(work, LOSSES * (1 + len(files)))  # each may bring one of them there
            for each in told.values():
                each.share(1.0)
        self.sent.bytes += sum(chunk.bytes for _, chunk in left.values())
        self.sent.chunks += len(left)

    def _send_files(self, files: list[Path], size: int, told: dict[str, _Told]) -> None:
        show = partial(_show, told) if size > self._rate_bytes_s * COUNTED_S else None
        begun_s, self._rate_bytes_s = time.monotonic(), 0.0
        self.device.push_all(files, self.store.layout.parts, show, silence_s=_silence_s(size))
        self._rate_bytes_s = size / (time.monotonic() - begun_s)

    def _verifier(self) -> Verifier:
        return Verifier(self._run, self._send_again, self._in_place, self._patience.give_up)

    def _run(self, script: str, what: str, timeout_s: float) -> str:
        return self._patience(partial(self.store.run, script, what, timeout_s))

    def _arrived(self, item: Item, chunk: Chunk) -> Arrived:
        part = self.store.layout.part(chunk.sha256)
        place = part if len(item.chunks) > 1 else f"{self.new}/{item.path}"
        return Arrived(chunk.sha256, chunk.bytes, part, place, _mode(item), f"{self.device.serial}: {item.path}")

    def _send_again(self, piece: Arrived, said: str) -> None:
        item, chunk = self._pieces[piece.sha256]
        copy = self._copies.pop(piece.sha256, None)
        if copy is not None:
            self._say(f"{copy.path}: a piece is not what its list says ({said}): it is sent")
            self.sent.bytes += chunk.bytes
            self.sent.chunks += 1
        else:
            self._say(f"{item.path}: what arrived is not what was sent ({said}): it is sent again")
            self.sent.again += 1
        with tempfile.TemporaryDirectory(prefix="hvdc-deploy-") as place:
            path = _piece(Path(place), item, chunk)
            self._patience(partial(self.device.push, path, piece.part + PART))

    def _in_place(self, piece: Arrived) -> None:
        item, _ = self._pieces[piece.sha256]
        if len(item.chunks) == 1:
            self._progress.item_done(item.path)

    def _joining(self, item: Item) -> Step:
        destination = f"{self.new}/{item.path}"
        self._uses.subtract(chunk.sha256 for chunk in item.chunks)
        parts = [self.store.layout.part(chunk.sha256) for chunk in item.chunks]
        done_with = sorted({self.store.layout.part(c.sha256) for c in item.chunks if self._uses[c.sha256] <= 0})
        joined, whole = quoted([destination + PART]), quoted([destination])
        script = f"""
if [ ! -f {whole} ]; then
  rm -f {joined}
  cat {quoted(parts)} > {joined} || {{ rm -f {joined}; exit 1; }}
  chmod {_mode(item)} {joined}
  mv -f {joined} {whole}
fi
rm -f {quoted(done_with)}
"""
        done = partial(self._progress.item_done, item.path)
        return Step(script, f"joining {item.path} on the device", hash_s(item.bytes), done)


class _Told:
    """Shares of a piece become bytes of the whole; what is sent again does not count again."""

    def __init__(self, progress: Progress, size: int) -> None:
        self._progress, self._size, self._done = progress, size, 0

    def share(self, share: float) -> None:
        done = int(share * self._size)
        if done > self._done:
            self._progress.advance(done - self._done)
            self._done = done


def _mode(item: Item) -> str:
    return EXECUTABLE if item.executable else PLAIN


def _show(told: dict[str, _Told], name: str, share: float) -> None:
    if name in told:
        told[name].share(share)


def _silence_s(size: int) -> float:
    """Some versions of adb say nothing until a copy has ended: allow for a slow link."""
    return 60.0 + size / SLOWEST_LINK_BYTES_S


def _carving(copy: Copy, place: str) -> str:
    """A script that copies a piece. What follows it in a block is cut off: the last piece is of any size."""
    block = min(copy.offset & -copy.offset or BLOCK_BYTES, BLOCK_BYTES)
    words = f"if={quoted([copy.path])} bs={block} skip={copy.offset // block} count={-(-copy.chunk.bytes // block)}"
    there = quoted([place])  # removed first: it might be a link
    return f"rm -f {there}\ndd {words} 2>/dev/null | head -c {copy.chunk.bytes} > {there}"


def _piece(folder: Path, item: Item, chunk: Chunk) -> Path:
    """A piece as a file of the name that it gets on the device: a link, where it is a whole file."""
    path = folder / f"{chunk.sha256}{PART}"
    if len(item.chunks) == 1:
        path.symlink_to(item.source.absolute())
        return path
    with item.source.open("rb") as source, path.open("wb") as file:
        source.seek(chunk.offset)
        left = chunk.bytes
        while left and (data := source.read(min(left, 1 << 20))):
            file.write(data)
            left -= len(data)
    return path


def _groups(
    wanted: tuple[tuple[Item, tuple[Chunk, ...]], ...],
) -> Iterator[list[tuple[Item, Chunk | None]]]:
    """What is sent by one call. None: the pieces of this file are all there then, and are joined."""
    group: list[tuple[Item, Chunk | None]] = []
    held: set[str] = set()
    size, rest = 0, sum(chunk.bytes for _, chunks in wanted for chunk in chunks)
    for item, chunks in wanted:
        for chunk in chunks:
            largest = min(max(rest * SHARE_OF_REST, SMALLEST_GROUP_BYTES), LARGEST_GROUP_BYTES)
            if group and (size + chunk.bytes > largest or len(group) >= GROUP or chunk.sha256 in held):
                yield group
                group, held, rest, size = [], set(), rest - size, 0
            group.append((item, chunk))
            held.add(chunk.sha256)
            size += chunk.bytes
        if len(item.chunks) > 1:
            group.append((item, None))
    if group:
        yield group


def _batches(items: tuple[Item, ...]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    size = 0
    for item in items:
        if batch and (size + item.bytes > HASHED_BYTES or len(batch) >= 200):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item.bytes
    if batch:
        yield batch
