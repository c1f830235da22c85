"""Error in steps and SQNR."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quant.metrics import HALF_STEP, ErrorMeter
from quant.weights import quantize


def test_it_measures_what_a_direct_computation_gives() -> None:
    weight = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    q, scales = quantize(weight)
    meter = ErrorMeter()
    for start in range(0, 64, 16):
        meter.update(weight[start : start + 16], q[start : start + 16], scales[start : start + 16], start)
    wide = weight.astype(np.float64)
    error = wide - q * scales[:, None].astype(np.float64)
    assert meter.sqnr_db == pytest.approx(10 * math.log10((wide**2).sum() / (error**2).sum()))
    steps = np.abs(error) / scales[:, None].astype(np.float64)
    assert meter.max_error_steps == steps.max() <= HALF_STEP
    assert steps[meter.worst] == steps.max()


def test_a_wrong_value_is_more_than_half_a_step_and_is_located() -> None:
    weight = np.float32([[1.0, 0.5], [0.25, -1.0]])
    q, scales = quantize(weight)
    q[1, 0] += 1
    meter = ErrorMeter()
    meter.update(weight, q, scales, 10)
    assert meter.max_error_steps > HALF_STEP
    assert meter.worst == (11, 0)


def test_an_exact_tensor_has_infinite_sqnr_and_a_lost_one_minus_infinity() -> None:
    exact, lost = ErrorMeter(), ErrorMeter()
    exact.update(np.float32([[1, 2]]), np.int8([[1, 2]]), np.float32([1]), 0)
    lost.update(np.float32([[0, 0]]), np.int8([[1, 0]]), np.float32([1]), 0)
    assert exact.sqnr_db == math.inf
    assert lost.sqnr_db == -math.inf


@pytest.mark.parametrize("scale", [np.nan, np.inf, 0.0])
def test_a_scale_that_is_no_scale_is_never_within_half_a_step(scale: float) -> None:
    weight = np.float32([[1.0, 0.5], [0.25, -1.0], [1.0, 1.0]])
    q, scales = quantize(weight)
    scales[1] = scale
    meter = ErrorMeter()
    for row in range(3):
        meter.update(weight[row : row + 1], q[row : row + 1], scales[row : row + 1], row)
    assert not meter.max_error_steps <= HALF_STEP
    assert meter.worst[0] == 1
