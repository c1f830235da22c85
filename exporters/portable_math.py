"""Elementary functions and a matrix product that give the same bits on every IEEE-754 machine.

What is computed once and stored in an artifact (modulation tables, frequencies) must not depend on the
computer that compiled it. numpy's exp, sin and cos do: they dispatch to other code on other CPUs, and so does
the C library. A BLAS product, `np.sum` and `np.einsum` reorder additions by vector width. Here everything is
float64 and made of operations that IEEE 754 defines to the last bit: add, subtract, multiply, divide, round to
integer, scale by a power of two, compare. Each is a numpy ufunc of its own, so that none can be fused.

Method: Cody and Waite's argument reduction, then a Taylor polynomial by Horner's rule, highest power first
(J.-M. Muller, "Elementary Functions", chapters 3 and 11). Scalars that must be right to the last bit come
from `decimal`, whose ln and exp are correctly rounded.
"""

from __future__ import annotations

import decimal
import math

import numpy as np
import numpy.typing as npt

from exporters.errors import CheckpointError
from exporters.tensor import Tensor, check_finite

Float64Array = npt.NDArray[np.float64]

TRIG_LIMIT = 1e5
"""Largest |x| in radians that `sin` and `cos` accept: k·π/2 then has k < 2^16, which the reduction relies on."""

_LOG2_E = 1.4426950408889634
# ln 2 in two parts. The first has 32 significant bits, so that k·_LN2_HI is exact for every exponent k.
_LN2_HI = float.fromhex("0x1.62e42feep-1")
_LN2_LO = float.fromhex("0x1.a39ef35793c76p-33")

_TWO_OVER_PI = 0.6366197723675814
# π/2 in four parts; the first three have at most 33 significant bits, so that k·part is exact for k < 2^16.
_PIO2_1 = float.fromhex("0x1.921fb544p+0")
_PIO2_2 = float.fromhex("0x1.0b4611a6p-34")
_PIO2_3 = float.fromhex("0x1.3198a2ep-69")
_PIO2_4 = float.fromhex("0x1.b839a252049c1p-104")

