"""The GPU's kernels one by one: integers and epilogues to the bit, codes but where a half could fall both ways."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from layouts.grid import TileGrid, pack, unpack
from layouts.order import HMX_INT8_K4
from quant.integer import int8_matmul, quantize_activations
from quant.paths.block import modulate
from quant.paths.host import layer_norm, rms_norm, rotate
from tests.device_runtime.gpu import Array, Gpu, padded

EPS = 1e-6
HALF_WINDOW = 1e-3
"""A value this near to a half may be rounded either way: sums of some hundred FP32 numbers in another order than
torch's, relative 1e-6, of up to 127 codes, with room for exp and tanh."""

SIZES = [(1, 32, 32), (31, 32, 64), (32, 64, 32), (33, 96, 96), (56, 160, 128), (72, 32, 224), (40, 1536, 256)]
"""Rows, K, columns (padded): below, at and above 32 rows; M mod 32 = 24 and 8; K long enough for every loop."""

FORMS = ["plain", "khr", "qcom", "nvidia"]


def codes(*shape: int, seed: int = 0) -> Array:
    """Random codes; the first row has the largest magnitude."""
    x = np.random.default_rng(seed).integers(-127, 128, shape).astype(np.int8)
    x[..., 0, :] = -127
    return x


def tiles(w: Array) -> Array:
    """``[n, k]`` in the tile order, one matrix after another."""
    return np.concatenate([pack(HMX_INT8_K4, m).reshape(-1) for m in w.reshape(-1, *w.shape[-2:])])


def product(a: Array, w: Array) -> Array:
    return int8_matmul(torch.from_numpy(a), torch.from_numpy(w)).numpy()


def sums(gpu: Gpu, a: Array, w: Array) -> Array:
    batches, rows, k = a.shape
    columns = w.shape[1]
    return gpu.array(np.int32, (batches, rows, columns), "sums", batches, rows, columns, k, a, tiles(w))


def random(*shape: int, seed: int = 0) -> Array:
    """As activations are: some channels much larger than the others."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * rng.lognormal(0, 0.7, shape[-1])).astype(np.float32)


def assert_codes(found: Array, value: Tensor, scale: float) -> None:
    """The codes of ``value``, but where ``value / scale`` is next to a half."""
    expected = quantize_activations(value, torch.tensor(scale)).numpy().astype(int)
    exact = value.double().numpy() / np.float64(np.float32(scale))
    clear = np.abs(exact % 1 - 0.5) > HALF_WINDOW
    assert clear.mean() > 0.98
    np.testing.assert_array_equal(found[clear], expected[clear])
    assert np.abs(found.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("form", FORMS)
def test_integer_sums_are_exact_in_every_form_of_the_dot_product(
    form: str, start_gpu: Callable[..., Gpu], record_property: Callable[[str, object], None]
) -> None:
    """Where the driver lacks a form's instruction, C stands in its place, and the report says that it was emulated."""
    options = {} if form == "plain" else {"emulate": 1, "cache": ""}
    with start_gpu(dot=form, **options) as running:
        chosen = running.ask("device", 128)
        record_property("dot form", f"{form}, emulated" if "EMULATE_DOT" in chosen else form)
        assert chosen.startswith(f"{form} ")
        for i, (rows, k, columns) in enumerate(SIZES):
            a, w = codes(2, rows, k, seed=i), codes(2, columns, k, seed=i + 1)
            np.testing.assert_array_equal(sums(running, a, w), product(a, w), err_msg=f"{rows} {k} {columns}")


@pytest.mark.parametrize("shape", [1, 2, 3, 4, 5, 6])
def test_integer_sums_are_exact_in_every_shape_for_gpus(shape: int, start_gpu: Callable[..., Gpu]) -> None:
    with start_gpu(dot="plain", as_gpu=1, gemm_shape=shape, cache="") as running:
        running.ask("device", 128)
        for rows, k, columns in SIZES:
            a, w = codes(2, rows, k), codes(2, columns, k, seed=1)
            np.testing.assert_array_equal(sums(running, a, w), product(a, w), err_msg=f"{rows} {k} {columns}")


@pytest.mark.parametrize("value", [127, -127])
def test_the_largest_sum_of_the_model_is_exact(gpu: Gpu, value: int) -> None:
    """8,960 products of 127 · 127: beyond FP32's integers, within INT32."""
    a, w = np.full((1, 8, 8960), value, np.int8), np.full((1, 32, 8960), 127, np.int8)
    assert (sums(gpu, a, w) == value * 127 * 8960).all()


