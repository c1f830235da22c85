"""Tile orders: where element (row, col) of a 32 × 32 tile lies, as a shape with strides.

A `TileOrder` is the only description of a byte order in this project (the idea of CuTe's layouts). The packer and the
unpacker (`layouts.grid`) and the C macros (`layouts.c_header`) are all derived from it; no second formula exists.

For weights, row is the input channel k and col the output column n. For activations, row is the token and col the
channel.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Mode:
    """One digit of a mixed-radix index: it runs over ``extent`` values, ``stride`` elements apart."""

    extent: int
    stride: int


@dataclass(frozen=True)
class TileOrder:
    """A bijection from (row, col) to an element offset inside one tile.

    ``rows`` and ``cols`` split each index into modes, slowest digit first: row = ((r0 * extent1) + r1) …, and
    ``offset = Σ digit · stride``. ``id`` is stored with every tensor; a reader refuses an id that it does not know.
    """

    id: int
    name: str
    element_bytes: int
    rows: tuple[Mode, ...]
    cols: tuple[Mode, ...]

    def __post_init__(self) -> None:
        modes = sorted((*self.rows, *self.cols), key=lambda m: m.stride)
        expected = 1
        for mode in modes:  # strides must chain without gap or overlap, or offsets would collide or leave holes
            if mode.stride != expected or mode.extent < 1:
                raise ValueError(f"tile order {self.name!r} is not a bijection: {mode} where stride {expected} is due")
            expected *= mode.extent

    @property
    def row_count(self) -> int:
        return int(np.prod([m.extent for m in self.rows]))

    @property
    def col_count(self) -> int:
        return int(np.prod([m.extent for m in self.cols]))

    @property
    def elements(self) -> int:
        return self.row_count * self.col_count

    @property
    def tile_bytes(self) -> int:
        return self.elements * self.element_bytes

    def offset(self, row: int, col: int) -> int:
        """Element offset of (row, col) inside the tile. Raises IndexError outside of it."""
        if not (0 <= row < self.row_count and 0 <= col < self.col_count):
            raise IndexError(f"({row}, {col}) is outside a {self.row_count} × {self.col_count} tile")
        total = 0
        for index, modes in ((row, self.rows), (col, self.cols)):
            for mode in reversed(modes):
                index, digit = divmod(index, mode.extent)
                total += digit * mode.stride
        return total

    def offsets(self) -> npt.NDArray[np.intp]:
        """``[rows, cols]`` table of element offsets."""
        table = np.empty((self.row_count, self.col_count), np.intp)
        for row, col in itertools.product(range(self.row_count), range(self.col_count)):
            table[row, col] = self.offset(row, col)
        return table


ROW_MAJOR_ID = 0
"""The id of tensors that are not tiled: plain C order."""

HMX_INT8_K4 = TileOrder(
    id=1,
    name="hmx-int8-k4",
    element_bytes=1,
    rows=(Mode(8, 128), Mode(4, 1)),
    cols=(Mode(32, 4),),
)
"""INT8 weight tile of the NPU's matrix unit: byte 128·(k/4) + 4·n + (k mod 4).

Four consecutive inputs of one output column are four contiguous bytes: one operand of the GPU's 4-way dot product.
"""

HMX_FP16_2 = TileOrder(
    id=2,
    name="hmx-fp16-2",
    element_bytes=2,
    rows=(Mode(16, 64), Mode(2, 1)),
    cols=(Mode(32, 2),),
)
"""FP16 tile of the NPU's matrix unit, for weights (k, n) and activations: halfword 64·(row/2) + 2·col + (row mod 2)."""

TILE_ORDERS = (HMX_INT8_K4, HMX_FP16_2)
BY_NAME = {order.name: order for order in TILE_ORDERS}
BY_ID = {order.id: order for order in TILE_ORDERS}
