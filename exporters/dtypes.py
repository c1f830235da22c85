"""What the bytes of a stored number mean: every floating dtype that checkpoints use, decoded to float32."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from exporters.tensor import Float32Array

ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1, "C64": 8,
}  # fmt: skip
"""Bytes of one element, in safetensors' spelling. A dtype that isn't here is left to the safetensors library."""

DECODABLE = ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F64")
"""The dtypes that weights may be stored in."""

FP8 = ("F8_E4M3", "F8_E5M2")

RELATIVE_STEP = {
    "F64": 0.0,
    "F32": 0.0,
    "F16": 2.0**-11,
    "BF16": 2.0**-7,
    "F8_E4M3": 2.0**-4,
    "F8_E5M2": 2.0**-3,
}
"""Largest relative error of a normal float32 rounded to the dtype; BF16's is for truncating writers."""


def _fp8_table(exponent_bits: int, bias: int, has_infinity: bool) -> Float32Array:
    """The 256 values of an fp8 format (Micikevicius et al., "FP8 Formats for Deep Learning", 2022, table 1)."""
    mantissa_bits = 7 - exponent_bits
    code = np.arange(256)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    fraction = mantissa / 2.0**mantissa_bits
    magnitude = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
    top = exponent == (1 << exponent_bits) - 1
    if has_infinity:
        magnitude = np.where(top, np.where(mantissa == 0, np.inf, np.nan), magnitude)
    else:
        # E4M3 gives up infinity: only the all-ones pattern of each sign is special.
        magnitude = np.where(top & (mantissa == (1 << mantissa_bits) - 1), np.nan, magnitude)
    return np.where(code >= 128, -magnitude, magnitude).astype(np.float32)


FP8_TABLES = {
    "F8_E4M3": _fp8_table(exponent_bits=4, bias=7, has_infinity=False),
    "F8_E5M2": _fp8_table(exponent_bits=5, bias=15, has_infinity=True),
}


def decode_into(out: Float32Array, raw: npt.NDArray[np.uint8], dtype: str) -> None:
    """Writes the float32 values of ``raw`` (little-endian bytes) into the flat, contiguous ``out``.

    Exact for every dtype but F64, which is rounded to nearest. ``raw`` holds ``out.size`` elements.
    """
    if dtype == "BF16":
        bits = out.view(np.uint32)
        np.copyto(bits, raw.view("<u2"))
        np.left_shift(bits, 16, out=bits)
    elif dtype == "F16":
        np.copyto(out, raw.view("<f2"))
    elif dtype in FP8_TABLES:
        np.take(FP8_TABLES[dtype], raw, out=out, mode="clip")
    elif dtype == "F64":
        np.copyto(out, raw.view("<f8"), casting="same_kind")
    else:
        np.copyto(out, raw.view("<f4"))