@pytest.mark.parametrize(("rows", "k", "columns"), SIZES)
def test_a_linears_epilogue_is_exact(gpu: Gpu, rows: int, k: int, columns: int) -> None:
    """``acc · (s_x · s_j) + b`` and an adapter's addition: FP32 operations in this order, none fused."""
    a, w = codes(1, rows, k), codes(1, columns, k, seed=1)
    rng = np.random.default_rng(2)
    scale = np.float32(0.0317)
    scales, bias = (rng.uniform(1e-3, 2e-2, columns).astype(np.float32) for _ in range(2))
    before = random(rows, columns)
    plain = torch.from_numpy(product(a, w)[0]) * (torch.tensor(scale) * torch.from_numpy(scales))

    def run(b: Array | str, y: Array | str) -> Array:
        question = ("linear", rows, columns, k, a, tiles(w), repr(float(scale)), scales, b, y)
        return gpu.array(np.float32, (rows, columns), *question)

    np.testing.assert_array_equal(run("-", "-"), plain)
    np.testing.assert_array_equal(run(bias, "-"), plain + torch.from_numpy(bias))
    np.testing.assert_array_equal(run("-", before), torch.from_numpy(before) + plain)


@pytest.mark.parametrize("width", [256, 140])
@pytest.mark.parametrize("rows", [1, 24, 40])
def test_quantising_is_exact(gpu: Gpu, rows: int, width: int) -> None:
    """Also at halves of a scale that is no power of two, beyond the codes, and at the ends of FP32."""
    scale = np.float32(0.037)
    x = random(rows, width)
    x[0, :13] = [0.5, 1.5, -2.5, 126.5, 127.5, -126.5, -127.5, 3e38, -3e38, 1e-40, 0.0, -0.0, 200]
    x[0, :7] *= scale
    expected = padded(quantize_activations(torch.from_numpy(x), torch.tensor(scale)).numpy())
    beyond = padded(x)
    beyond[:, width:] = 9.0  # what stands behind the last channel is not looked at
    found = gpu.array(np.int8, expected.shape, "quantize", rows, width, repr(float(scale)), beyond)
    np.testing.assert_array_equal(found, expected)
    halfs = padded(x.clip(-6e4, 6e4).astype(np.float16))
    expected = quantize_activations(torch.from_numpy(halfs), torch.tensor(scale)).numpy()
    found = gpu.array(np.int8, expected.shape, "quantize-hidden", rows, width, repr(float(scale)), halfs)
    np.testing.assert_array_equal(found, expected)


def test_quantising_divides_as_ieee_does(gpu: Gpu) -> None:
    """A million quotients at and next to halves, by many scales: where a reciprocal's product would round wrongly."""
    rng = np.random.default_rng(0)
    for scale in rng.uniform(1e-4, 3, 8).astype(np.float32):
        halves = (rng.integers(-127, 127, (512, 256)) + 0.5).astype(np.float32) * scale
        x = np.nextafter(halves, rng.choice([-np.inf, np.inf, 0], halves.shape).astype(np.float32))
        expected = quantize_activations(torch.from_numpy(x), torch.tensor(scale)).numpy()
        found = gpu.array(np.int8, x.shape, "quantize", 512, 256, repr(float(scale)), x)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("modulated", [True, False], ids=["modulation", "gain and bias"])
@pytest.mark.parametrize(("rows", "width"), [(1, 256), (24, 140), (40, 1536)])
def test_layer_norm(gpu: Gpu, rows: int, width: int, modulated: bool) -> None:
    x = random(rows, width).astype(np.float16)
    gain, shift = (random(width, seed=s) for s in (1, 2))
    wide, g, b = torch.from_numpy(x).float(), torch.from_numpy(gain), torch.from_numpy(shift)
    value = modulate(layer_norm(wide, EPS), b, g) if modulated else layer_norm(wide, EPS, g, b)
    scale = float(np.float32(value.abs().max() / 120))
    question = ("norm", rows, width, EPS, int(modulated), repr(scale), padded(x), padded(gain), padded(shift))
    found = gpu.array(np.int8, (rows, padded(x).shape[1]), *question)
    assert_codes(found[:, :width], value, scale)
    assert not found[:, width:].any()


