"""Packing puts each element where the formula says, padding is zero, and unpacking undoes it, for any shape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layouts.grid import TileGrid, pack, pack_into, tile, unpack
from layouts.order import TILE_ORDERS, Mode, TileOrder

SIZES = st.integers(1, 100)
ORDERS = st.sampled_from(TILE_ORDERS)
DTYPES = {1: np.int8, 2: np.float16}

ROWS_FASTEST_BUT_WIDE = TileOrder(90, "test-k16", 1, (Mode(2, 512), Mode(16, 1)), (Mode(32, 16),))
COLS_FASTEST = TileOrder(91, "test-row-major", 1, (Mode(32, 32),), (Mode(32, 1),))
SMALL = TileOrder(92, "test-8x4", 2, (Mode(4, 8), Mode(2, 1)), (Mode(4, 2),))
OTHERS = (ROWS_FASTEST_BUT_WIDE, COLS_FASTEST, SMALL)
"""Orders that the packer's fast path does not serve, or serves with other widths."""


def matrix(order: TileOrder, n: int, k: int) -> np.ndarray:
    """Every element different from its neighbours, so that a swap shows."""
    values = np.random.default_rng(n * 1000 + k).integers(-127, 128, (n, k))
    return values.astype(DTYPES[order.element_bytes])


def brute_force(order: TileOrder, weight: np.ndarray) -> np.ndarray:
    """One element at a time, from the definition: tile grid [n_tile][k_tile], rows of a tile are k."""
    n, k = weight.shape
    cols, rows = order.col_count, order.row_count
    k_tiles = -(-k // rows)
    out = np.zeros(-(-n // cols) * k_tiles * order.elements, weight.dtype)
    for i in range(n):
        for j in range(k):
            start = ((i // cols) * k_tiles + j // rows) * order.elements
            out[start + order.offset(j % rows, i % cols)] = weight[i, j]
    return out


@settings(max_examples=60)
@given(ORDERS, SIZES, SIZES)
def test_packing_is_the_brute_force_loop(order: TileOrder, n: int, k: int) -> None:
    weight = matrix(order, n, k)
    assert np.array_equal(pack(order, weight), brute_force(order, weight))


@pytest.mark.parametrize("order", OTHERS, ids=lambda o: o.name)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (31, 33), (32, 32), (40, 70)])
def test_any_order_packs_and_unpacks(order: TileOrder, n: int, k: int) -> None:
    weight = matrix(order, n, k)
    packed = pack(order, weight)
    assert np.array_equal(packed, brute_force(order, weight))
    assert np.array_equal(unpack(TileGrid(order, n, k), packed), weight)


@settings(max_examples=200)
@given(ORDERS, st.integers(1, 300), st.integers(1, 300))
def test_unpack_undoes_pack(order: TileOrder, n: int, k: int) -> None:
    weight = matrix(order, n, k)
    assert np.array_equal(unpack(TileGrid(order, n, k), pack(order, weight)), weight)


@settings(max_examples=100)
@given(ORDERS, SIZES, SIZES, st.data())
def test_the_byte_offset_of_an_element_is_where_it_lies(order: TileOrder, n: int, k: int, data: st.DataObject) -> None:
    grid, weight = TileGrid(order, n, k), matrix(order, n, k)
    i, j = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, k - 1))
    raw = pack(order, weight).tobytes()
    at = grid.byte_offset(i, j)
    assert raw[at : at + order.element_bytes] == weight[i, j].tobytes()
    assert len(raw) == grid.bytes == grid.n_tiles * grid.strip_bytes


@settings(max_examples=50)
@given(ORDERS, SIZES, SIZES)
def test_padding_is_zero_and_nothing_else(order: TileOrder, n: int, k: int) -> None:
    packed = pack(order, np.ones((n, k), DTYPES[order.element_bytes]))
    assert np.count_nonzero(packed) == n * k


def test_a_tile_shows_k_down_and_n_across() -> None:
    """Asymmetric on purpose: [k, n] and [n, k] cannot be confused."""
    order = TILE_ORDERS[0]
    weight = np.zeros((64, 96), np.int8)
    weight[40, 70] = 77  # n = 40 is column 8 of tile 1, k = 70 is row 6 of tile 2
    grid, packed = TileGrid(order, 64, 96), pack(order, weight)
    shown = tile(grid, packed, 1, 2)
    assert shown[6, 8] == 77
    assert np.count_nonzero(shown) == 1
    assert not tile(grid, packed, 0, 0).any()


def test_a_column_of_tiles_is_contiguous() -> None:
    """A split by output columns is a byte offset: what a tensor split between engines relies on."""
    order, weight = TILE_ORDERS[0], matrix(TILE_ORDERS[0], 96, 64)
    grid, whole = TileGrid(order, 96, 64), pack(order, weight)
    assert np.array_equal(whole[grid.strip_bytes :], pack(order, weight[32:]))


@pytest.mark.parametrize(("i", "j"), [(-1, 0), (0, -1), (2, 0), (0, 3)])
def test_a_tile_outside_the_grid_is_refused(i: int, j: int) -> None:
    grid = TileGrid(TILE_ORDERS[0], 64, 96)
    with pytest.raises(IndexError, match="outside the grid"):
        tile(grid, pack(TILE_ORDERS[0], np.zeros((64, 96), np.int8)), i, j)


def test_elements_of_the_wrong_size_are_refused() -> None:
    with pytest.raises(ValueError, match="1-byte elements"):
        pack_into(TILE_ORDERS[0], np.zeros((32, 32), np.int16), np.zeros(1024, np.int16))


@pytest.mark.parametrize(("n", "k"), [(0, 5), (5, 0)])
def test_an_empty_weight_is_refused(n: int, k: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        TileGrid(TILE_ORDERS[0], n, k)
