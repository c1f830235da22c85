"""Matrices cut into tiles: pack, unpack, single tiles.

A weight ``W`` is ``[N_out, K_in]`` as PyTorch stores it. It is padded with zeros to whole tiles and stored as
``[n_tile][k_tile][tile]``: the K tiles of one column of tiles are contiguous. Inside a tile, row is k and col is n.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from layouts.order import TileOrder

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TileGrid:
    """The tiles of one ``[n, k]`` weight in a tile order."""

    order: TileOrder
    n: int
    k: int

    def __post_init__(self) -> None:
        if self.n < 1 or self.k < 1:
            raise ValueError(f"a weight needs at least one row and one column, not [{self.n}, {self.k}]")

    @property
    def n_tiles(self) -> int:
        return -(-self.n // self.order.col_count)

    @property
    def k_tiles(self) -> int:
        return -(-self.k // self.order.row_count)

    @property
    def padded_n(self) -> int:
        return self.n_tiles * self.order.col_count

    @property
    def padded_k(self) -> int:
        return self.k_tiles * self.order.row_count

    @property
    def bytes(self) -> int:
        return self.n_tiles * self.k_tiles * self.order.tile_bytes

    @property
    def strip_bytes(self) -> int:
        """Bytes of one column of tiles: ``order.col_count`` rows of W over all of K."""
        return self.k_tiles * self.order.tile_bytes

    def byte_offset(self, n: int, k: int) -> int:
        """Byte offset of ``W[n, k]`` in the packed weight."""
        cols, rows = self.order.col_count, self.order.row_count
        tile = (n // cols) * self.k_tiles + k // rows
        return tile * self.order.tile_bytes + self.order.offset(k % rows, n % cols) * self.order.element_bytes


def _tile_axes(order: TileOrder) -> tuple[list[int], list[int]]:
    """Shape of a padded matrix split as ``[n_tile, *cols, k_tile, *rows]``, and the axis order that packs it."""
    shape = [-1, *(m.extent for m in order.cols), -1, *(m.extent for m in order.rows)]
    first_row_axis = len(order.cols) + 2
    axes = [(m.stride, 1 + i) for i, m in enumerate(order.cols)]
    axes += [(m.stride, first_row_axis + i) for i, m in enumerate(order.rows)]
    inner = [axis for _, axis in sorted(axes, reverse=True)]
    return shape, [0, first_row_axis - 1, *inner]


def _split(order: TileOrder, padded: Array) -> Array:
    """View of a padded ``[n, k]`` matrix whose C order is the packed order."""
    shape, axes = _tile_axes(order)
    shape[0] = padded.shape[0] // order.col_count
    shape[len(order.cols) + 1] = padded.shape[1] // order.row_count
    return padded.reshape(shape).transpose(axes)


@cache
def _widened(order: TileOrder) -> tuple[TileOrder, int]:
    """The same order over words that hold the fastest row mode, and that mode's extent.

    W is contiguous in k, so when the fastest digit of the tile is a digit of k, those elements already lie together in
    W: moving them as one word makes packing a transposition of words instead of bytes.
    """
    fastest = order.rows[-1]
    if fastest.stride != 1 or fastest.extent * order.element_bytes not in (2, 4, 8):
        return order, 1
    v = fastest.extent
    modes = [tuple(type(fastest)(m.extent, m.stride // v) for m in group) for group in (order.rows[:-1], order.cols)]
    return TileOrder(order.id, order.name, order.element_bytes * v, modes[0], modes[1]), v


def _coalesced(view: Array) -> Array:
    """The same view with as few axes as its strides allow: numpy copies long inner runs much faster than short ones."""
    shape: list[int] = [view.shape[0]]
    for axis in range(1, view.ndim):
        if view.strides[axis - 1] == view.strides[axis] * view.shape[axis]:
            shape[-1] *= view.shape[axis]
        else:
            shape.append(view.shape[axis])
    return view.reshape(shape)


def pack_into(order: TileOrder, padded: Array, out: Array) -> None:
    """Pack a padded matrix ``[n, k]`` (whole tiles, C-contiguous) into ``out``, a flat array of as many bytes."""
    if padded.itemsize != order.element_bytes:
        raise ValueError(f"{order.name} holds {order.element_bytes}-byte elements, not {padded.dtype}")
    wide, v = _widened(order)
    word = np.dtype(f"u{order.element_bytes * v}")
    source = _coalesced(_split(wide, padded.view(word)))
    out.view(word).reshape(source.shape)[...] = source


def pack(order: TileOrder, weight: Array) -> Array:
    """Pack ``weight`` ``[n, k]`` with zero padding; returns a flat array of the weight's dtype."""
    grid = TileGrid(order, *weight.shape)
    padded = np.zeros((grid.padded_n, grid.padded_k), weight.dtype)
    padded[: grid.n, : grid.k] = weight
    out = np.empty(padded.size, weight.dtype)
    pack_into(order, padded, out)
    return out


def unpack_padded(order: TileOrder, packed: Array, n_tiles: int, k_tiles: int) -> Array:
    """The padded matrix ``[n_tiles · 32, k_tiles · 32]`` of a flat packed array."""
    wide, v = _widened(order)
    word = np.dtype(f"u{order.element_bytes * v}")
    out = np.empty((n_tiles * order.col_count, k_tiles * order.row_count), packed.dtype)
    target = _coalesced(_split(wide, out.view(word)))
    target[...] = packed.view(word).reshape(target.shape)
    return out


def unpack(grid: TileGrid, packed: Array) -> Array:
    """Inverse of `pack`: the ``[n, k]`` matrix, padding cut off."""
    return unpack_padded(grid.order, packed, grid.n_tiles, grid.k_tiles)[: grid.n, : grid.k]


def tile(grid: TileGrid, packed: Array, n_tile: int, k_tile: int) -> Array:
    """One tile as ``[rows (k), cols (n)]``. Raises IndexError outside the grid."""
    if not (0 <= n_tile < grid.n_tiles and 0 <= k_tile < grid.k_tiles):
        raise IndexError(f"tile ({n_tile}, {k_tile}) is outside the grid of {grid.n_tiles} × {grid.k_tiles} tiles")
    start = (n_tile * grid.k_tiles + k_tile) * grid.order.elements
    return unpack_padded(grid.order, packed[start : start + grid.order.elements], 1, 1).T
