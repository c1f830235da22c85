"""What a push will do: a version's files compared with what a device holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hvdc.deploy.found import Found
from hvdc.deploy.layout import NEW, Layout
from hvdc.deploy.package import Chunk, Item, Package


@dataclass(frozen=True)
class Copy:
    """A piece of an item that a file of another version holds: ``path`` on the device, from byte ``offset`` on."""

    item: Item
    chunk: Chunk
    path: str
    offset: int


@dataclass(frozen=True)
class Todo:
    """``whole``: items that are on the device, ready in the new version. ``linked``: items with the path of a verified
    file of the same contents. ``copied``: pieces that are taken out of other versions' files. ``sent``: items of which
    pieces are missing, with those that no file there has. ``twins``: items with the path of a file of this version that
    has the same contents."""

    whole: tuple[Item, ...]
    linked: tuple[tuple[Item, str], ...]
    copied: tuple[Copy, ...]
    sent: tuple[tuple[Item, tuple[Chunk, ...]], ...]
    twins: tuple[tuple[Item, str], ...]

    @property
    def sent_bytes(self) -> int:
        return sum(chunk.bytes for _, chunks in self.sent for chunk in chunks)

    @property
    def copied_bytes(self) -> int:
        return sum(copy.chunk.bytes for copy in self.copied)

    @property
    def linked_bytes(self) -> int:
        return sum(item.bytes for item, _ in (*self.linked, *self.twins))

    @property
    def joined_bytes(self) -> int:
        """What the largest file that is put together from pieces needs beside them."""
        return max((item.bytes for item, _ in self.sent if len(item.chunks) > 1), default=0)

    def only(self, is_wanted: Callable[[Item], bool]) -> Todo:
        """What concerns some of the items, without twins: these need files of the others, too."""
        return Todo(
            tuple(item for item in self.whole if is_wanted(item)),
            tuple(pair for pair in self.linked if is_wanted(pair[0])),
            tuple(copy for copy in self.copied if is_wanted(copy.item)),
            tuple(pair for pair in self.sent if is_wanted(pair[0])),
            (),
        )

    def needed_bytes(self, *, links: bool) -> int:
        """What is written at most beside what is there. ``links``: files of other versions cost nothing."""
        return self.sent_bytes + self.copied_bytes + self.joined_bytes + (0 if links else self.linked_bytes)


def plan_push(package: Package, found: Found, layout: Layout, name: str) -> Todo:
    """Compare a package with what a device holds. Every piece is sent or copied once, whatever it is used for."""
    whole, linked, copied, twins = [], [], [], []
    sent: list[tuple[Item, tuple[Chunk, ...]]] = []
    first: dict[str, str] = {}
    new = layout.version(name, package.version) + NEW
    there: set[str] = {digest for digest, size in found.parts.items() if size}
    unfinished = found.unfinished.get((name, package.version), {})
    for item in package.items:
        if unfinished.get(item.path) == item.bytes:
            whole.append(item)
        elif item.sha256 in first:
            twins.append((item, first[item.sha256]))
        elif (known := found.where(item.sha256, item.bytes)) is not None:
            held, path = known
            linked.append((item, f"{layout.version(held.name, held.version)}/{path}"))
        else:
            missing = list(item.chunks)
            if len(item.chunks) > 1:
                missing = [chunk for sha256, chunk in {c.sha256: c for c in item.chunks}.items() if sha256 not in there]
                there |= {chunk.sha256 for chunk in missing}
                copies = [_copy(item, chunk, found, layout) for chunk in missing]
                copied += [copy for copy in copies if copy is not None]
                missing = [chunk for chunk, copy in zip(missing, copies, strict=True) if copy is None]
            sent.append((item, tuple(missing)))
            first[item.sha256] = f"{new}/{item.path}"
    return Todo(tuple(whole), tuple(linked), tuple(copied), tuple(sent), tuple(twins))


def _copy(item: Item, chunk: Chunk, found: Found, layout: Layout) -> Copy | None:
    """Where another version has a piece; None: nowhere."""
    place = found.where_piece(chunk.sha256, chunk.bytes)
    if place is None:
        return None
    held, piece = place
    return Copy(item, chunk, f"{layout.version(held.name, held.version)}/{piece.path}", piece.offset)
