"""The NPU's kernels as Hexagon code, executed by an emulator: to the bit what the portable ones compute on this
machine, which test_npu_kernels.py compares with the Python path.

What is defined to the bit is asked of numpy as well: widened weights, narrowed values, exponentials.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from device_runtime.build import HEXAGON_EMULATED
from layouts.grid import pack
from layouts.order import HMX_FP16_2
from tests.device_runtime.hexagon import built_for_hexagon, emulated, why_no_hexagon
from tests.device_runtime.kernels import Array, Kernels, near_halves, padded, rng, same_bits_or_nan, tiled, weight

pytestmark = pytest.mark.skipif(bool(why_no_hexagon()), reason=why_no_hexagon() or "there is one")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_for_hexagon(tmp_path_factory)


@pytest.fixture(scope="module", params=HEXAGON_EMULATED)
def hexagon(build: Path, request: pytest.FixtureRequest) -> Iterator[Kernels]:
    with Kernels(emulated(build, request.param, "hvdc_kernels"), threads=2) as running:
        yield running


@pytest.fixture(scope="module")
def host(programs: dict[str, Path]) -> Iterator[Kernels]:
    with Kernels(programs["hvdc_kernels"], threads=2) as running:
        yield running


class Both:
    """Asks both, and insists on equal bits."""

    def __init__(self, hexagon: Kernels, host: Kernels) -> None:
        self._hexagon, self._host = hexagon, host

    def ask(
        self, name: str, *sizes: int, arrays: tuple[Array, ...], dtype: npt.DTypeLike = np.float16, tiny: float = 0
    ) -> Array:
        """``tiny``: magnitudes below it need only be so on both sides, and of the same sign."""
        found = self._hexagon.ask(name, *sizes, arrays=arrays, dtype=dtype)
        due = self._host.ask(name, *sizes, arrays=arrays, dtype=dtype)
        nan = np.isnan(found) & np.isnan(due)  # whose payload neither of the machines defines
        small = (np.abs(found) < tiny) & (np.abs(due) < tiny)
        one, other = (np.copysign(np.where(nan | small, 0, x), np.where(nan, 1, x)) for x in (found, due))
        word = np.dtype(f"u{found.itemsize}")
        np.testing.assert_array_equal(one.astype(found.dtype).view(word), other.astype(found.dtype).view(word))
        return found


@pytest.fixture
def both(hexagon: Kernels, host: Kernels) -> Both:
    return Both(hexagon, host)


def widened(q: Array, scale: Array) -> Array:
    """fp16(q · s) as tiles."""
    with np.errstate(over="ignore"):
        return pack(HMX_FP16_2, (q.astype(np.float32) * scale[:, None]).astype(np.float16))


@pytest.mark.parametrize(("n", "k"), [(64, 1536), (1, 1), (31, 33), (70, 200)])
def test_weights_are_widened(both: Both, n: int, k: int) -> None:
    q, scale = weight(rng(n, k), n, k)
    assert both.ask("weight", n, k, arrays=tiled(q, scale)).tobytes() == widened(q, scale).tobytes()


def test_weights_are_widened_at_every_magnitude_of_a_scale(both: Both) -> None:
    """Subnormal results, overflow to infinity, zeros of both signs, ties: 127 codes times each binary exponent."""
    exponents = np.arange(-160, 30).repeat(4)
    scale = np.ldexp(rng(5).uniform(1, 2, len(exponents)), exponents).astype(np.float32)
    q = np.broadcast_to(np.arange(-127, 128, dtype=np.int8), (len(scale), 255)).copy()
    assert both.ask("weight", *q.shape, arrays=tiled(q, scale)).tobytes() == widened(q, scale).tobytes()


def test_a_device_s_factors_have_the_same_products() -> None:
    """lanes_device.h multiplies codes · 2^24 by scales · 2^-24. Every code, scales of every binary exponent."""
    q = np.arange(-128, 128, dtype=np.float32)[:, None]
    fractions = np.concatenate([rng(6).uniform(1, 2, 61), [1.0, 1.5, np.nextafter(np.float32(2), np.float32(1))]])
    scale = np.ldexp(fractions.astype(np.float32), np.arange(-149, 128)[:, None]).ravel()
    with np.errstate(over="ignore", under="ignore"):
        due, found = q * scale, (q * np.float32(2**24)) * (scale * np.float32(2**-24))
        assert np.array_equal(due.astype(np.float16).view(np.uint16), found.astype(np.float16).view(np.uint16))
    normal = scale >= 2.0**-102
    assert np.array_equal(due[:, normal].view(np.uint32), found[:, normal].view(np.uint32))


def test_narrowing_keeps_the_order_of_elements(both: Both) -> None:
    """The paper's fault: a vector instruction that narrows two vectors interleaves them."""
    x = np.arange(2048, dtype=np.float32)
    for count in (2048, 2047, 64, 63, 33, 32, 31, 1):
        np.testing.assert_array_equal(both.ask("narrow", count, arrays=(x[:count],)), x[:count].astype(np.float16))


