"""What if the accumulator of a phone's matrix unit is not exact? docs/HEXAGON.md: two descriptions of it are public.

The model of the other one: a signed significand of 8 bits before the point and 22 after it, and an exponent. Eight
exact products are aligned to the largest exponent among them and added, then their sum to the accumulator; what is
shifted out sets the last bit; the result is shifted up by three bits at most. Source: qualcomm/qemu,
target/hexagon/hmx_config.c and hmx_xfp.h (int8.frac22, mx_fp_rate 8, mx_fp_acc_norm 3).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.device_runtime.kernels import Array
from tests.device_runtime.test_hmx_staged import bound, exponent

FRACTION_BITS, INTEGER_BITS, WAYS, MOST_SHIFT = 22, 8, 8, 3
LEAST_EXPONENT = -64

Integers = npt.NDArray[np.int64]


def shifted(value: Integers, by: Integers | int) -> Integers:
    """To the right; the last bit is set if anything was lost."""
    by = np.minimum(by, 62)
    lost = (value & ((np.int64(1) << by) - 1)) != 0
    return np.asarray((value >> by) | lost, np.int64)


def integers(halves: Array) -> tuple[Integers, Integers]:
    """m and e of m · 2^e."""
    bits = halves.view(np.uint16).astype(np.int64)
    field, fraction = bits >> 10 & 31, bits & 0x3FF
    return np.where(bits & 0x8000, -1, 1) * np.where(field == 0, fraction, fraction | 0x400), np.maximum(field, 1) - 25


class Accumulator:
    """``significand · 2^(exponent − 22)``"""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.significand = np.zeros(shape, np.int64)
        self.exponent = np.full(shape, LEAST_EXPONENT, np.int64)

    def add(self, m: Integers, e: Integers) -> None:
        """Σ m · 2^e over the first axis, of products of two FP16 numbers."""
        unit = 18  # of a product, bits after the point
        exponents = np.where(m == 0, LEAST_EXPONENT, e + unit)
        top = exponents.max(0)
        products = shifted(m << (FRACTION_BITS - unit), top - exponents).sum(0)
        most = np.maximum(top, self.exponent)
        total = shifted(shifted(products, most - top) + shifted(self.significand, most - self.exponent), 1)
        used = np.ceil(np.log2(np.where(total < 0, ~total, total) + 1.0)).astype(np.int64)
        up = np.clip(FRACTION_BITS + INTEGER_BITS - 1 - used, 0, MOST_SHIFT)
        self.significand, self.exponent = total << up, most + 1 - up

    def values(self) -> Array:
        return self.significand.astype(np.float64) * np.exp2((self.exponent - FRACTION_BITS).astype(np.float64))


def accumulated(a: Array, b: Array) -> Accumulator:
    """Of rows of a and b."""
    (m, e), (n, f) = integers(a), integers(b)
    made = Accumulator((len(a), len(b)))
    for k in range(0, a.shape[1], WAYS):
        ways = slice(k, k + WAYS)
        products, exponents = m[:, None, ways] * n[None, :, ways], e[:, None, ways] + f[None, :, ways]
        made.add(np.moveaxis(products, 2, 0), np.moveaxis(exponents, 2, 0))
    return made


def operands(k: int) -> tuple[Array, Array]:
    r = np.random.default_rng(k)
    return r.standard_normal((32, k)).astype(np.float16), (r.standard_normal((40, k)) / np.sqrt(k)).astype(np.float16)


@pytest.mark.parametrize("k", [64, 1536, 8960])
def test_products_are_closer_than_those_of_fp32(k: int) -> None:
    """Off by less than 2^-25 of Σ|a · b|; of a thousand products, at most two are the exact one's neighbours."""
    a, b = operands(k)
    found, due = accumulated(a, b).values(), a.astype(np.float64) @ b.astype(np.float64).T
    size = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T
    assert np.all(np.abs(found - due) <= 2.0**-25 * size)
    apart = found.astype(np.float16).view(np.int16).astype(int) - due.astype(np.float16).view(np.int16)
    assert np.abs(apart).max() <= 1
    assert np.count_nonzero(apart) <= 0.002 * apart.size


@pytest.mark.parametrize("k", [64, 512, 8960])
def test_two_parts_have_what_the_accumulator_has(k: int) -> None:
    """The unit subtracts the first part from what it holds: hmx_staged.h's bound, of the accumulator's own value."""
    made, scale = accumulated(*operands(k)), 2.0 ** -exponent(k)
    due = made.values()
    first = (due * scale).astype(np.float16)
    m, e = integers(first)
    weight = -(np.arange(WAYS) == 0).astype(np.int64) * 1024  # −2^e of the diagonal, and zeros
    made.add(m[None] * weight[:, None, None], np.broadcast_to(e + exponent(k) - 10, (WAYS, *m.shape)))
    second = (made.values() * scale * 2.0**11).astype(np.float16)
    found = first.astype(np.float64) / scale + second.astype(np.float64) / (scale * 2.0**11)
    assert np.all(np.abs(found - due) <= bound(due, k))
