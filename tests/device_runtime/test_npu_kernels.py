"""The NPU executor's kernels, each against what it should compute: sizes below, at, above and off the grid of 32.

Where a result is exact whatever the order of a sum (integers, one rounding), it must be equal to the bit. Elsewhere the
bound is what FP16's roundings alone can do. And every level of the processor and every number of threads must give the
same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from layouts.grid import pack
from layouts.order import HMX_FP16_2
from quant.paths.fp32 import join_heads, split_heads
from quant.paths.host import layer_norm, rms_norm, rotate
from quant.paths.npu import fp16_matmul, wide_matmul
from tests.device_runtime.kernels import (
    LEVELS,
    Array,
    Kernels,
    near_halves,
    padded,
    rng,
    same_bits_or_nan,
    tiled,
    untiled,
    usable_levels,
    weight,
)

HALF_ULP = 2.0**-11
"""Largest relative error of rounding to FP16, in its normal range."""
SMALLEST = 2.0**-24
"""FP16's smallest subnormal number."""

ROWS = (1, 8, 24, 31, 32, 33, 56, 72)
"""M: 24 and 8 are M mod 32 of the real video and of the smallest one."""
SHAPES = ((1, 1), (31, 33), (32, 32), (33, 31), (70, 200))
"""(N, K)"""


@pytest.fixture(params=LEVELS)
def kernels(programs: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Kernels]:
    """The kernels of each level; two threads, so that work is shared."""
    if request.param not in usable_levels(programs["hvdc_kernels"]):
        pytest.skip(f"this processor does not execute {request.param}")
    with Kernels(programs["hvdc_kernels"], request.param, 2) as running:
        yield running


@pytest.fixture
def generic(programs: dict[str, Path]) -> Iterator[Kernels]:
    """For what the levels' kernels are made of: the program computes it by itself."""
    with Kernels(programs["hvdc_kernels"]) as running:
        yield running


def test_fp32_is_narrowed_to_nearest_even(kernels: Kernels) -> None:
    x = near_halves()
    with np.errstate(over="ignore"):
        assert same_bits_or_nan(kernels.ask("narrow", len(x), arrays=(x,)), x.astype(np.float16))


def test_fp16_is_widened_exactly(generic: Kernels) -> None:
    x = np.arange(0x10000, dtype=np.uint16).view(np.float16)
    found = generic.ask("widen", len(x), arrays=(x,), dtype=np.float32)
    assert same_bits_or_nan(found, x.astype(np.float32))


def test_the_polynomial_is_right_at_every_magnitude(generic: Kernels) -> None:
    x = np.concatenate([np.linspace(-126, 127.49, 200_001), np.arange(-126, 128), [0.0, -0.0]]).astype(np.float32)
    found = generic.ask("exp2", len(x), arrays=(x,), dtype=np.float32).astype(np.float64)
    due = np.exp2(x.astype(np.float64))
    assert np.abs(found / due - 1).max() < 3e-7
    beyond = np.array([-127, -1e30, -np.inf, 128, 1e30, np.inf, np.nan], np.float32)
    with np.errstate(invalid="ignore"):
        found = generic.ask("exp2", len(beyond), arrays=(beyond,), dtype=np.float32)
    assert list(found[:6]) == [0, 0, 0, np.inf, np.inf, np.inf]
    assert np.isnan(found[6])


