"""The DSP's matrix unit as a model on this machine: operands go through VTCM, and unit and DMA engine are as late as
they may be.

Its products are the exact unit's (test_npu_exact.py) to the bit, whatever VTCM there is; its sums come in two parts,
with a bound. Whatever is wrong in staging shows: until a transfer is waited for, its destination holds NaNs, and the
unit reads operands when its results are waited for.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from device_runtime.build import SOURCE
from layouts.order import HMX_FP16_2
from tests.device_runtime.kernels import Array, Kernels, padded, rng, tiled, untiled, weight

MIB = 1024
BUDGETS_KIB = (8 * MIB, 4 * MIB, MIB, 28)
"""A V79's, half of it, an eighth, and the least one."""

Start = Callable[..., Kernels]


@pytest.fixture
def start(programs: dict[str, Path]) -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda kib=None, threads=1: stack.enter_context(
            Kernels(programs["hvdc_kernels"], threads=threads, sums="exact", vtcm_kib=kib)
        )


def same(found: Array, due: Array) -> None:
    """To the bit; of what is no number, only that."""
    word = np.dtype(f"u{due.itemsize}")
    differ = (found.view(word) != due.view(word)) & ~(np.isnan(found) & np.isnan(due))
    assert not differ.any(), f"{differ.sum()} of {differ.size}: {found[differ][:4]}, not {due[differ][:4]}"


def operands(m: int, n: int, k: int, size: float = 1.0) -> tuple[Array, Array]:
    r = rng(m, n, k)
    a, b = ((r.standard_normal((rows, k)) * size).astype(np.float16) for rows in (m, n))
    return a, b


# --- products --------------------------------------------------------------------------------------------------------

SHAPES = ((1, 1, 1), (24, 33, 31), (40, 70, 200), (130, 96, 1536), (1000, 32, 32), (32, 250, 64), (40, 40, 8960))
"""M, N, K: K that fills VTCM many times, a call's largest M, and its largest N."""


@pytest.mark.parametrize("kib", BUDGETS_KIB)
def test_products_are_the_exact_units(start: Start, kib: int) -> None:
    exact, staged = start(), start(kib)
    for m, n, k in SHAPES:
        for size in (1.0,) if k > 500 else (1e-3, 1.0, 40.0):
            arrays = operands(m, n, k, size)
            same(staged.ask("multiply", m, n, k, arrays=arrays), exact.ask("multiply", m, n, k, arrays=arrays))


@pytest.mark.parametrize("kib", [8 * MIB, 28])
def test_products_of_any_bits(start: Start, kib: int) -> None:
    """Subnormal and huge numbers, infinities and NaN in some rows; sums that overflow, cancel, and are 0."""
    r = rng(3)
    a, b = (r.integers(0, 0x10000, (rows, 96)).astype(np.uint16) for rows in (64, 40))
    a[:32] &= 0xDFFF
    b &= 0xDFFF
    b[3] = 0
    b[5, 48:] = b[5, :48] ^ 0x8000
    a[7, 48:] = a[7, :48]
    arrays = (a.view(np.float16), b.view(np.float16))
    same(start(kib).ask("multiply", 64, 40, 96, arrays=arrays), start().ask("multiply", 64, 40, 96, arrays=arrays))


@pytest.mark.parametrize(("m", "n", "k", "rank"), [(24, 33, 31, 0), (72, 70, 200, 8), (40, 300, 1536, 128)])
@pytest.mark.parametrize("kib", BUDGETS_KIB)
def test_linears_and_their_adapters(start: Start, kib: int, m: int, n: int, k: int, rank: int) -> None:
    """As the executor makes them, its threads taking turns at the unit."""
    r = rng(m, n, k)
    x, bias = r.standard_normal((m, k)).astype(np.float16), padded(r.standard_normal(n).astype(np.float32))
    arrays: tuple[Array, ...] = (x, *tiled(*weight(r, n, k)), bias)
    if rank:
        arrays = (*arrays, *tiled(*weight(r, rank, k)), *tiled(*weight(r, n, rank)))
    asked = "linear", m, n, k, rank
    same(start(kib, threads=3).ask(*asked, arrays=arrays), start().ask(*asked, arrays=arrays))


