"""Each stored dtype decodes to exactly the float32 that torch gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exporters.dtypes import FP8_TABLES, decode_into

_TORCH = {"F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2"])
def test_all_256_codes(dtype):
    ours = FP8_TABLES[dtype]
    theirs = torch.arange(256, dtype=torch.uint8).view(_TORCH[dtype]).to(torch.float32).numpy()
    np.testing.assert_array_equal(ours, theirs)
    # the sign of zero too
    np.testing.assert_array_equal(np.signbit(ours), np.signbit(theirs))


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_all_65536_codes(dtype):
    raw = np.arange(1 << 16, dtype=np.uint16)
    out = np.empty(raw.size, np.float32)
    decode_into(out, raw.view(np.uint8), dtype)
    theirs = torch.from_numpy(raw.view(np.int16)).view(_TORCH[dtype]).to(torch.float32).numpy()
    np.testing.assert_array_equal(out, theirs)


def test_float64_rounds_to_nearest():
    raw = np.array([1.0, 1 + 2.0**-25, 1 + 3 * 2.0**-25, 1e-320, -0.0], "<f8")
    out = np.empty(raw.size, np.float32)
    decode_into(out, raw.view(np.uint8), "F64")
    np.testing.assert_array_equal(out, np.float32([1.0, 1.0, 1 + 2.0**-23, 0.0, -0.0]))