def test_gelu_is_the_tanh_form(generic: Kernels) -> None:
    x = np.concatenate([np.linspace(-12, 12, 100_001), [-1e30, -7e4, 7e4, 1e30, 0]]).astype(np.float32)
    found = generic.ask("gelu", len(x), arrays=(x,), dtype=np.float32)
    due = F.gelu(torch.tensor(x[:-5]).double(), approximate="tanh").numpy()
    assert np.abs(found[:-5] - due).max() < 1e-6
    assert list(found[-5:]) == [0, 0, np.float32(7e4), np.float32(1e30), 0]


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_weight_is_widened_as_the_oracle_does(kernels: Kernels, n: int, k: int) -> None:
    q = rng(n, k).integers(-127, 128, (n, k)).astype(np.int8)
    scale = rng(n, k).choice(
        np.array([1e-9, 1e-7, 3e-5, 7e-3, 1.1, 700.0], np.float32), n
    )  # below FP16's range … beyond it
    with np.errstate(over="ignore"):
        due = pack(HMX_FP16_2, (q.astype(np.float32) * scale[:, None]).astype(np.float16))
    found = kernels.ask("weight", n, k, arrays=tiled(q, scale))
    assert found.tobytes() == due.tobytes()


def linear(x: Array, w: Array, bias: Array | None = None) -> Array:
    """``fp16(float(fp16(acc)) + b)`` with exact sums."""
    acc = (x.astype(np.float64) @ w.astype(np.float64).T).astype(np.float16)
    return acc if bias is None else (acc.astype(np.float32) + bias).astype(np.float16)


def widened(q: Array, scale: Array) -> Array:
    return (q.astype(np.float32) * scale[:, None]).astype(np.float16)


@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_integers_are_multiplied_exactly(kernels: Kernels, m: int, n: int, k: int) -> None:
    """Sums stay below 2^11, where FP16 holds every integer: no order of them can differ."""
    x = rng(m).integers(-1, 2, (m, k)).astype(np.float16)
    q, ones = rng(n, k).integers(-4, 5, (n, k)).astype(np.int8), np.ones(n, np.float32)
    bias = rng(n).integers(-50, 50, n).astype(np.float32)
    found = kernels.ask("linear", m, n, k, 0, arrays=(x, *tiled(q, ones), padded(bias)))
    assert np.array_equal(found.reshape(m, n), (x.astype(np.int64) @ q.T.astype(np.int64) + bias.astype(np.int64)))


@pytest.mark.parametrize(("m", "n", "k"), [(24, 70, 200), (72, 33, 1536), (8, 32, 2048)])
def test_a_linear_is_the_oracles_to_a_flipped_rounding(kernels: Kernels, m: int, n: int, k: int) -> None:
    """FP32 sums may fall on the other side of one rounding in a hundred; then one or both of two roundings differ."""
    r = rng(m, n, k)
    x, (q, scale), bias = r.standard_normal((m, k)).astype(np.float16), weight(r, n, k), r.standard_normal(n)
    bias = bias.astype(np.float32)
    found = kernels.ask("linear", m, n, k, 0, arrays=(x, *tiled(q, scale), padded(bias))).reshape(m, n)
    due = linear(x, widened(q, scale), bias)
    size = np.maximum(np.abs(due - bias), np.abs(due)).astype(np.float64)
    assert np.all(np.abs(found.astype(np.float64) - due) <= 4 * HALF_ULP * size + SMALLEST)
    assert np.mean(found != due) < 0.01


@pytest.mark.parametrize("rank", [1, 31, 32, 40])
def test_the_detail_expert_adds_its_adapter(kernels: Kernels, rank: int) -> None:
    m, n, k = 56, 70, 100
    r = rng(rank)
    x, bias = r.standard_normal((m, k)).astype(np.float16), r.standard_normal(n).astype(np.float32)
    base, a, b = weight(r, n, k), weight(r, rank, k), weight(r, n, rank)
    found = kernels.ask("linear", m, n, k, rank, arrays=(x, *tiled(*base), padded(bias), *tiled(*a), *tiled(*b)))
    y, more = linear(x, widened(*base), bias), linear(linear(x, widened(*a)), widened(*b))
    due = (y.astype(np.float32) + more.astype(np.float32)).astype(np.float16)
    found = found.reshape(m, n)
    assert np.abs(found.astype(np.float64) - due).max() <= 6 * HALF_ULP * np.abs(due).max()
    assert np.mean(found != due) < 0.02
    assert np.mean(due != y) > 0.5, "an adapter that changes nothing proves nothing"


