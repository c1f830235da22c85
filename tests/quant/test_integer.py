"""INT8 products are exact, and codes of activations are the definition's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quant.integer import int8_matmul, quantize_activations


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product in 64-bit integers."""
    return np.einsum("...mk,...nk->...mn", a.astype(np.int64), b.astype(np.int64))


def product(a: np.ndarray, b: np.ndarray) -> torch.Tensor:
    return int8_matmul(torch.from_numpy(a), torch.from_numpy(b))


def extreme(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Codes at both ends of the range, mostly."""
    ends = rng.choice(np.array([-127, 127, 127, 127, 126, -1], np.int8), shape)
    ends[0] = 127  # one row whose sums are as large as they can be
    return ends


@pytest.mark.parametrize("k", [1, 2, 15, *range(1018, 1030), *range(1039, 1044), 1536, *range(2046, 2051), 3073, 8960])
def test_products_are_exact_for_every_length_of_row(k: int) -> None:
    rng = np.random.default_rng(k)
    for a, b in (
        (extreme(rng, 3, k), extreme(rng, 5, k)),
        (rng.integers(-127, 128, (3, k), np.int8), rng.integers(-127, 128, (5, k), np.int8)),
    ):
        out = product(a, b)
        assert out.dtype == torch.int32
        assert np.array_equal(out.numpy(), exact(a, b))


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_that_float32_cannot_hold_are_exact(sign: int) -> None:
    """2048 · 127² + 1 is odd and above 2^24: a float32 sum would round it."""
    a = np.full((1, 2049), 127, np.int8)
    b = np.full((1, 2049), sign * 127, np.int8)
    a[0, -1], b[0, -1] = 1, sign
    total = sign * (2048 * 127**2 + 1)
    assert int(np.float32(total)) != total
    assert product(a, b).tolist() == [[total]]


def test_the_largest_sum_of_the_largest_model() -> None:
    """8,960 inputs of the down projection; attention over 20,280 keys with p = 127 for each."""
    for k in (8960, 20280):
        a = np.full((2, k), 127, np.int8)
        assert product(a, a).tolist() == [[k * 127**2] * 2] * 2


def test_heads_are_products_of_their_own() -> None:
    rng = np.random.default_rng(0)
    a, b = extreme(rng, 3, 7, 1100), extreme(rng, 3, 9, 1100)
    assert np.array_equal(product(a, b).numpy(), exact(a, b))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1000, 1050), st.integers(0, 2**32 - 1))
def test_any_small_product_is_exact(m: int, n: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-127, 128, (m, k), np.int8), rng.integers(-127, 128, (n, k), np.int8)
    assert np.array_equal(product(a, b).numpy(), exact(a, b))


def code(x: float, scale: np.float32) -> int:
    """One value: division in FP32, Python's rounding (half to even), clipping."""
    quotient = float(np.float32(x) / scale)
    return max(-127, min(127, round(quotient))) if abs(quotient) < 1e6 else int(np.sign(quotient)) * 127


def coded(x: np.ndarray, scale: float) -> list[int]:
    out = quantize_activations(torch.from_numpy(x), torch.tensor(scale, dtype=torch.float32))
    assert out.dtype == torch.int8
    return out.tolist()


def test_halves_round_to_even() -> None:
    x = np.float32([0.5, 1.5, 2.5, 3.5, 125.5, 126.5, -0.5, -1.5, -2.5, -126.5])
    assert coded(x, 1.0) == [0, 2, 2, 4, 126, 126, 0, -2, -2, -126]
    assert coded(x / 8, 0.125) == [0, 2, 2, 4, 126, 126, 0, -2, -2, -126]


def test_values_beyond_the_range_are_clipped_to_127() -> None:
    x = np.float32([127.4, 127.5, 128.0, 1e30, np.inf, -127.5, -128.0, -1e30, -np.inf])
    assert coded(x, 1.0) == [127, 127, 127, 127, 127, -127, -127, -127, -127]


def test_minus_128_never_appears() -> None:
    assert min(coded(np.linspace(-200, 200, 4001, dtype=np.float32), 1.0)) == -127


def test_the_quotient_is_rounded_to_fp32_before_it_is_rounded_to_a_code() -> None:
    """Near a half, a division in more bits, or a product with 1 / scale, gives other codes."""
    rng = np.random.default_rng(0)
    scale = np.float32(rng.uniform(0.001, 0.1))
    halves = ((rng.integers(-126, 126, 20_000) + 0.5) * np.float64(scale)).astype(np.float32)
    x = np.concatenate([halves, np.nextafter(halves, np.float32(9)), np.nextafter(halves, np.float32(-9))])
    expected = [code(float(v), scale) for v in x]
    assert coded(x, float(scale)) == expected
    wide = np.rint(x.astype(np.float64) / np.float64(scale))
    assert np.count_nonzero(wide != expected) > 100, "or else this test could not fail"
    inverse = np.rint(x * (np.float32(1) / scale))
    assert np.count_nonzero(inverse != expected) > 100


def test_fp16_activations_are_divided_in_fp32() -> None:
    x = np.random.default_rng(1).standard_normal(4096).astype(np.float16)
    scale = np.float32(0.0237)
    assert coded(x, float(scale)) == [code(float(v), scale) for v in x]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20),
    st.floats(2.0**-20, 2.0**10, width=32, allow_subnormal=False),
)
def test_codes_are_the_definition_for_any_value_and_scale(values: list[float], scale: float) -> None:
    assert coded(np.float32(values), scale) == [code(v, np.float32(scale)) for v in values]
