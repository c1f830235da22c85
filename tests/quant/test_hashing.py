"""The value hash depends on values alone: not on the stored dtype, nor on how they are cut into pieces."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quant.hashing import ValueHash

VALUES = hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(width=32, allow_nan=False))


def digest(*pieces: np.ndarray) -> str:
    value = ValueHash()
    for piece in pieces:
        value.update(np.ascontiguousarray(piece))
    return value.digest()


def as_bfloat16(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


@given(VALUES)
def test_values_that_bfloat16_holds_hash_their_high_halves(values: np.ndarray) -> None:
    narrow = as_bfloat16(values)
    expected = hashlib.sha256((narrow.view("<u4") >> 16).astype("<u2").tobytes()).hexdigest()
    assert digest(narrow) == f"bf16:{expected}"


@given(VALUES, st.integers(0, 199))
def test_one_value_beyond_bfloat16_makes_it_the_fp32_hash(values: np.ndarray, at: int) -> None:
    values = as_bfloat16(values)
    values.view(np.uint32)[at % len(values)] = 0x3F800001
    assert digest(values) == f"fp32:{hashlib.sha256(values.tobytes()).hexdigest()}"


@given(VALUES, st.lists(st.integers(0, 200), max_size=5), st.booleans())
def test_pieces_do_not_matter(values: np.ndarray, cuts: list[int], narrow: bool) -> None:
    values = as_bfloat16(values) if narrow else values
    assert digest(*np.split(values, sorted(min(c, len(values)) for c in cuts))) == digest(values)


def test_shape_does_not_matter_but_order_and_sign_of_zero_do() -> None:
    a = np.arange(6, dtype=np.float32)
    assert digest(a.reshape(2, 3)) == digest(a)
    assert digest(a[::-1]) != digest(a)
    assert digest(np.float32([0.0])) != digest(np.float32([-0.0]))
