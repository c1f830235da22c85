"""The NPU executor with exact sums: every kernel and whole blocks are `quant.paths.exact`'s to the bit.

A bound would hide which operation differs; there is none here.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from device_runtime.build import SOURCE
from layouts.order import HMX_FP16_2
from quant.paths import exact, host
from quant.paths.fp32 import join_heads, split_heads
from quant.paths.trajectory import npu
from tests.device_runtime.blocks import EXPERTS
from tests.device_runtime.kernels import LEVELS, Array, Kernels, padded, tiled, untiled, usable_levels, weight
from tests.device_runtime.test_npu_blocks import STEP, case, on
from tests.device_runtime.test_npu_blocks import example as example
from tests.device_runtime.test_npu_kernels import near_halves, rng, spread, widened


@pytest.fixture(params=LEVELS)
def kernels(programs: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Kernels]:
    if request.param not in usable_levels(programs["hvdc_kernels"]):
        pytest.skip(f"this processor does not execute {request.param}")
    with Kernels(programs["hvdc_kernels"], request.param, 2, "exact") as running:
        yield running


def same(found: Array, due: Array | Tensor) -> None:
    """To the bit; of what is no number, only that."""
    due = np.asarray(due)
    word = np.dtype(f"u{due.itemsize}")
    found = found.reshape(due.shape)
    differ = (found.view(word) != due.view(word)) & ~(np.isnan(found) & np.isnan(due))
    assert not differ.any(), f"{differ.sum()} of {differ.size}: {found[differ][:4]}, not {due[differ][:4]}"


def linear(x: Array, w: Array, bias: Array | None = None) -> Tensor:
    acc = exact.exact_matmul(torch.from_numpy(x), torch.from_numpy(w))
    return acc if bias is None else (acc.float() + torch.from_numpy(bias)).half()


# --- the matrix unit -----------------------------------------------------------------------------------------------


def check_product(kernels: Kernels, a: Array, b: Array) -> None:
    (m, k), n = a.shape, len(b)
    wide = -(-m // 32) * 32, -(-n // 32) * 32
    halves = untiled(HMX_FP16_2, kernels.ask("multiply", m, n, k, arrays=(a, b)), m, n)
    sums = kernels.ask("sums", m, n, k, arrays=(a, b), dtype=np.float32).reshape(wide)[:m, :n]
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    same(np.ascontiguousarray(halves), exact.exact_matmul(x, y))
    same(np.ascontiguousarray(sums), exact.exact_matmul(x, y, torch.float32))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (24, 33, 31), (40, 70, 200), (72, 32, 2048)])
@pytest.mark.parametrize("size", [1e-3, 1.0, 40.0])
def test_products(kernels: Kernels, m: int, n: int, k: int, size: float) -> None:
    """Small sums, which FP64 holds exactly, and large ones, which it does not."""
    r = rng(m, n, k)
    check_product(kernels, *((r.standard_normal((rows, k)) * size).astype(np.float16) for rows in (m, n)))


def test_products_of_any_bits(kernels: Kernels) -> None:
    """Subnormal and huge numbers, infinities and NaN in some rows; sums that overflow, cancel, and are 0."""
    r = rng(3)
    a, b = (r.integers(0, 0x10000, (rows, 96)).astype(np.uint16) for rows in (64, 40))
    a[:32] &= 0xDFFF  # below 2: sums are finite
    b &= 0xDFFF
    b[3] = 0
    b[5, 48:] = b[5, :48]
    a[2, 48:] = a[2, :48] ^ 0x8000
    check_product(kernels, a.view(np.float16), b.view(np.float16))


@pytest.mark.parametrize("k", [3, 100, 700])
def test_ties_that_fp64_cannot_decide(kernels: Kernels, k: int) -> None:
    """2049 is a tie in FP16, and 2^24 + 1 one in FP32; 2^-48 more or less, which FP64 loses beside them, decides."""
    smallest = 2.0**-24
    a, b = np.zeros((40, k), np.float16), np.zeros((33, k), np.float16)
    a[:, 0], a[:, 1] = np.where(np.arange(40) % 2, 2048, 4096), np.arange(40) % 5
    a[:, -1] = np.where(np.arange(40) % 3, smallest, -smallest)
    b[:, 0], b[:, 1] = np.where(np.arange(33) % 4, 1, 4096), 1
    b[:, -1] = (np.arange(33) % 3 - 1) * smallest
    check_product(kernels, a, b)
    once = exact.rounded(torch.from_numpy(a.astype(np.float64) @ b.astype(np.float64).T), torch.float16)
    assert not torch.equal(once, exact.exact_matmul(torch.from_numpy(a), torch.from_numpy(b)))


@pytest.mark.skipif(shutil.which("clang-22") is None, reason="clang-22 is not installed, which compiles for Hexagon")
def test_the_matrix_unit_needs_no_library_and_no_processor(tmp_path: Path) -> None:
    """It compiles for Hexagon, where it is to stand in for the unit that an emulator lacks; it was not run there."""
    includes = [f"-I{SOURCE / part / 'include'}" for part in ("core", "host", "npu")]
    done = subprocess.run(
        ["clang-22", "--target=hexagon-unknown-elf", "-mv79", "-ffreestanding", "-nostdlibinc", "-std=c11", "-O2",
         "-G0", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-pedantic", "-DHVDC_CPU_LEVEL=generic", *includes, "-c",
         SOURCE / "npu/src/hmx_exact.c", "-o", tmp_path / "unit.o"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# --- kernels -------------------------------------------------------------------------------------------------------


def test_functions(programs: dict[str, Path]) -> None:
    x = np.concatenate([np.linspace(-130, 130, 300_001, dtype=np.float32), near_halves()])
    with Kernels(programs["hvdc_kernels"]) as kernels, np.errstate(all="ignore"):
        same(kernels.ask("exp2", len(x), arrays=(x,), dtype=np.float32), exact.exp2(torch.from_numpy(x)))
        same(kernels.ask("gelu", len(x), arrays=(x,), dtype=np.float32), exact.gelu(torch.from_numpy(x)))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (24, 70, 200), (72, 33, 1536), (8, 32, 2048)])
@pytest.mark.parametrize("size", [1.0, 50.0])
def test_linears(kernels: Kernels, m: int, n: int, k: int, size: float) -> None:
    r = rng(m, n, k)
    x, (q, scale) = (r.standard_normal((m, k)) * size).astype(np.float16), weight(r, n, k)
    bias = r.standard_normal(n).astype(np.float32)
    due = linear(x, widened(q, scale), bias)
    same(kernels.ask("linear", m, n, k, 0, arrays=(x, *tiled(q, scale), padded(bias))), due)
    found = untiled(HMX_FP16_2, kernels.ask("up", m, n, k, arrays=(x, *tiled(q, scale), padded(bias))), m, n)
    same(np.ascontiguousarray(found), exact.gelu(due.float()).half())


@pytest.mark.parametrize("rank", [1, 31, 40])
def test_adapters(kernels: Kernels, rank: int) -> None:
    m, n, k = 56, 70, 100
    r = rng(rank)
    x, bias = r.standard_normal((m, k)).astype(np.float16), r.standard_normal(n).astype(np.float32)
    base, a, b = weight(r, n, k), weight(r, rank, k), weight(r, n, rank)
    low = linear(x, widened(*a)).numpy()
    due = (linear(x, widened(*base), bias).float() + linear(low, widened(*b)).float()).half()
    same(kernels.ask("linear", m, n, k, rank, arrays=(x, *tiled(*base), padded(bias), *tiled(*a), *tiled(*b))), due)


@pytest.mark.parametrize("sigma", [0.5, 2.0, 8.0])
@pytest.mark.parametrize(
    ("m", "keys", "heads", "dim"),
    [(1, 1, 1, 32), (8, 24, 2, 24), (24, 8, 3, 128), (33, 31, 1, 300), (130, 100, 2, 128), (24, 513, 1, 64),
     (8, 1700, 1, 128)],
)  # fmt: skip
def test_attention(kernels: Kernels, m: int, keys: int, heads: int, dim: int, sigma: float) -> None:
    """Up to four pieces of keys."""
    q, k, v = spread(rng(m, keys), m, keys, heads, dim, sigma)
    due = exact.attention(*(split_heads(torch.from_numpy(x), heads) for x in (q, k, v)))
    same(kernels.ask("attention", m, keys, heads, dim, arrays=(q, k, v)), join_heads(due))


def test_attention_to_what_is_not_finite(kernels: Kernels) -> None:
    """A row of NaN; scores that overflow to infinity; values that are infinite."""
    q, k, v = spread(rng(2), 24, 600, 1, 32, 1.0)
    q[3, 5], v[7, 1] = np.nan, np.inf
    q[5] = k[9] = 60000
    due = exact.attention(*(split_heads(torch.from_numpy(x), 1) for x in (q, k, v)))
    same(kernels.ask("attention", 24, 600, 1, 32, arrays=(q, k, v)), join_heads(due))


@pytest.mark.parametrize(("width", "heads"), [(24, 1), (32, 2), (140, 1), (1536, 12)])
def test_norms(kernels: Kernels, width: int, heads: int) -> None:
    """FP64 sums, whose order decides no FP32 number but one in many millions; rotations as torch's."""
    r = rng(width)
    x = (r.standard_normal((40, width)) * 3 + 0.5).astype(np.float32)
    factor, addend = (r.standard_normal(width).astype(np.float32) for _ in range(2))
    due = host.layer_norm(torch.from_numpy(x), 1e-6, torch.from_numpy(factor), torch.from_numpy(addend)).half()
    same(kernels.ask("layer_norm", 40, width, 1, arrays=(x, factor, addend)), due)
    halves = x.astype(np.float16)
    angles = torch.from_numpy(r.uniform(0, 6, (40, width // heads // 2)))
    turned = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
    normed = host.rms_norm(torch.from_numpy(halves).float(), torch.from_numpy(factor), 1e-6)
    rotations = torch.view_as_real(turned).numpy()
    found = kernels.ask("rms_norm", 40, width, heads, 1, arrays=(halves, factor, rotations))
    same(found, host.rotate(normed, turned, heads).half())


# --- blocks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expert", EXPERTS)
@pytest.mark.parametrize(
    ("model", "grid"),
    [
        ("example", (5, 8, 8)),
        ("tiny_artifact", (1, 7, 8)),  # M mod 32 = 24, as of the real video
        ("tiny_artifact", (1, 31, 34)),  # more than 512 keys, and than 1024 rows
        ("ragged_artifact", (1, 5, 7)),
        ("ragged_artifact", (2, 4, 8)),
    ],
)
def test_blocks(
    programs: dict[str, Path], request: pytest.FixtureRequest, tmp_path: Path, model: str, grid: host.Grid, expert: str
) -> None:
    artifact = request.getfixturevalue(model)
    c, blocks = case(artifact, grid), on(programs, artifact, tmp_path, grid, "--threads", 2, "--npu-sums", "exact")
    for block in range(c.weights.shape.layers):
        hidden = blocks.put("h", c.hidden)
        ran = ("run", STEP[expert], block, 1, "save", "hidden", tmp_path / "y")
        blocks.run(*c.texts(blocks), "hidden", hidden, *ran)
        due = c.block(npu(c.weights, exact=True).rest, STEP[expert], block)
        same(blocks.get("y", *due.shape).numpy(), due)
