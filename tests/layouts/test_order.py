"""A tile order is a bijection, and its formulas are those of the matrix unit."""

from __future__ import annotations

import re

import numpy as np
import pytest

from layouts.c_header import tile_header
from layouts.order import BY_ID, BY_NAME, HMX_FP16_2, HMX_INT8_K4, ROW_MAJOR_ID, TILE_ORDERS, Mode, TileOrder

FORMULAS = {
    "hmx-int8-k4": lambda k, n: 128 * (k // 4) + 4 * n + k % 4,
    "hmx-fp16-2": lambda row, col: 64 * (row // 2) + 2 * col + row % 2,
}
"""Written out once more, from the specification of the matrix unit and not from `layouts`."""


@pytest.mark.parametrize("order", TILE_ORDERS, ids=lambda o: o.name)
def test_each_element_has_its_own_place(order: TileOrder) -> None:
    assert np.array_equal(np.sort(order.offsets().reshape(-1)), np.arange(order.elements))


@pytest.mark.parametrize("order", TILE_ORDERS, ids=lambda o: o.name)
def test_offsets_are_those_of_the_formula(order: TileOrder) -> None:
    formula = FORMULAS[order.name]
    table = [[formula(row, col) for col in range(32)] for row in range(32)]
    assert order.offsets().tolist() == table


@pytest.mark.parametrize("order", TILE_ORDERS, ids=lambda o: o.name)
def test_the_c_macro_computes_the_same_offsets(order: TileOrder) -> None:
    prefix = "HVDC_TILE_" + order.name.upper().replace("-", "_")
    macro = re.search(rf"#define {prefix}_OFFSET\(row, col\) (.*)", tile_header())
    assert macro is not None
    expression = macro.group(1).replace("/", "//").replace("u", "")
    got = [[eval(expression, {"row": r, "col": c}) for c in range(32)] for r in range(32)]  # noqa: S307
    assert got == order.offsets().tolist()


def test_four_inputs_of_one_column_are_one_dot_product_operand() -> None:
    offsets = HMX_INT8_K4.offsets()
    quads = offsets.reshape(8, 4, 32)
    assert (np.diff(quads, axis=1) == 1).all()
    assert (quads[:, 0] % 4 == 0).all()


def test_tiles_have_the_sizes_of_the_matrix_unit() -> None:
    assert (HMX_INT8_K4.tile_bytes, HMX_FP16_2.tile_bytes) == (1024, 2048)


def test_ids_and_names_are_unique_and_none_is_row_major() -> None:
    assert len(BY_ID) == len(BY_NAME) == len(TILE_ORDERS)
    assert ROW_MAJOR_ID not in BY_ID


def test_an_order_with_colliding_or_missing_offsets_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="not a bijection"):
        TileOrder(9, "collides", 1, (Mode(32, 1),), (Mode(32, 1),))
    with pytest.raises(ValueError, match="not a bijection"):
        TileOrder(9, "leaves holes", 1, (Mode(32, 64),), (Mode(32, 1),))


@pytest.mark.parametrize(("row", "col"), [(-1, 0), (0, -1), (32, 0), (0, 32)])
def test_an_index_outside_the_tile_is_refused(row: int, col: int) -> None:
    with pytest.raises(IndexError):
        HMX_INT8_K4.offset(row, col)
