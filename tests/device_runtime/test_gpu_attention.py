"""Attention on the GPU: against the oracle, and at the full model's number of keys against float64."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from layouts.grid import pack
from layouts.order import HMX_INT8_K4
from quant.paths.arithmetic import At
from quant.paths.gpu import GpuArithmetic, Quantized
from quant.paths.weights import Weights
from quant.scales import Scales
from tests.device_runtime.gpu import Array, Gpu, padded

AT = At(0, 0, "semantic")
FULL = 20_280
"""Tokens of 49 frames at 832 × 480: M mod 32 = 24."""

CASES = [(1, 8, 1, 128), (24, 24, 2, 128), (32, 32, 2, 128), (40, 56, 3, 48), (300, 72, 2, 128), (33, 512, 12, 128)]
"""Queries, keys, heads, channels of a head: M mod 32 = 8 and 24, one key tile and more, more than 256 query rows."""


def attend(gpu: Gpu, q: Array, k: Array, v: Array, scales: tuple[float, float, float]) -> Array:
    """Codes ``[tokens, heads, head]`` to ``[rows, heads · head]``."""
    rows, heads, head = q.shape
    keys = k.shape[0]
    k_tiles = np.concatenate([pack(HMX_INT8_K4, k[:, h]).reshape(-1) for h in range(heads)])
    v_tiles = np.concatenate([pack(HMX_INT8_K4, np.ascontiguousarray(v[:, h].T)).reshape(-1) for h in range(heads)])
    question = ("attention", heads, head, rows, keys, *map(repr, scales), padded(q), k_tiles, v_tiles)
    return gpu.array(np.float32, (rows, heads * head), *question)


def oracle(q: Array, k: Array, v: Array, scales: tuple[float, float, float]) -> Array:
    shape = SimpleNamespace(shape=SimpleNamespace(heads=q.shape[1]))
    arithmetic = GpuArithmetic(cast("Weights", shape), cast("Scales", None))
    operands = [
        Quantized(torch.from_numpy(x.reshape(x.shape[0], -1)), torch.tensor(scale, dtype=torch.float32))
        for x, scale in zip((q, k, v), scales, strict=True)
    ]
    return cast("Array", arithmetic.attention(AT, "attn1", *operands).numpy())


def codes(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(-127, 128, shape).astype(np.int8)


@pytest.mark.parametrize(("rows", "keys", "heads", "head"), CASES)
def test_attention_is_the_oracles(gpu: Gpu, rows: int, keys: int, heads: int, head: int) -> None:
    """Scores, sums and the last division are the same to the bit; a probability may be off by one of 127 where 127 · e
    is next to a half (both exponentials are right to some 1e-7), which is 1 / Σp of what is attended to."""
    q, k, v = codes(rows, heads, head, seed=0), codes(keys, heads, head, seed=1), codes(keys, heads, head, seed=2)
    scales = (0.031, 0.0291, 0.0172)
    found, expected = attend(gpu, q, k, v, scales), oracle(q, k, v, scales)
    assert (found == expected).mean() > 0.99
    assert np.abs(found - expected).max() <= 2 * 127 * scales[2] / 127


def test_equal_scores_give_the_mean_of_all_values(gpu: Gpu) -> None:
    """Normalised probabilities of 4,000 keys would all be rounded to zero."""
    q, k, v = np.zeros((5, 2, 128), np.int8), codes(4000, 2, 128, seed=1), codes(4000, 2, 128, seed=2)
    found = attend(gpu, q, k, v, (0.1, 0.1, 0.5))
    mean = v.astype(np.float64).mean(axis=0).reshape(-1) * 0.5
    np.testing.assert_allclose(found, np.tile(mean, (5, 1)), rtol=1e-6, atol=1e-6)


def test_padded_keys_are_left_out(gpu: Gpu) -> None:
    """Scores of real keys far below zero, which is what padding's would be."""
    q, v = np.full((3, 2, 128), 127, np.int8), codes(25, 2, 128, seed=2)
    found = attend(gpu, q, -q[:1].repeat(25, axis=0), v, (0.05, 0.05, 1.0))
    mean = v.astype(np.float64).mean(axis=0).reshape(-1)
    np.testing.assert_allclose(found, np.tile(mean, (3, 1)), rtol=1e-6, atol=1e-6)


def spread(sigma: float, seed: int = 0) -> tuple[Array, Array, Array, tuple[float, float, float]]:
    """Queries, keys and values of 20,280 tokens whose scores have this standard deviation."""
    rng = np.random.default_rng(seed)
    q, k = (np.rint(rng.standard_normal((n, 1, 128)) * 40).clip(-127, 127).astype(np.int8) for n in (8, FULL))
    v = np.rint(rng.standard_normal((FULL, 1, 128)) * 30 + rng.uniform(-60, 60, 128)).clip(-127, 127).astype(np.int8)
    raw = (q[:, 0].astype(np.float64) @ k[:, 0].astype(np.float64).T / math.sqrt(128)).std()
    return q, k, v, (float(np.float32(sigma / raw / 0.02)), 0.02, 0.01)


def in_float64(q: Array, k: Array, scales: tuple[float, float, float], rounded: bool) -> Array:
    """``127 · e`` of every query and key, from scores rounded to FP16 as both engines have them, or from exact ones."""
    products = q[:, 0].astype(np.float64) @ k[:, 0].astype(np.float64).T
    factor = np.float32(scales[0]) * np.float32(scales[1]) / np.float32(math.sqrt(128))
    scores = (products.astype(np.float32) * factor).astype(np.float16) if rounded else products * factor
    scores = scores.astype(np.float64)
    return cast("Array", 127 * np.exp(scores - scores.max(axis=1, keepdims=True)))


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0, 4.0, 8.0])
def test_attention_over_all_tokens_of_the_full_model(sigma: float, gpu: Gpu) -> None:
    """As the form with 127 · e in float64, whatever the spread of the scores: within some roundings of FP32, and one
    code for each probability that is next to a half. And near softmax itself: what the form leaves out is keys below
    1 / 254 of the highest. At σ = 4 those are much of the weight, spread over thousands of keys; the error is then 5 %
    of the values' deviation, and less at every other spread."""
    q, k, v, scales = spread(sigma)
    values = v[:, 0].astype(np.float64) * scales[2]
    found = attend(gpu, q, k, v, scales)
    exact = in_float64(q, k, scales, rounded=True)
    p = np.rint(exact)
    expected = p @ values / p.sum(axis=1, keepdims=True)
    undecided = (np.abs(exact % 1 - 0.5) < 1e-4).astype(np.float64)
    slack = undecided @ (2 * np.abs(values)) / p.sum(axis=1, keepdims=True) + 1e-6 * np.abs(values).max()
    assert (np.abs(found - expected) <= slack).all()
    weight = in_float64(q, k, scales, rounded=False)
    softmax = weight @ values / weight.sum(axis=1, keepdims=True)
    assert np.sqrt(((found - softmax) ** 2).mean()) <= 0.06 * values.std(axis=0).mean()
