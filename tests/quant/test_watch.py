"""Histograms, the sample of tokens that they take, and values that are not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from exporters.model import TINY
from quant.calibration.histogram import BINS, edges, share_below
from quant.calibration.watch import (
    SAMPLED_TOKENS,
    NonFiniteActivationError,
    StatisticsWatcher,
    count,
    sampling_stride,
)
from quant.gemms import HIDDEN
from quant.paths.arithmetic import At
from quant.paths.weights import Weights
from tests.quant.models import (
    watched,
)


def by_definition(x: np.ndarray) -> np.ndarray:
    """One bin after the other: 16 to an octave, equally wide within it, from 2^-16 to 2^16."""
    borders = np.array([2.0 ** (i // 16 - 16) * (1 + i % 16 / 16) for i in range(BINS + 1)])
    borders[0], borders[-1] = 0.0, np.inf
    counts: np.ndarray = np.histogram(np.abs(x.astype(np.float64)), borders)[0]
    return counts


def test_bins_are_sixteenths_of_octaves() -> None:
    assert BINS == 512
    e = edges()
    assert e.dtype == np.float32
    assert len(e) == BINS + 1
    assert e[0] == 0
    assert e[16] == 2.0**-15
    assert e[-1] == 2.0**16
    for i in range(1, BINS + 1):
        assert e[i] == 2.0 ** (i // 16 - 16) * (1 + i % 16 / 16)


def test_an_edge_belongs_to_the_bin_above_it() -> None:
    e = edges()
    for i in range(1, BINS):
        below = np.nextafter(e[i], np.float32(0))
        found = count(torch.tensor([e[i], -e[i], below])).numpy()
        assert found[i] == 2
        assert found[i - 1] == 1


def test_the_ends_take_what_is_beyond_them() -> None:
    small = count(torch.tensor([0.0, -0.0, 1e-45, 2.0**-17, -(2.0**-16)]))
    assert small[0] == 5
    large = count(torch.tensor([2.0**16, -3e38, np.inf, 65535.0]))
    assert large[-1] == 4


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_every_value_is_counted_once_where_it_belongs(values: list[float]) -> None:
    x = np.float32(values)
    found = count(torch.from_numpy(x)).numpy()
    assert found.dtype == np.int64
    assert found.sum() == len(values)
    np.testing.assert_array_equal(found, by_definition(x))


def test_narrower_floats_are_counted_as_their_values() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float16, torch.bfloat16):
        np.testing.assert_array_equal(count(x.to(dtype)), by_definition(x.to(dtype).float().numpy()))


@pytest.mark.parametrize("tokens", [1, 24, 256, 257, 512, 1000])
def test_maxima_take_all_tokens_and_histograms_a_sample(tokens: int, weights: Weights) -> None:
    watcher = StatisticsWatcher(weights)
    x = torch.randn(tokens, TINY.width, generator=torch.Generator().manual_seed(tokens))
    watcher.operand(At(0, 0, "semantic"), "attn1.input", x)
    found = watcher.statistics()
    np.testing.assert_array_equal(found.channel_absmax["attn1.input"][0, 0], x.abs().amax(dim=0))
    total = int(found.histogram[0, 0, 0].sum())
    assert total % TINY.width == 0
    if tokens <= SAMPLED_TOKENS:
        assert total == tokens * TINY.width
    else:
        assert SAMPLED_TOKENS / 2 < total / TINY.width < SAMPLED_TOKENS * 2
    assert found.histogram.sum() == total


GRIDS = [(13, 30, 52), (13, 15, 26), (5, 15, 26), (21, 45, 80), (1, 32, 32), (5, 8, 14), (4, 6, 11), (2, 15, 17)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_sampled_tokens_are_spread_over_the_grid(grid: tuple[int, int, int]) -> None:
    """All columns, rows and frames are met, each about as often."""
    tokens = math.prod(grid)
    stride = sampling_stride(tokens)
    sampled = np.arange(0, tokens, stride)
    assert SAMPLED_TOKENS / 2 < len(sampled) < SAMPLED_TOKENS * 2
    for axis, size in zip(np.unravel_index(sampled, grid), grid, strict=True):
        counts = np.bincount(axis, minlength=size)
        assert counts.min() > 0
        assert counts.max() <= 2.5 * len(sampled) / size + 1


@given(st.integers(1, 100_000))
def test_a_stride_shares_no_divisor_with_the_tokens(tokens: int) -> None:
    stride = sampling_stride(tokens)
    assert math.gcd(stride, tokens) == 1
    wanted = tokens / SAMPLED_TOKENS
    nearer = [n for n in range(1, 2 * int(wanted) + 2) if abs(n - wanted) < abs(stride - wanted)]
    assert all(math.gcd(n, tokens) > 1 for n in nearer)
    assert stride == 1 or tokens > SAMPLED_TOKENS


def test_the_share_below_a_limit() -> None:
    x = np.abs(np.random.default_rng(0).standard_normal(100_000)).astype(np.float32)
    counts = count(torch.from_numpy(x)).numpy()
    for limit in (0.01, 0.5, 1.0, 2.5):
        assert share_below(counts, np.float64(limit)) == pytest.approx((x < limit).mean(), abs=2e-3)
    assert share_below(counts, np.float64(0.0)) == 0
    assert share_below(counts, np.float64(100.0)) == 1
    assert share_below(np.zeros(BINS, np.int64), np.float64(1.0)) == 0


# ---- what is not finite ----


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_named_with_its_first_place(value: float, weights: Weights) -> None:
    watcher = StatisticsWatcher(weights)
    good, bad = torch.ones(3, TINY.width), torch.ones(3, TINY.width)
    bad[1, 7] = value
    for block, name, x in ((0, "attn1.input", good), (0, "attn2.to_q.input", good), (1, "attn1.input", good),
                           (1, "attn2.to_q.input", bad), (1, "ffn.net.0.proj.input", bad)):  # fmt: skip
        watcher.operand(At(2, block, "semantic"), name, x)
    with pytest.raises(NonFiniteActivationError) as caught:
        watcher.check()
    assert (caught.value.step, caught.value.block, caught.value.name) == (2, 1, "attn2.to_q.input")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_outputs_are_looked_at_in_the_order_in_which_they_came(value: float, weights: Weights) -> None:
    """An output before the input that is made of it, and a hidden state before the next block's input."""
    good, bad = torch.ones(3, TINY.width), torch.full((3, TINY.width), value)
    block = ["attn1.input", "attn1.to_q.output", "attn1.scores_bound", "ffn.net.2.output", HIDDEN]
    for place in range(len(block)):
        watcher = StatisticsWatcher(weights)
        for number in range(TINY.layers):
            at = At(1, number, "semantic")
            x = [bad if number and n >= place else good for n in range(len(block))]
            watcher.operand(at, block[0], x[0])
            watcher.output(at, block[1], x[1])
            watcher.scores(at, "attn1", x[2][None], x[2][None])
            watcher.output(at, block[3], x[3])
            watcher.after_block(TINY.layers + number + 1, x[4])
        with pytest.raises(NonFiniteActivationError) as caught:
            watcher.statistics()
        assert (caught.value.step, caught.value.block, caught.value.name) == (1, 1, block[place])


def test_a_step_ends_a_run_whose_step_before_was_not_finite(weights: Weights) -> None:
    watcher = StatisticsWatcher(weights)
    last = TINY.layers - 1
    watcher.operand(At(1, last, "semantic"), "attn1.input", torch.full((3, TINY.width), math.nan))
    watcher.after_block(2 * TINY.layers, torch.ones(3, TINY.width))
    with pytest.raises(NonFiniteActivationError) as caught:
        watcher.after_block(3 * TINY.layers, torch.ones(3, TINY.width))
    assert (caught.value.step, caught.value.block, caught.value.name) == (1, last, "attn1.input")


def test_a_finite_trajectory_passes(weights: Weights, embeds: Tensor, noise: Tensor) -> None:
    watcher = StatisticsWatcher(weights)
    watched(weights, watcher, embeds, noise)
    watcher.check()