@pytest.mark.parametrize(("m", "n", "k"), [(24, 33, 64), (40, 96, 31)])
def test_gelu_follows_in_the_tiles_of_the_next_operand(kernels: Kernels, m: int, n: int, k: int) -> None:
    r = rng(m, n, k)
    x, (q, scale), bias = r.standard_normal((m, k)).astype(np.float16), weight(r, n, k), r.standard_normal(n)
    bias = bias.astype(np.float32)
    found = kernels.ask("up", m, n, k, arrays=(x, *tiled(q, scale), padded(bias)))
    wide = -(-n // 32) * 32
    found = untiled(HMX_FP16_2, found, m, wide)
    due = F.gelu(torch.tensor(linear(x, widened(q, scale), bias)).double(), approximate="tanh").half().numpy()
    size = np.abs(due.astype(np.float64))
    assert np.all(np.abs(found[:, :n] - due.astype(np.float64)) <= 8 * HALF_ULP * np.maximum(size, 0.1))
    assert np.mean(found[:, :n] != due) < 0.02, "the linear's result is rounded before the GELU"
    assert not found[:, n:].any(), "what pads the next operand must not be seen by it"


def attention64(q: Array, k: Array, v: Array, heads: int) -> tuple[Array, Array, Array]:
    """softmax(q kᵀ / √d) v, the largest score of each row, and Σ p·|v|: float64 ``[m, width]``, ``[heads, m, 1]``."""
    query, key, value = (split_heads(torch.tensor(x).double(), heads) for x in (q, k, v))
    scores = query @ key.transpose(-1, -2)
    p = torch.softmax(scores / query.shape[-1] ** 0.5, dim=-1)
    return (
        join_heads(p @ value).numpy(),
        scores.abs().amax(-1, keepdim=True).numpy(),
        join_heads(p @ value.abs()).numpy(),
    )


def spread(r: np.random.Generator, m: int, keys: int, heads: int, dim: int, sigma: float) -> tuple[Array, Array, Array]:
    """Operands whose scores, divided by √dim, have a standard deviation of ``sigma``."""
    q = (r.standard_normal((m, heads * dim)) * sigma).astype(np.float16)
    k, v = (r.standard_normal((keys, heads * dim)).astype(np.float16) for _ in range(2))
    return q, k, v


def check_attention(kernels: Kernels, q: Array, k: Array, v: Array, heads: int) -> None:
    """Against float64, within what is rounded on the way: the score (half a unit of the row's largest, over √d), the
    weight, both in numerator and denominator; then the result."""
    m, dim = q.shape[0], q.shape[1] // heads
    found = kernels.ask("attention", m, len(k), heads, dim, arrays=(q, k, v)).reshape(q.shape).astype(np.float64)
    due, largest, weights = attention64(q, k, v, heads)
    score = np.exp(np.spacing(largest.astype(np.float16)).astype(np.float64) / 2 / dim**0.5) - 1
    score = np.repeat(score[..., 0].T, dim, axis=1)
    bound = 2 * (score + HALF_ULP + 1e-6) * weights + HALF_ULP * np.abs(due) + SMALLEST
    assert np.all(np.abs(found - due) <= bound)


@pytest.mark.parametrize(
    ("m", "keys", "heads", "dim"),
    [(1, 1, 1, 32), (8, 24, 2, 24), (24, 8, 3, 128), (31, 33, 1, 140), (32, 32, 2, 32), (33, 31, 1, 300),
     (130, 100, 2, 128), (56, 513, 1, 64), (40, 1080, 1, 128)],
)  # fmt: skip
def test_attention_of_any_size(kernels: Kernels, m: int, keys: int, heads: int, dim: int) -> None:
    """Above 512 keys there are several pieces; 130 rows are more than one thread takes at once."""
    check_attention(kernels, *spread(rng(m, keys), m, keys, heads, dim, 1.0), heads)


@pytest.mark.parametrize("sigma", [0.5, 2.0, 8.0])
def test_attention_rounds_where_the_oracle_does(kernels: Kernels, sigma: float) -> None:
    """Up to 512 keys are one piece, so that the largest score is the row's from the start. Without the rounding of
    scores, half of the results and more would differ by a unit; without that of weights, a fifth and more."""
    q, k, v = spread(rng(7), 24, 500, 2, 64, sigma)
    found = kernels.ask("attention", 24, 500, 2, 64, arrays=(q, k, v)).reshape(q.shape)
    query, key, value = (split_heads(torch.tensor(x), 2) for x in (q, k, v))
    scores = fp16_matmul(query, key).float()
    p = torch.exp((scores - scores.amax(-1, keepdim=True)) / 64**0.5).half()
    due = wide_matmul(p, value.transpose(-1, -2)) / p.sum(-1, keepdim=True, dtype=torch.float32)
    assert np.mean(found != join_heads(due.half()).numpy()) < 0.02


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0, 4.0, 8.0])
def test_attention_over_the_whole_video(programs: dict[str, Path], sigma: float) -> None:
    """M = 20,280 keys: nothing is lost that is small but many, at any spread of the scores."""
    with Kernels(programs["hvdc_kernels"], usable_levels(programs["hvdc_kernels"])[-1], 2) as kernels:
        check_attention(kernels, *spread(rng(int(2 * sigma)), 24, 20_280, 1, 128, sigma), 1)


