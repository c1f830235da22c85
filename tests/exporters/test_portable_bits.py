"""Computed tables have the same bits on every machine, whatever instructions its CPU offers."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from exporters import adaln
from exporters import portable_math as pm
from exporters.model import TINY, canonical_tensors
from exporters.schedule import make_schedule
from exporters.tensor import Tensor, from_array

GOLDEN = {
    "functions": "eabc7aa4d67b512f3fda27821986fe71bafa02446027560ac4e5d7afc19f951e",
    "tables": "cc66762c3a620f63d2ccbe0975d24bc2d12401532e63686da6656381b0bbf7a0",
}
"""What every machine must give. Changed bits here are changed bytes in every artifact: say so in the changelog."""


def made_up(shape: tuple[int, ...], salt: int) -> np.ndarray:
    """float32 in [-0.25, 0.25] from integers and one exact division: the same everywhere, unlike a generator's."""
    index = np.arange(int(np.prod(shape)), dtype=np.int64) + 7919 * salt
    return ((index * index * 31 + index * 17) % 2049 - 1024).astype(np.float32).reshape(shape) / np.float32(4096)


def functions_digest() -> str:
    """Hash of float64 results, before any rounding to float32 could hide a difference in the last place."""
    x = made_up((3, 1021), 1).astype(np.float64) * 40.0
    weight, bias = from_array("w", made_up((37, 1021), 2)), from_array("b", made_up((37,), 3))
    digest = hashlib.sha256()
    for array in (pm.exp(x * 60.0), *pm.sincos(x * 1e4), pm.silu(x), pm.linear64(weight, bias, pm.silu(x))):
        digest.update(array.astype("<f8").tobytes())
    return digest.hexdigest()


def tables_digest() -> str:
    """Hash of every table of a model whose odd sizes leave remainders after full vector registers."""
    geometry = replace(TINY, width=382, heads=1, freq_dim=250)
    tensors: dict[str, Tensor] = {
        name: from_array(name, made_up(shape, salt))
        for salt, (name, shape) in enumerate(canonical_tensors(geometry).items())
        if "time" in name or "scale_shift" in name
    }
    tables = adaln.fold_tables(geometry, tensors, make_schedule([1000.0, 992.5, 977.7, 810.0, 3.0]))
    digest = hashlib.sha256()
    for array in (tables.adaln, tables.head, *tables.rope_frequencies):
        digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def digests() -> dict[str, str]:
    return {"functions": functions_digest(), "tables": tables_digest()}


def numpy_dispatch() -> dict[str, bool]:
    """The instruction sets that numpy chooses between when it starts, and whether it uses them."""
    core = getattr(np, "_core", None) or np.core
    umath = core._multiarray_umath
    return {name: bool(umath.__cpu_features__.get(name)) for name in umath.__cpu_dispatch__}


_CHILD = """
import json
from tests.exporters import test_portable_bits as bits
print(json.dumps([bits.numpy_dispatch(), bits.digests()]))
"""


def test_the_bits_are_the_published_ones() -> None:
    assert digests() == GOLDEN


def test_the_bits_are_the_same_with_and_without_vector_instructions() -> None:
    used = [name for name, on in numpy_dispatch().items() if on]
    if not used:
        pytest.skip("this CPU offers nothing beyond numpy's baseline")
    environment = {
        **os.environ,
        "NPY_DISABLE_CPU_FEATURES": " ".join(used),
        # The C library chooses its own exp, sin and cos; it ignores names that it doesn't know.
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F,-AVX2_Usable,-FMA_Usable",
    }
    done = subprocess.run(
        [sys.executable, "-c", _CHILD],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    features, found = json.loads(done.stdout)
    assert not any(features.values()), "the child used vector instructions after all, so it proves nothing"
    assert found == digests()


def test_one_bit_in_one_intermediate_changes_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = functions_digest()
    exact = pm.silu

    def off_by_one_bit(x: np.ndarray) -> np.ndarray:
        y = exact(x)
        y[1, 500] = np.nextafter(y[1, 500], np.inf)
        return y

    monkeypatch.setattr(pm, "silu", off_by_one_bit)
    assert functions_digest() != before


def test_an_ordinary_product_has_other_bits() -> None:
    """Why `linear64` exists: a library's product adds in another order, which depends on the machine."""
    weight, x = made_up((37, 1021), 2), made_up((3, 1021), 1).astype(np.float64) / 3.0
    ordered = pm.linear64(from_array("w", weight), from_array("b", np.zeros(37, np.float32)), x)
    ordinary = x @ weight.T.astype(np.float64)
    assert np.abs(ordered - ordinary).max() < 1e-12
    assert not np.array_equal(ordered, ordinary)