def test_the_feed_forward_pair_at_full_width(start: Start) -> None:
    """K = 1536, then K = 8960, of few rows."""
    r, m = rng(1), 24
    for n, k in ((2048, 1536), (256, 8960)):
        x, bias = r.standard_normal((m, k)).astype(np.float16), padded(r.standard_normal(n).astype(np.float32))
        arrays = (x, *tiled(*weight(r, n, k)), bias)
        same(start(8 * MIB).ask("linear", m, n, k, 0, arrays=arrays), start().ask("linear", m, n, k, 0, arrays=arrays))


# --- sums, in two parts ----------------------------------------------------------------------------------------------


def exponent(k: int) -> int:
    """e of hmx_staged.h: the first part is fp16(2^-e · sum)."""
    return min(15, max(5, int(np.ceil(np.log2(-(-k // 32) * 32)))))


def in_two_parts(due: Array, k: int) -> Array:
    """What the two parts are of sums that FP64 holds: the definition in hmx_staged.h."""
    scale = 2.0 ** -exponent(k)
    first = (due * scale).astype(np.float16)
    second = ((due - first.astype(np.float64) / scale) * scale * 2.0**11).astype(np.float16)
    return first.astype(np.float32) / np.float32(scale) + second.astype(np.float32) / np.float32(scale * 2.0**11)


def bound(due: Array, k: int) -> Array:
    """Largest error, by hmx_staged.h."""
    return (2.0**-22 + 2.0**-24) * np.abs(due) * (1 + 2.0**-10) + 2.0 ** (exponent(k) - 36)


def sums(kernels: Kernels, a: Array, b: Array) -> Array:
    (m, k), n = a.shape, len(b)
    wide = -(-m // 32) * 32, -(-n // 32) * 32
    return kernels.ask("sums", m, n, k, arrays=(a, b), dtype=np.float32).reshape(wide)[:m, :n]


@pytest.mark.parametrize("kib", BUDGETS_KIB)
@pytest.mark.parametrize("size", [2.0**-12, 1.0, 200.0])
def test_sums_are_two_parts(start: Start, kib: int, size: float) -> None:
    """Weights of attention, and values of any size. Of so few bits that FP64 has their sums exactly."""
    staged = start(kib)
    for m, n, k in ((1, 1, 1), (24, 33, 31), (128, 128, 512), (40, 96, 200)):
        r = rng(m, n, k)
        p = (r.integers(0, 257, (m, k)) / 256).astype(np.float16)
        v = (r.integers(-256, 257, (n, k)) * size / 64).astype(np.float16)
        due = p.astype(np.float64) @ v.astype(np.float64).T
        found = sums(staged, p, v)
        same(np.ascontiguousarray(found), in_two_parts(due, k))
        assert np.all(np.abs(found - due) <= bound(due, k))


def test_sums_of_any_weights_and_values_are_within_the_bound(start: Start) -> None:
    exact, staged = start(), start(MIB)
    for m, n, k in ((72, 128, 512), (33, 40, 1000)):
        r = rng(m, n, k)
        p = np.exp2(-r.exponential(3, (m, k))).astype(np.float16)
        v = (r.standard_normal((n, k)) * np.exp2(r.integers(-20, 10, (n, 1)))).astype(np.float16)
        due = sums(exact, p, v).astype(np.float64)
        assert np.all(np.abs(sums(staged, p, v) - due) <= bound(due, k) + 2.0**-24 * np.abs(due))


def test_sums_beyond_the_range_of_fp16(start: Start) -> None:
    """The largest that attention's can be: all weights 1, all values 65504."""
    staged = start(8 * MIB)
    for k in (1, 31, 512, 500):
        p, v = np.ones((3, k), np.float16), np.full((2, k), 65504, np.float16)
        v[1] = -v[1]
        np.testing.assert_array_equal(sums(staged, p, v), np.array([[65504, -65504]] * 3, np.float32) * k)


def test_sums_that_are_not_finite_are_not_numbers(start: Start) -> None:
    p, v = np.ones((2, 32), np.float16), np.ones((3, 32), np.float16)
    v[1, 4] = np.inf
    found = sums(start(MIB), p, v)
    assert not np.isfinite(found[:, 1]).any()


def test_sums_are_the_same_whatever_vtcm_there_is(start: Start) -> None:
    for m, n, k in ((1000, 128, 64), (40, 250, 96), (64, 64, 4096)):
        arrays = operands(m, n, k)
        answers = {start(kib).ask("sums", m, n, k, arrays=arrays, dtype=np.float32).tobytes() for kib in BUDGETS_KIB}
        assert len(answers) == 1


# --- attention -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "keys", "heads", "dim"), [(1, 1, 1, 32), (24, 8, 3, 128), (33, 31, 1, 140), (56, 1100, 1, 128)]
)
@pytest.mark.parametrize("kib", [8 * MIB, 28])
def test_attention(start: Start, kib: int, m: int, keys: int, heads: int, dim: int) -> None:
    """Sums are off by 2^-22, so that one result in a thousand or so is rounded to its neighbour; see hmx_staged.h."""
    r, width = rng(m, keys), heads * dim
    arrays = tuple((r.standard_normal((rows, width)) * 2).astype(np.float16) for rows in (m, keys, keys))
    asked = "attention", m, keys, heads, dim
    found, due = start(kib, threads=2).ask(*asked, arrays=arrays), start().ask(*asked, arrays=arrays)
    apart = np.abs(found.view(np.int16).astype(int) - due.view(np.int16).astype(int))
    assert apart.max() <= 1
    assert np.count_nonzero(apart) <= 2 + found.size * 0.004


# --- what is refused -------------------------------------------------------------------------------------------------


def test_too_little_vtcm_is_a_sentence(programs: dict[str, Path]) -> None:
    command = [str(programs["hvdc_kernels"]), "generic", "1", "exact", "26"]
    done = subprocess.run(command, input=b"", capture_output=True, check=False)
    assert done.returncode == 1
    assert b"26 KiB of VTCM are too few for the matrix unit, which needs 28 KiB at least" in done.stderr


def asked(programs: dict[str, Path], *question: str) -> str:
    """What the unit's model says to an operand: ``""`` if it takes it."""
    done = subprocess.run([programs["hvdc_vtcm"], *question], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (not done.stderr)
    return done.stderr


BANK = 4 << 20


@pytest.mark.parametrize("offset", [0, 2048, 2048 * 5, BANK - 2048])
def test_operands_at_multiples_of_a_tile(programs: dict[str, Path], offset: int) -> None:
    assert asked(programs, "operand", str(offset), "1") == ""


@pytest.mark.parametrize("offset", [2, 128, 1024, 2047, 2048 + 256])
def test_an_operand_elsewhere_is_refused(programs: dict[str, Path], offset: int) -> None:
    assert "not aligned" in asked(programs, "operand", str(offset), "1")


@pytest.mark.parametrize(("offset", "tiles", "fits"), [(2, 2, True), (2, 3, False), (1, 1, True), (32, 32, True)])
def test_an_operand_across_a_bank_is_refused(programs: dict[str, Path], offset: int, tiles: int, fits: bool) -> None:
    said = asked(programs, "operand", str(BANK - 2048 * offset), str(tiles))
    assert said == "" if fits else "crosses a bank" in said


def test_more_pairs_than_an_instruction_multiplies_are_refused(programs: dict[str, Path]) -> None:
    assert "more pairs" in asked(programs, "operand", "0", "33")


@pytest.mark.parametrize(("offset", "word", "says"), [
    (0, 0x3C00, ""), (0, 0x0400, ""), (0, 0x7800, ""), (256, 0x3C00, "power of two"), (128, 0x3C00, "not aligned"),
    (0, 0x3E00, "power of two"), (0, 0xBC00, "power of two"), (0, 0x13C00, "power of two"), (0, 0, "power of two"),
])  # fmt: skip
def test_scales(programs: dict[str, Path], offset: int, word: int, says: str) -> None:
    """Powers of two at multiples of 256 bytes, without a bias."""
    said = asked(programs, "scale", str(offset), str(word))
    assert says in said
    assert bool(says) == bool(said)


@pytest.mark.parametrize(("offset", "times", "says"), [
    (0, 1, ""), (2048, 1, ""), (128, 1, "a multiple of 2048 bytes"), (0, 2, "has its VTCM already"),
])  # fmt: skip
def test_the_unit_is_opened_once_with_aligned_memory(
    programs: dict[str, Path], offset: int, times: int, says: str
) -> None:
    said = asked(programs, "open", str(offset), str(times))
    assert says in said
    assert bool(says) == bool(said)


# --- the plan --------------------------------------------------------------------------------------------------------

TILE = 2048
SLOTS, CONSTANTS = 3, 2


def test_no_plan_leaves_its_budget(programs: dict[str, Path]) -> None:
    """For shapes and budgets of all sizes: what is kept is disjoint, aligned, inside, and as much as fits."""
    r = rng(0)
    least = 28 << 10
    budgets = [least, least + 1, MIB << 10, 4 * MIB << 10, 8 * MIB << 10, *(r.integers(least, 9 << 20, 2000).tolist())]
    shapes = [
        (int(r.integers(1, 33)), int(r.integers(1, 9)), int(np.exp2(r.uniform(0, 10))), int(r.integers(1, 3)))
        for _ in budgets
    ]
    questions = "".join(
        f"{budget} {' '.join(map(str, shape))}\n" for budget, shape in zip(budgets, shapes, strict=True)
    )
    done = subprocess.run([programs["hvdc_vtcm"], "plans"], input=questions, capture_output=True, text=True, check=True)
    answers = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(answers) == len(budgets)
    for budget, (m, n, k, parts), answer in zip(budgets, shapes, answers, strict=True):
        rows, cols, piece, w_slots, results_at, rows_at, weights_at, size, fetched = answer
        assert 1 <= rows <= m
        assert 1 <= cols <= n
        assert 1 <= piece <= k
        assert piece == k or rows == cols == 1, "only one accumulator's sums stay where k is cut"
        assert w_slots == cols or w_slots >= SLOTS, "the next weights are not fetched to where the unit may read"
        assert w_slots >= cols
        assert results_at == CONSTANTS * TILE
        assert rows_at == results_at + SLOTS * rows * parts * TILE
        assert weights_at == rows_at + SLOTS * rows * piece * TILE
        assert size == weights_at + w_slots * piece * TILE
        assert size <= budget
        whole = CONSTANTS + SLOTS * (parts + k) + (1 if n == 1 else SLOTS) * k
        assert (piece == k) == (whole * TILE <= budget), "k is cut where it must be, and nowhere else"
        if cols < n and piece == k:
            assert size // TILE - SLOTS * (rows - 1) * (parts + k) + k > budget // TILE - (w_slots - cols) * k
        assert fetched >= (m + n) * k


def test_a_budget_that_is_too_small_has_no_plan(programs: dict[str, Path]) -> None:
    done = subprocess.run([programs["hvdc_vtcm"], "27"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "27 KiB of VTCM are too few" in done.stderr


def test_untiled_products_are_matrix_products(start: Start) -> None:
    """Not only what another unit of ours says: integers, whose product numpy has exactly."""
    r = rng(9)
    a, b = (r.integers(-8, 9, (rows, 100)).astype(np.float16) for rows in (40, 33))
    found = untiled(HMX_FP16_2, start(MIB).ask("multiply", 40, 33, 100, arrays=(a, b)), 40, 33)
    np.testing.assert_array_equal(found.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64).T)


def test_the_documents_table(programs: dict[str, Path]) -> None:
    """docs/HEXAGON.md has what the program prints: `hvdc_vtcm`, between its two comments."""
    done = subprocess.run([programs["hvdc_vtcm"]], capture_output=True, text=True, check=True)
    document = (SOURCE.parent / "docs" / "HEXAGON.md").read_text("utf-8")
    assert f"<!-- hvdc_vtcm -->\n{done.stdout}<!-- /hvdc_vtcm -->" in document


@pytest.mark.parametrize(("kib", "compiles"), [("", True), ("28u", True), ("4096u", True), ("27u", False)])
def test_the_builds_budget(kib: str, compiles: bool) -> None:
    """HVDC_VTCM_KIB below the least one does not compile."""
    includes = [f"-I{SOURCE / folder}" for folder in ("npu/hexagon/src", "core/include")]
    command = ["cc", "-std=c11", "-fsyntax-only", *includes, *([f"-DHVDC_VTCM_KIB={kib}"] if kib else [])]
    done = subprocess.run(
        [*command, str(SOURCE / "npu/hexagon/src/vtcm.c")], capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == compiles
    assert compiles or "HVDC_VTCM_KIB is too little" in done.stderr
