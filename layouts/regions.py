"""Regions: tensors laid one behind the other in a file that both engines can map.

Every tensor starts at a multiple of `TENSOR_ALIGNMENT_BYTES`; a region's size is a multiple of
`REGION_GRANULE_BYTES`; the gaps in between hold zeros and are always smaller than the alignment that caused them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TENSOR_ALIGNMENT_BYTES = 128
"""Alignment of a tensor in its region: the largest that a weight operand of the matrix unit needs."""

REGION_GRANULE_BYTES = 4096
"""Regions are whole pages, so that a region can be one shared-memory object."""


class RegionTooLargeError(ValueError):
    """A region would exceed the largest buffer that both engines can map."""

    def __init__(self, region: str, region_bytes: int, cap_bytes: int) -> None:
        super().__init__(
            f"region {region!r} needs {region_bytes:,} bytes; the target maps at most {cap_bytes:,} bytes at once"
        )
        self.region = region
        self.region_bytes = region_bytes
        self.cap_bytes = cap_bytes


@dataclass(frozen=True)
class Item:
    """A tensor to be placed: its name and exact size in bytes."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Placement:
    """A tensor in its region: ``[offset, offset + bytes)``."""

    name: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class Region:
    """A planned region: ``bytes`` in all, placements in order of offset."""

    name: str
    bytes: int
    placements: tuple[Placement, ...]

    @property
    def padding_bytes(self) -> int:
        return self.bytes - sum(p.bytes for p in self.placements)


def align_up(value: int, alignment: int) -> int:
    """The smallest multiple of ``alignment`` that is ≥ ``value``."""
    return -(-value // alignment) * alignment


def plan_region(name: str, items: Iterable[Item], cap_bytes: int | None = None) -> Region:
    """Place ``items`` in order.

    Raises RegionTooLargeError above ``cap_bytes``, ValueError for an empty region or tensor.
    """
    placements: list[Placement] = []
    end = 0
    for item in items:
        if item.bytes < 1:
            raise ValueError(f"tensor {item.name!r} of region {name!r} has {item.bytes} bytes")
        offset = align_up(end, TENSOR_ALIGNMENT_BYTES)
        placements.append(Placement(item.name, offset, item.bytes))
        end = offset + item.bytes
    if not placements:
        raise ValueError(f"region {name!r} is empty")
    total = align_up(end, REGION_GRANULE_BYTES)
    if cap_bytes is not None and total > cap_bytes:
        raise RegionTooLargeError(name, total, cap_bytes)
    return Region(name, total, tuple(placements))


def group_items(groups: Sequence[tuple[str, Sequence[Item]]], cap_bytes: int) -> list[tuple[str, list[Item]]]:
    """Join consecutive groups (say, blocks) into as few regions as fit under ``cap_bytes``; a group is never split.

    Returns ``(name of the first group, items)`` per region. Raises RegionTooLargeError for one group above the cap.
    """
    out: list[tuple[str, list[Item]]] = []
    for name, items in groups:
        plan_region(name, items, cap_bytes)
        if out:
            joined = [*out[-1][1], *items]
            if plan_region(out[-1][0], joined).bytes <= cap_bytes:
                out[-1] = (out[-1][0], joined)
                continue
        out.append((name, list(items)))
    return out