def test_the_largest_score_may_come_last(kernels: Kernels) -> None:
    """Scores rise from piece to piece, so that every earlier sum has to shrink; and fall, so that none may."""
    q, k, v = spread(rng(1), 24, 1700, 1, 64, 1.0)
    order = np.argsort(q[0].astype(np.float32) @ k.astype(np.float32).T)
    for keys in (order, order[::-1]):
        check_attention(kernels, np.repeat(q[:1] * 6, 24, axis=0), k[keys], v[keys], 1)


@pytest.mark.parametrize("keys", [1, 31, 33, 520, 1032])
def test_padded_keys_contribute_nothing(kernels: Kernels, keys: int) -> None:
    """All scores are very negative, so that a key of zeros would outweigh them; and of equal values any mean is one."""
    q, v = np.full((8, 32), -4, np.float16), np.ones((keys, 32), np.float16)
    found = kernels.ask("attention", 8, keys, 1, 32, arrays=(q, np.full((keys, 32), 4, np.float16), v))
    assert np.all(found == 1)


def test_what_is_not_a_number_stays_visible(kernels: Kernels) -> None:
    q, k, v = spread(rng(2), 8, 40, 1, 32, 1.0)
    q[3, 5] = np.nan
    found = kernels.ask("attention", 8, 40, 1, 32, arrays=(q, k, v)).reshape(8, 32)
    assert np.isnan(found[3]).all()
    assert not np.isnan(np.delete(found, 3, axis=0)).any()


@pytest.mark.parametrize("width", [1, 31, 32, 33, 140, 1536])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(("mean", "deviation"), [(0, 1), (1e-3, 1e-3), (0, 300), (1000, 1)])
def test_layer_norm(kernels: Kernels, width: int, affine: bool, mean: float, deviation: float) -> None:
    """A small row shows epsilon; of a row far from zero, FP32 keeps the mean to 2^-24 of it."""
    r = rng(width)
    x = (r.standard_normal((24, width)) * deviation + mean).astype(np.float32)
    factor, addend = (r.standard_normal(width).astype(np.float32) for _ in range(2))
    found = kernels.ask("layer_norm", 24, width, int(affine), arrays=(x, factor, addend) if affine else (x,))
    due = layer_norm(torch.tensor(x).double(), 1e-6).numpy()
    error = 2.0**-22 * (np.abs(due) + mean / deviation + 1)
    if affine:
        due, error = due * factor + addend, error * (np.abs(factor) + np.abs(addend))
    bound = HALF_ULP * np.abs(due) + 2 * error + SMALLEST
    assert np.all(np.abs(found.reshape(24, width) - due) <= bound)


