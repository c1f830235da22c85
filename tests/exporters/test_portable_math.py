"""exp, sin, cos, silu and the matrix product: accurate, and the same bits whatever the CPU offers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters import portable_math as pm
from exporters.errors import CheckpointError
from exporters.tensor import from_array

_HIGH = mpmath.MPContext()
_HIGH.prec = 200


def worst_ulp(function: Callable[[Any], Any], reference: Callable[[Any], Any], points: np.ndarray) -> float:
    """Largest error of ``function`` over ``points``, in units in the last place of the exact result."""
    worst = 0.0
    for x, y in zip(points, function(points), strict=True):
        exact = reference(_HIGH.mpf(float(x)))
        worst = max(worst, float(abs(_HIGH.mpf(float(y)) - exact) / float(np.spacing(abs(float(exact))))))
    return worst


def spread(low: float, high: float, count: int = 1500) -> np.ndarray:
    return np.random.default_rng(7).uniform(low, high, count)


@pytest.mark.parametrize(("low", "high"), [(-700, 709.7), (-1, 1), (-1e-9, 1e-9), (-745, -700)])
def test_exp_is_within_one_ulp(low: float, high: float) -> None:
    assert worst_ulp(pm.exp, _HIGH.exp, spread(low, high)) <= 1.0


def test_exp_at_its_ends() -> None:
    got = pm.exp([0.0, -0.0, 709.782712893384, 710.0, -745.1, -746.0, np.inf, -np.inf, np.nan])
    assert got[:2].tolist() == [1.0, 1.0]
    assert 1.79e308 < got[2] < np.inf
    assert got[3] == np.inf
    assert got[4] == 5e-324
    assert got[5] == 0.0
    assert got[6:8].tolist() == [np.inf, 0.0]
    assert math.isnan(got[8])


@pytest.mark.parametrize("limit", [4.0, 1000.0, 1e5])
def test_sine_and_cosine_are_within_one_ulp(limit: float) -> None:
    points = spread(-limit, limit)
    assert worst_ulp(pm.sin, _HIGH.sin, points) <= 1.0
    assert worst_ulp(pm.cos, _HIGH.cos, points) <= 1.0


def test_sine_and_cosine_stay_accurate_where_they_vanish() -> None:
    """Next to a multiple of π/2 nearly all digits cancel: the reduction has to carry π/2 far beyond float64."""
    multiples = np.random.default_rng(3).integers(1, 63661, 1500)
    points = np.array([float(_HIGH.pi / 2 * int(k)) for k in multiples])
    assert worst_ulp(pm.sin, _HIGH.sin, points) <= 1.0
    assert worst_ulp(pm.cos, _HIGH.cos, points) <= 1.0


def test_sine_and_cosine_take_the_right_quadrant() -> None:
    sine, cosine = pm.sincos(np.arange(-8, 9) * (math.pi / 2))
    assert np.rint(sine).tolist() == [0, 1, 0, -1] * 4 + [0]
    assert np.rint(cosine).tolist() == [1, 0, -1, 0] * 4 + [1]


@pytest.mark.parametrize("angle", [1.1e5, -np.inf, np.nan])
def test_an_angle_beyond_the_exact_range_is_refused(angle: float) -> None:
    with pytest.raises(CheckpointError, match="too large"):
        pm.sin([0.0, angle])


def test_silu_is_within_two_ulp() -> None:
    assert worst_ulp(pm.silu, lambda x: x / (1 + _HIGH.exp(-x)), spread(-50, 50)) <= 2.0
    assert pm.silu([-800.0, 0.0, 800.0]).tolist() == [0.0, 0.0, 800.0]


@given(st.sampled_from([2.0, 10000.0, 1e6]), st.integers(-63, 0), st.integers(2, 64))
def test_a_rational_power_is_correctly_rounded(base: float, numerator: int, denominator: int) -> None:
    exact = _HIGH.power(_HIGH.mpf(base), _HIGH.mpf(numerator) / denominator)
    assert pm.rational_power(base, numerator, denominator) == float(exact)


def by_halves(terms: list[float]) -> float:
    """The second half is added to the first until one term is left; of an odd number the middle one waits."""
    while len(terms) > 1:
        kept = (len(terms) + 1) // 2
        second = terms[kept:] + [None] * (2 * kept - len(terms))
        terms = [a if b is None else a + b for a, b in zip(terms, second, strict=False)]
    return terms[0]


def defined(weight: np.ndarray, bias: np.ndarray, x: np.ndarray) -> list[list[float]]:
    """The definition, with Python's own floats."""
    return [
        [
            by_halves([float(w) * float(v) for w, v in zip(row, sample, strict=True)]) + float(b)
            for row, b in zip(weight, bias, strict=True)
        ]
        for sample in x
    ]


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 3), st.integers(1, 5))
def test_linear64_adds_the_products_by_halves(n: int, k: int, samples: int, rows_at_once: int) -> None:
    rng = np.random.default_rng([n, k, samples])
    weight = rng.standard_normal((n, k), dtype=np.float32)
    bias = rng.standard_normal(n, dtype=np.float32)
    x = rng.standard_normal((samples, k))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pm, "_ROWS_AT_ONCE", rows_at_once)
        got = pm.linear64(from_array("w", weight), from_array("b", bias), x)
    assert got.tolist() == defined(weight, bias, x)


def test_linear64_refuses_shapes_that_do_not_fit() -> None:
    weight = from_array("w", np.zeros((3, 4), np.float32), origin="a.safetensors")
    with pytest.raises(CheckpointError, match="don't fit") as caught:
        pm.linear64(weight, from_array("b", np.zeros(2, np.float32)), np.zeros((1, 4)))
    assert "a.safetensors" in caught.value.where
    assert "w [3, 4]" in caught.value.found


def test_a_weight_that_is_not_finite_is_named_with_its_first_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pm, "_ROWS_AT_ONCE", 2)
    weight = np.zeros((5, 3), np.float32)
    weight[3, 1], weight[4, 0] = np.inf, np.nan
    with pytest.raises(CheckpointError, match=r"'time_proj\.weight' holds inf at \[3, 1\]"):
        pm.linear64(from_array("time_proj.weight", weight), from_array("b", np.zeros(5, np.float32)), np.ones((1, 3)))