def test_narrowing_is_to_nearest_even(both: Both) -> None:
    """All finite FP16 values, the ties between them, and their neighbours in FP32; and arbitrary bits."""
    x = near_halves()
    with np.errstate(over="ignore"):
        due = x.astype(np.float16)
    found = both.ask("narrow", len(x), arrays=(x,))
    assert same_bits_or_nan(found, due)


def test_exponentials_of_every_half(both: Both) -> None:
    """The paper's fault: an exponential that is right for small scores only."""
    x = np.arange(0x10000, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(invalid="ignore"):
        found = both.ask("exp2", len(x), arrays=(x,), dtype=np.float32).astype(np.float64)
    inside = (x >= -126) & (x < 127.5)
    due = np.exp2(x[inside].astype(np.float64))
    assert np.abs(found[inside] / due - 1).max() < 3e-7
    assert np.all(found[x < -126.5] == 0)
    assert np.all(np.isinf(found[x >= 128]))
    assert np.all(np.isnan(found[np.isnan(x)]))


def test_gelu(both: Both) -> None:
    """Every FP16 number, whose GELU is narrowed to FP16 again: what is lost below 2^-84 is 0 there."""
    x = np.arange(0x10000, dtype=np.uint16).view(np.float16).astype(np.float32)
    both.ask("gelu", len(x), arrays=(x,), dtype=np.float32, tiny=2.0**-84)


@pytest.mark.parametrize("width", [1, 31, 33, 140, 1536])
@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm(both: Both, width: int, affine: bool) -> None:
    r = rng(width)
    x = (r.standard_normal((5, width)) * 3 + 1).astype(np.float32)
    factor, addend = (r.standard_normal(width).astype(np.float32) for _ in range(2))
    both.ask("layer_norm", 5, width, int(affine), arrays=(x, factor, addend) if affine else (x,))


@pytest.mark.parametrize(("width", "heads"), [(24, 1), (32, 2), (140, 1), (1536, 12)])
@pytest.mark.parametrize("rotated", [False, True])
def test_rms_norm_and_rope(both: Both, width: int, heads: int, rotated: bool) -> None:
    r = rng(width)
    x, gain = (r.standard_normal((5, width)) * 3).astype(np.float16), r.standard_normal(width).astype(np.float32)
    angles = r.uniform(-100, 100, (5, width // heads // 2))
    rotations = np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    both.ask("rms_norm", 5, width, heads, int(rotated), arrays=(x, gain, rotations) if rotated else (x, gain))


@pytest.mark.parametrize("width", [1, 33, 1536])
@pytest.mark.parametrize("gated", [False, True])
def test_the_residual_stream(both: Both, width: int, gated: bool) -> None:
    r = rng(width)
    x, gate = (r.standard_normal(width).astype(np.float32) for _ in range(2))
    y = r.standard_normal(width).astype(np.float16)
    both.ask("residual", width, int(gated), arrays=(x, y, gate) if gated else (x, y), dtype=np.float32)


@pytest.mark.parametrize(("m", "n", "k", "rank"), [(1, 1, 1, 0), (24, 33, 31, 0), (56, 70, 200, 8), (40, 64, 96, 32)])
def test_a_linear_and_its_adapter(both: Both, m: int, n: int, k: int, rank: int) -> None:
    r = rng(m, n, k)
    x, bias = r.standard_normal((m, k)).astype(np.float16), padded(r.standard_normal(n).astype(np.float32))
    arrays: tuple[Array, ...] = (x, *tiled(*weight(r, n, k)), bias)
    if rank:
        arrays = (*arrays, *tiled(*weight(r, rank, k)), *tiled(*weight(r, n, rank)))
    both.ask("linear", m, n, k, rank, arrays=arrays)


def test_the_feed_forwards_first_half(both: Both) -> None:
    r = rng(1)
    x, bias = r.standard_normal((40, 70)).astype(np.float16), padded(r.standard_normal(96).astype(np.float32))
    both.ask("up", 40, 96, 70, arrays=(x, *tiled(*weight(r, 96, 70)), bias))


@pytest.mark.parametrize(
    ("m", "keys", "heads", "dim"), [(1, 1, 1, 32), (8, 24, 2, 24), (24, 8, 3, 128), (33, 31, 1, 140), (24, 520, 1, 32)]
)
@pytest.mark.parametrize("sigma", [1.0, 8.0])
def test_attention(both: Both, m: int, keys: int, heads: int, dim: int, sigma: float) -> None:
    r, width = rng(m, keys), heads * dim
    q, k, v = (r.standard_normal((rows, width)) for rows in (m, keys, keys))
    q *= sigma
    both.ask("attention", m, keys, heads, dim, arrays=tuple(x.astype(np.float16) for x in (q, k, v)))