@pytest.mark.parametrize(("width", "heads"), [(24, 1), (32, 2), (140, 1), (1536, 12)])
@pytest.mark.parametrize("rotated", [False, True])
def test_rms_norm_and_rope(kernels: Kernels, width: int, heads: int, rotated: bool) -> None:
    """Over all channels, before the heads; only what is rotated is paired within a head."""
    r = rng(width)
    x, gain = (r.standard_normal((8, width)) * 3).astype(np.float16), r.standard_normal(width).astype(np.float32)
    angles = r.uniform(-100, 100, (8, width // heads // 2))
    rotations = np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    found = kernels.ask(
        "rms_norm", 8, width, heads, int(rotated), arrays=(x, gain, rotations) if rotated else (x, gain)
    )
    due = rms_norm(torch.tensor(x).float(), torch.tensor(gain), 1e-6)
    if rotated:
        due = rotate(due, torch.view_as_complex(torch.tensor(rotations)), heads)
    due_half = due.half().numpy()
    found = found.reshape(8, width)
    assert np.all(np.abs(found - due_half) <= 2 * HALF_ULP * np.abs(due_half) + 1e-6)
    assert np.mean(found != due_half) < 0.01


@pytest.mark.parametrize("width", [1, 31, 32, 33, 1536])
@pytest.mark.parametrize("gated", [False, True])
def test_the_residual_stream_is_fp32_without_fusing(kernels: Kernels, width: int, gated: bool) -> None:
    r = rng(width)
    x, gate = (r.standard_normal(width).astype(np.float32) for _ in range(2))
    y = r.standard_normal(width).astype(np.float16)
    found = kernels.ask("residual", width, int(gated), arrays=(x, y, gate) if gated else (x, y), dtype=np.float32)
    due = x + y.astype(np.float32) * (gate if gated else np.float32(1))
    assert np.array_equal(found, due)


def test_levels_and_threads_give_the_same_bits(programs: dict[str, Path]) -> None:
    r = rng(3)
    q, k, v = spread(r, 72, 600, 2, 64, 2.0)
    x, base, a, b = (
        r.standard_normal((72, 300)).astype(np.float16),
        *(weight(r, *s) for s in ((200, 300), (8, 300), (200, 8))),
    )
    bias = padded(r.standard_normal(200).astype(np.float32))
    gain, rotations = r.standard_normal(300).astype(np.float32), r.standard_normal((72, 100)).astype(np.float32)
    found = set()
    for level, threads in itertools.product(usable_levels(programs["hvdc_kernels"]), (1, 3)):
        with Kernels(programs["hvdc_kernels"], level, threads) as kernels:
            attended = kernels.ask("attention", 72, 600, 2, 64, arrays=(q, k, v))
            y = kernels.ask("linear", 72, 200, 300, 8, arrays=(x, *tiled(*base), bias, *tiled(*a), *tiled(*b)))
            activated = kernels.ask("up", 72, 200, 300, arrays=(x, *tiled(*base), bias))
            normed = kernels.ask("layer_norm", 72, 300, 0, arrays=(x.astype(np.float32),))
            rotated = kernels.ask("rms_norm", 72, 300, 3, 1, arrays=(x, gain, rotations))
        found.add(b"".join(part.tobytes() for part in (attended, y, activated, normed, rotated)))
    assert len(found) == 1


def test_an_unknown_level_is_refused_with_those_there_are(programs: dict[str, Path]) -> None:
    with (
        pytest.raises(AssertionError, match="levels are generic, x86-64-v3, x86-64-v4"),
        Kernels(programs["hvdc_kernels"], "best"),
    ):
        pass
