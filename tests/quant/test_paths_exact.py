"""The NPU's arithmetic to the bit: exact sums rounded once, and functions in a fixed order of FP32 operations."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from quant.paths import exact

Array = npt.NDArray[Any]
ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "device_runtime"


def nearest(value: Fraction, kind: type[np.floating[Any]]) -> Any:
    """To nearest even, by comparing exact distances: an oracle that computes with no float."""
    guess = kind(float(value))
    around = [guess, np.nextafter(guess, kind(-np.inf)), np.nextafter(guess, kind(np.inf))]
    word = f"u{np.dtype(kind).itemsize}"
    return min(around, key=lambda x: (abs(Fraction(float(x)) - value), int(x.view(word)) & 1))


def product(a: Array, b: Array, kind: type[np.floating[Any]]) -> Array:
    fractions = [[[Fraction(float(x)) for x in row] for row in m] for m in (a, b)]
    return np.array([[nearest(sum((x * y for x, y in zip(r, c, strict=True)), Fraction(0)), kind)
                      for c in fractions[1]] for r in fractions[0]], kind)  # fmt: skip


def test_fp64_is_rounded_once() -> None:
    """At every tie between FP16 numbers and its neighbours in FP64, of which FP32, in between, would make ties."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    ties = (halves[:-1] + halves[1:]) / 2
    near = np.concatenate(
        [halves, ties, np.nextafter(ties, np.inf), np.nextafter(ties, 0), [65519.99999999, 65520, 1e9]]
    )
    x = np.concatenate([near, -near, np.random.default_rng(0).standard_normal(10_000), [np.inf, -np.inf]])
    with np.errstate(over="ignore"):
        due = x.astype(np.float16)
    found = exact.rounded(torch.from_numpy(x), torch.float16).numpy()
    np.testing.assert_array_equal(found.view(np.uint16), due.view(np.uint16))
    assert np.mean(torch.from_numpy(x).half().numpy() != due) > 0.1, (
        "else rounding twice would have been seen by nobody"
    )
    assert torch.isnan(exact.rounded(torch.tensor([torch.nan], dtype=torch.float64), torch.float16)).all()


KINDS = [(np.float16, torch.float16), (np.float32, torch.float32)]

LOST = np.array([[2048, 1, 2.0**-24, 0], [2048, 3, -(2.0**-24), 0], [60000, -60000, 2.0**-24, 1], [-2048, -1, 0, 0]])
AGAINST = np.array([[1, 1, 2.0**-24, 0], [1, 1, 0, 2.0**-24], [1, 1, -(2.0**-24), 0]])
"""Sums beside a tie by 2^-48, which FP64 cannot hold, and such that cancel."""


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_what_fp64_loses_decides_a_tie(kind: type[np.floating[Any]], dtype: torch.dtype) -> None:
    a, b = LOST.astype(np.float16), AGAINST.astype(np.float16)
    found = exact.exact_matmul(torch.from_numpy(a), torch.from_numpy(b), dtype).numpy()
    np.testing.assert_array_equal(found, product(a, b, kind))
    once = exact.rounded(torch.from_numpy(a.astype(np.float64) @ b.astype(np.float64).T), dtype).numpy()
    assert kind is np.float32 or (once != found).any()


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
@pytest.mark.parametrize("k", [1, 7, 64])
def test_sums_of_all_magnitudes(kind: type[np.floating[Any]], dtype: torch.dtype, k: int) -> None:
    """Operands of any bits below 2^8, so that most sums do not overflow, in several heads."""
    r = np.random.default_rng(k)
    bits = r.integers(0, 0x5C00, (2, 2, 9, k)).astype(np.uint16) | (r.integers(0, 2, (2, 2, 9, k)) << 15).astype(
        np.uint16
    )
    a, b = bits.view(np.float16)
    found = exact.exact_matmul(torch.from_numpy(a), torch.from_numpy(b), dtype).numpy()
    with np.errstate(over="ignore"):
        due = np.stack([product(x, y, kind) for x, y in zip(a, b, strict=True)])
    np.testing.assert_array_equal(found, due)


def test_a_product_in_parts_is_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.randn(33, 40).half() * 9, torch.randn(21, 40).half()
    whole = exact.exact_matmul(a, b)
    monkeypatch.setattr(exact, "OUTPUTS_AT_ONCE", 100)
    assert torch.equal(exact.exact_matmul(a, b), whole)


def test_what_is_not_finite_stays_visible() -> None:
    a, b = torch.ones(3, 40).half() * 300, torch.ones(2, 40).half()
    a[1, 3], a[2, 5] = torch.inf, torch.nan
    found = exact.exact_matmul(a, b)
    assert found[0].tolist() == [12000.0, 12000.0]
    assert found[1].tolist() == [torch.inf, torch.inf]
    assert found[2].isnan().all()
    b[1, 3] = 0
    assert exact.exact_matmul(a, b)[1].isnan().tolist() == [False, True]


def test_the_runtime_has_the_same_numbers() -> None:
    """They stand in its sources as C wants them; the functions are compared in test_npu_exact.py."""
    rows = (RUNTIME / "host/include/hvdc/rows.h").read_text("utf-8")
    [series] = re.findall(r"#define HVDC_EXP2_SERIES [^{]*\{([^}]+)\}", rows)
    assert [float(number) for number in re.findall(r"([0-9][^f, ]*)f", series)] == list(exact.EXP2_SERIES)
    assert re.findall(r"#define HVDC_GELU_FACTOR \(([^f]+)f\)", rows) == [f"{exact.GELU_FACTOR!r}"]
    assert re.findall(r"#define HVDC_GELU_CUBIC ([0-9.]+)f", rows) == [f"{exact.GELU_CUBIC!r}"]
    unit = (RUNTIME / "npu/src/hvx.h").read_text("utf-8")
    [tiles] = re.findall(r"#define HVDC_HVX_KEY_TILES ([0-9]+)u", unit)
    assert 32 * int(tiles) == exact.KEY_PIECE


def test_the_exponential_and_gelu_are_what_they_approach() -> None:
    x = torch.linspace(-126, 127.4, 100_001)
    assert float((exact.exp2(x).double() / torch.exp2(x.double()) - 1).abs().max()) < 3e-7
    x = torch.linspace(-12, 12, 100_001)
    due = torch.nn.functional.gelu(x.double(), approximate="tanh")
    assert float((exact.gelu(x) - due).abs().max()) < 1e-6
    assert exact.exp2(torch.tensor([-200.0, -torch.inf, 200.0])).tolist() == [0.0, 0.0, torch.inf]
    assert torch.isnan(exact.exp2(torch.tensor([torch.nan]))).all()


@pytest.mark.parametrize("keys", [1, 40, 512, 1100])
def test_attention_is_softmax(keys: int) -> None:
    """The largest score last, so that earlier pieces shrink; within what FP16's roundings of score and weight do."""
    torch.manual_seed(keys)
    q, k, v = (torch.randn(2, rows, 32).half() for rows in (5, keys, keys))
    k = k[:, torch.argsort(q[0, 0].float() @ k[0].float().T)]
    found = exact.attention(q, k, v)
    due = torch.softmax(q.double() @ k.double().transpose(1, 2) / 32**0.5, dim=-1) @ v.double()
    assert float((found - due).abs().max()) < 6e-3
