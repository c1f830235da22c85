"""Symmetric INT8 per output column, as numerics.md defines it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quant.weights import NonFiniteError, Quantizer, column_scales, quantize

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
MATRICES = hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 40)), elements=FLOATS)


def definition(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One value at a time, in FP32."""
    q, scales = np.zeros(weight.shape, np.int8), np.zeros(len(weight), np.float32)
    for j, row in enumerate(weight):
        s = np.float32(max(abs(float(w)) for w in row)) / np.float32(127)
        if s < np.float32(2.0**-126):
            scales[j] = 1
            continue
        scales[j] = s
        for k, w in enumerate(row):
            quotient = float(np.float32(w) / s)
            q[j, k] = max(-127, min(127, round(quotient)))  # Python rounds half to even
    return q, scales


@settings(max_examples=300, deadline=None)
@given(MATRICES)
def test_it_is_the_definition_bit_for_bit(weight: np.ndarray) -> None:
    q, scales = quantize(weight)
    expected_q, expected_scales = definition(weight)
    assert np.array_equal(scales, expected_scales)
    assert np.array_equal(q, expected_q)


@settings(max_examples=200, deadline=None)
@given(MATRICES)
def test_minus_128_never_appears_and_the_error_is_half_a_step(weight: np.ndarray) -> None:
    q, scales = quantize(weight)
    assert q.min() >= -127
    error = np.abs(weight.astype(np.float64) - q * scales[:, None].astype(np.float64))
    zero = scales == 1
    assert (error[~zero] <= 0.5 * (1 + 2**-16) * scales[~zero, None].astype(np.float64)).all()


def test_halves_round_to_even() -> None:
    row = np.float32([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]])
    assert quantize(row)[0].tolist() == [[127, 0, 2, 2, 0, -2, -2]]


@pytest.mark.parametrize("peak", [0.0, 1e-45, 2.0**-126, 126.9 * 2.0**-126])
def test_a_column_too_small_for_a_normal_scale_is_zeros_with_scale_one(peak: float) -> None:
    q, scales = quantize(np.float32([[peak, -peak, 0], [1, 2, 3]]))
    assert scales[0] == 1
    assert not q[0].any()
    assert scales[1] == np.float32(3) / np.float32(127)


def test_the_smallest_normal_scale_is_kept() -> None:
    q, scales = quantize(np.float32([[127 * 2.0**-126, 2.0**-126]]))
    assert scales[0] == np.float32(2.0**-126)
    assert q.tolist() == [[127, 1]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_its_first_place(bad: float) -> None:
    weight = np.ones((5, 7), np.float32)
    weight[2, 3] = weight[4, 0] = bad
    with pytest.raises(NonFiniteError) as caught:
        quantize(weight)
    assert (caught.value.row, caught.value.col) == (2, 3)


def test_the_largest_float_does_not_overflow() -> None:
    peak = np.finfo(np.float32).max
    q, scales = quantize(np.float32([[peak, -peak, peak / 2]]))
    assert np.isfinite(scales).all()
    assert q[0, :2].tolist() == [127, -127]


def test_strips_give_what_the_whole_gives() -> None:
    weight = np.random.default_rng(0).standard_normal((100, 64)).astype(np.float32)
    whole, scales = quantize(weight)
    strips, out = Quantizer(), np.empty_like(whole)
    got = [strips(weight[i : i + 32], out[i : i + 32]) for i in range(0, 100, 32)]
    assert np.array_equal(out, whole)
    assert np.array_equal(np.concatenate(got), scales)


def test_scales_of_a_view_with_strides() -> None:
    weight = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    assert np.array_equal(column_scales(weight[:, ::2]), column_scales(np.ascontiguousarray(weight[:, ::2])))
