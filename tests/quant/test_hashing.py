"""The value hash depends on values alone: not on the stored dtype, nor on how they are cut into pieces."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quant.hashing import ValueHash

SHAPES = st.one_of(
    st.tuples(st.integers(1, 40)),
    st.tuples(st.integers(1, 20), st.integers(1, 9)),
    st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3)),
)
VALUES = SHAPES.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=st.floats(width=32, allow_nan=False)))


def value_hash(*pieces: np.ndarray) -> str:
    value = ValueHash()
    for piece in pieces:
        value.update(np.ascontiguousarray(piece))
    return value.hexdigest()


def as_bfloat16(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def definition(values: np.ndarray) -> str:
    """docs/FORMAT.md, "Source hash", row by row."""
    data, flags = b"", b""
    for row in values:
        words = np.atleast_1d(row).reshape(-1).view("<u4")
        narrow = all(int(word) & 0xFFFF == 0 for word in words)
        data += (words >> 16).astype("<u2").tobytes() if narrow else words.tobytes()
        flags += bytes([narrow])
    return hashlib.sha256(data + flags).hexdigest()


@given(VALUES, st.lists(st.booleans(), min_size=40, max_size=40))
def test_it_is_the_definition_whichever_rows_are_bfloat16(values: np.ndarray, narrow: list[bool]) -> None:
    rows = np.array(narrow[: len(values)])
    values[rows] = as_bfloat16(values[rows])
    assert value_hash(values) == definition(values)


@given(VALUES, st.lists(st.integers(0, 40), max_size=5), st.booleans())
def test_pieces_do_not_matter(values: np.ndarray, cuts: list[int], narrow: bool) -> None:
    values = as_bfloat16(values) if narrow else values
    pieces = np.split(values, sorted(min(cut, len(values)) for cut in cuts))
    assert value_hash(*pieces) == value_hash(values)


@given(VALUES, st.data())
def test_one_changed_bit_changes_it(values: np.ndarray, data: st.DataObject) -> None:
    other = values.copy()
    at, bit = data.draw(st.integers(0, values.size - 1)), data.draw(st.integers(0, 31))
    other.reshape(-1).view(np.uint32)[at] ^= np.uint32(1 << bit)
    assert value_hash(other) != value_hash(values)


def test_the_sign_of_zero_and_the_order_matter() -> None:
    assert value_hash(np.float32([0.0])) != value_hash(np.float32([-0.0]))
    assert value_hash(np.float32([1, 2])) != value_hash(np.float32([2, 1]))


def test_a_narrow_row_does_not_hash_as_a_wide_row_of_the_same_bytes() -> None:
    narrow = np.float32([[1.0, 2.0]])
    halves = (narrow.view("<u4") >> 16).astype("<u2")
    assert value_hash(narrow) != value_hash(halves.view(np.float32))