def rotations(rows: int, head: int) -> tuple[Array, Array, Tensor]:
    angles = np.random.default_rng(5).uniform(-30, 30, (rows, head // 2))
    turned = torch.polar(torch.ones(rows, head // 2, dtype=torch.float64), torch.from_numpy(angles))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), turned.to(torch.complex64)


@pytest.mark.parametrize("rotated", [True, False], ids=["RoPE", "no RoPE"])
@pytest.mark.parametrize(("rows", "heads", "head"), [(1, 2, 128), (24, 3, 48), (40, 12, 128)])
def test_root_mean_square_norm_and_rope(gpu: Gpu, rows: int, heads: int, head: int, rotated: bool) -> None:
    """Over all channels, before heads are split; as rows of queries, and as tiles of keys from any token on."""
    width, first, stored = heads * head, 32, 96
    y, gain = random(rows, width), random(width, seed=1)
    cosines, sines, turned = rotations(first + rows, head)
    value = rms_norm(torch.from_numpy(y), torch.from_numpy(gain), EPS)
    value = rotate(value, turned[first:], heads) if rotated else value
    scale = float(np.float32(value.abs().max() / 120))
    tables = (cosines, sines) if rotated else ("-", "-")
    stride = head + -head % 32

    def run(keys_stored: int, shape: tuple[int, ...]) -> Array:
        question = ("rms", rows, width, head, EPS, repr(scale), first, keys_stored, padded(y), gain, *tables)
        return gpu.array(np.int8, shape, *question)

    queries = run(0, (rows, heads, stride))
    assert_codes(queries[:, :, :head].reshape(rows, width), value, scale)
    assert not queries[:, :, head:].any()
    keys = run(stored, (heads, stored * stride))
    for h in range(heads):
        unpacked = unpack(TileGrid(HMX_INT8_K4, stored, stride), keys[h]).copy()
        np.testing.assert_array_equal(unpacked[first : first + rows], queries[:, h])
        unpacked[first : first + rows] = 0
        assert not unpacked.any()


@pytest.mark.parametrize("as_gpu", [False, True], ids=["CPU", "as a GPU"])
def test_statistics_of_norms_are_those_of_exact_sums(as_gpu: bool, gpu: Gpu, start_gpu: Callable[..., Gpu]) -> None:
    """Rounded once each, so that no code depends on the order in which a device adds: a million without exception. With
    means far from zero, too."""
    rows, width = 2048, 256
    x = (random(rows, width) + np.linspace(-60, 60, rows)[:, None]).astype(np.float16)
    y, gain, shift = random(rows, width), random(width, seed=1), random(width, seed=2)
    one, wide, wide_y = np.float32(1), x.astype(np.float64), y.astype(np.float64)
    root = (1 / np.sqrt(wide.var(axis=1, keepdims=True) + EPS)).astype(np.float32)
    normed = (x.astype(np.float32) - wide.mean(axis=1, keepdims=True).astype(np.float32)) * root
    value = normed * (gain + one) + shift
    root_y = (1 / np.sqrt((wide_y**2).mean(axis=1, keepdims=True) + EPS)).astype(np.float32)
    value_y = y * root_y * gain
    questions = []
    for v, question in ((value, ("norm", rows, width, EPS, 1)), (value_y, ("rms", rows, width, 128, EPS))):
        scale = np.float32(np.abs(v).max() / 120)
        arrays = (x, gain, shift) if question[0] == "norm" else (0, 0, y, gain, "-", "-")
        questions.append(((*question, repr(float(scale)), *arrays), np.rint(v / scale).astype(np.int8)))
    with start_gpu(dot="plain", as_gpu=1, gemm_shape=1, cache="") if as_gpu else nullcontext(gpu) as running:
        if as_gpu:
            running.ask("device", 128)
        for asked, expected in questions:
            np.testing.assert_array_equal(running.array(np.int8, (rows, width), *asked), expected)


@pytest.mark.parametrize(("rows", "heads", "head"), [(1, 2, 128), (24, 3, 48), (42, 12, 128)])
def test_values_go_into_tiles(gpu: Gpu, rows: int, heads: int, head: int) -> None:
    """Keys are the K of attention's second product; what is behind the last token is zero."""
    width, first, stored, scale = heads * head, 32, 96, 0.03125
    y, stride = random(rows, width), head + -head % 32
    expected = quantize_activations(torch.from_numpy(y), torch.tensor(scale)).numpy().reshape(rows, heads, head)
    question = ("values", rows, width, head, scale, first, stored, padded(y))
    found = gpu.array(np.int8, (heads, stored * stride), *question)
    for h in range(heads):
        unpacked = unpack(TileGrid(HMX_INT8_K4, stride, stored), found[h]).copy()
        np.testing.assert_array_equal(unpacked[:head, first : first + rows], expected[:, h].T)
        unpacked[:head, first : first + rows] = 0
        assert not unpacked.any()


@pytest.mark.parametrize(("rows", "width"), [(1, 256), (24, 200), (40, 768)])
def test_gelu(gpu: Gpu, rows: int, width: int) -> None:
    x = 3 * random(rows, width)
    x[0, :6] = [-40, 40, -1e4, 1e4, 0, -0.0]
    value = F.gelu(torch.from_numpy(x), approximate="tanh")
    scale = float(np.float32(value[1:].abs().max() / 120)) if rows > 1 else 0.1
    found = gpu.array(np.int8, padded(x).shape, "gelu", rows, width, repr(scale), padded(x))
    assert_codes(found[:, :width], value, scale)
    assert not found[:, width:].any()


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(1, 256), (24, 140)])
def test_the_residual_addition_is_exact(gpu: Gpu, rows: int, width: int, gated: bool) -> None:
    """``fp16(hidden + y · gate)``: FP32 product and sum, none fused, rounded once."""
    hidden, y, gate = random(rows, width).astype(np.float16), random(rows, width, seed=1), random(width, seed=2)
    added = torch.from_numpy(y) * torch.from_numpy(gate) if gated else torch.from_numpy(y)
    expected = (torch.from_numpy(hidden).float() + added).half().numpy()
    question = ("add", rows, width, padded(hidden), padded(y), padded(gate) if gated else "-")
    found = gpu.array(np.float16, padded(hidden).shape, *question)
    np.testing.assert_array_equal(found[:, :width], expected)