# 1/n! is one correctly rounded division: n! is an exact float64 for every n used.
_EXP_TERMS = tuple(1.0 / math.factorial(n) for n in range(14, 1, -1))
_SIN_TERMS = tuple((-1.0) ** (n // 2) / math.factorial(n) for n in range(19, 3, -2))
_COS_TERMS = tuple((-1.0) ** (n // 2) / math.factorial(n) for n in range(18, 2, -2))

_ROWS_AT_ONCE = 128
"""Rows of a weight widened to float64 at a time: 1.5 MiB at 1536 columns. The result doesn't depend on it."""


def _horner(z: Float64Array, terms: tuple[float, ...]) -> Float64Array:
    total = np.full_like(z, terms[0])
    for term in terms[1:]:
        np.multiply(total, z, out=total)
        np.add(total, term, out=total)
    return total


def exp(x: npt.ArrayLike) -> Float64Array:
    """e^x, elementwise, float64: within 1 ulp (2 ulp where the result is subnormal).

    Overflows to inf above 709.78, underflows to 0 below -745.13, NaN stays NaN; no warning in any case.
    """
    v = np.asarray(x, dtype=np.float64)
    v = np.minimum(np.maximum(v, -1000.0), 1000.0)
    k = np.rint(np.multiply(v, _LOG2_E))
    high = np.subtract(v, np.multiply(k, _LN2_HI))
    low = np.multiply(k, _LN2_LO)
    r = np.subtract(high, low)
    rest = np.subtract(np.subtract(high, r), low)  # what rounding took from r
    # e^(r + rest) = 1 + (r + (r²·p(r) + rest)): the largest terms are added last.
    tail = np.add(np.multiply(np.multiply(r, r), _horner(r, _EXP_TERMS)), rest)
    mantissa = np.add(1.0, np.add(r, tail))
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(mantissa, np.where(np.isnan(k), 0.0, k).astype(np.int32)))


def silu(x: npt.ArrayLike) -> Float64Array:
    """x · sigmoid(x) = x / (1 + e^-x), elementwise, float64: within 2 ulp."""
    v = np.asarray(x, dtype=np.float64)
    return np.asarray(np.divide(v, np.add(1.0, exp(np.negative(v)))))


def _subtract_exactly(a: Float64Array, b: Float64Array) -> tuple[Float64Array, Float64Array]:
    """``(d, e)`` with d = a - b rounded and d + e = a - b exactly (Knuth's TwoSum)."""
    d = np.subtract(a, b)
    b_seen = np.subtract(a, d)
    a_seen = np.add(d, b_seen)
    return d, np.add(np.subtract(a, a_seen), np.subtract(b_seen, b))


def _reduce_angle(x: Float64Array) -> tuple[Float64Array, Float64Array, npt.NDArray[np.int64]]:
    """``(hi, lo, quadrant)`` with x = quadrant·π/2 + hi + lo, |hi| ≤ π/4 and a little."""
    # Written so that NaN is refused as well.
    if not bool(np.all(np.abs(x) <= TRIG_LIMIT)):
        raise CheckpointError(
            "an angle is too large for an exact sine and cosine",
            expected=f"finite angles of at most {TRIG_LIMIT:g} radians",
            found=f"{float(np.max(np.abs(x)))!r} radians",
            fix="check the timesteps: they are the angles in radians of the highest frequency",
        )
    k = np.rint(np.multiply(x, _TWO_OVER_PI))
    d = np.subtract(x, np.multiply(k, _PIO2_1))  # exact: both are close, and multiples of one ulp
    d, lost = _subtract_exactly(d, np.multiply(k, _PIO2_2))
    d, lost_more = _subtract_exactly(d, np.multiply(k, _PIO2_3))
    tail = np.subtract(np.add(lost, lost_more), np.multiply(k, _PIO2_4))
    hi = np.add(d, tail)
    lo = np.add(np.subtract(d, hi), tail)
    return hi, lo, k.astype(np.int64)


def sincos(x: npt.ArrayLike) -> tuple[Float64Array, Float64Array]:
    """``(sin x, cos x)``, elementwise, x in radians, float64: each within 1 ulp.

    Raises:
        CheckpointError: an |x| above `TRIG_LIMIT`, or NaN.
    """
    hi, lo, quadrant = _reduce_angle(np.asarray(x, dtype=np.float64))
    z = np.multiply(hi, hi)
    # sin(hi + lo) = hi + (hi³·(p(z)·z - 1/6) + lo·cos hi), where 1 - z/2 is enough of cos hi.
    cubic = np.subtract(np.multiply(z, _horner(z, _SIN_TERMS)), 1.0 / 6.0)
    cubic = np.multiply(np.multiply(z, hi), cubic)
    half = np.multiply(0.5, z)
    s = np.add(hi, np.add(cubic, np.multiply(lo, np.subtract(1.0, half))))
    # cos(hi + lo) = 1 - z/2 + (z²·p(z) - hi·lo), with what rounding takes from 1 - z/2 put back.
    w = np.subtract(1.0, half)
    quartic = np.subtract(np.multiply(np.multiply(z, z), _horner(z, _COS_TERMS)), np.multiply(hi, lo))
    c = np.add(w, np.add(np.subtract(np.subtract(1.0, w), half), quartic))

    odd = (quadrant & 1) == 1
    sine = np.where(odd, c, s)
    cosine = np.where(odd, s, c)
    sine = np.where((quadrant & 2) == 2, np.negative(sine), sine)
    cosine = np.where(((quadrant + 1) & 2) == 2, np.negative(cosine), cosine)
    return sine, cosine


def sin(x: npt.ArrayLike) -> Float64Array:
    """sin x, elementwise; see `sincos`."""
    return sincos(x)[0]


def cos(x: npt.ArrayLike) -> Float64Array:
    """cos x, elementwise; see `sincos`."""
    return sincos(x)[1]


def rational_power(base: float, numerator: int, denominator: int) -> float:
    """base^(numerator / denominator), correctly rounded to float64, for base > 0.

    Computed by `decimal` at 60 digits, in software, so no CPU has a say in it.
    """
    with decimal.localcontext(decimal.Context(prec=60)):
        exponent = decimal.Decimal(numerator) / decimal.Decimal(denominator)
        return float((decimal.Decimal(base).ln() * exponent).exp())


def linear64(weight: Tensor, bias: Tensor, x: Float64Array) -> Float64Array:
    """``y[s, n] = Σ_k W[n, k]·x[s, k] + b[n]``: ``x [S, K]`` float64 to ``[S, N]`` float64.

    The products of one output are added in a tree of halves (`_tree_sum`), then the bias, each multiplication and
    addition rounded by itself. Rows of W are read and widened in groups.

    Raises:
        CheckpointError: shapes don't fit, or a weight or bias is NaN or infinite.
    """
    rows, inner = weight.shape if len(weight.shape) == 2 else (-1, -1)
    if x.ndim != 2 or x.shape[1] != inner or bias.shape != (rows,):
        raise CheckpointError(
            "the shapes of a linear layer don't fit each other",
            where=f"{weight.origin}, {bias.origin}",
            expected=f"a weight [N, {x.shape[-1]}] and a bias [N]",
            found=f"{weight.name} {list(weight.shape)} and {bias.name} {list(bias.shape)}",
            fix="check that all files belong to one model",
        )
    y = np.empty((x.shape[0], rows), dtype=np.float64)
    for start in range(0, rows, _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, rows)
        block = check_finite(weight, weight.rows(start, stop), start).astype(np.float64)
        product = np.empty_like(block)
        for step, vector in enumerate(x):
            np.multiply(block, vector, out=product)
            y[step, start:stop] = _tree_sum(product)
    return np.add(y, check_finite(bias, bias.read()).astype(np.float64))


def _tree_sum(terms: Float64Array) -> Float64Array:
    """Sums over the last axis of ``terms [N, K]``, which is overwritten: ``[N]``.

    The second half is added to the first, term by term, until one is left; of an odd number the middle one waits. The
    order is a function of K alone, every addition is an elementwise one, and the error grows with log K.
    """
    count = terms.shape[1]
    while count > 1:
        kept = (count + 1) // 2
        np.add(terms[:, : count - kept], terms[:, kept:count], out=terms[:, : count - kept])
        count = kept
    return terms[:, 0]
