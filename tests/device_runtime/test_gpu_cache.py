"""Compiled programs and tuning results on disk: used again, and made again where they are damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.device_runtime.gpu import Gpu
from tests.device_runtime.test_gpu_kernels import codes, product, sums

Start = Callable[..., Gpu]


def compiled(start: Start, cache: Path) -> int:
    """How many programs a start compiles; it must compute right, too."""
    with start(dot="plain", cache=cache) as gpu:
        count = int(gpu.ask("device", 128).split()[1])
        a, w = codes(1, 5, 32), codes(1, 32, 32)
        np.testing.assert_array_equal(sums(gpu, a, w), product(a, w))
    return count


@pytest.fixture(scope="module")
def filled(start_gpu: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("cache") / "below" / "another"
    assert compiled(start_gpu, cache) > 0
    return cache


def test_a_second_start_compiles_nothing(filled: Path, start_gpu: Start) -> None:
    assert compiled(start_gpu, filled) == 0
    assert not list(filled.glob("*.partial"))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "gone"])
@pytest.mark.parametrize("which", ["program-*", "gemm-*"])
def test_a_damaged_entry_is_made_again(which: str, damage: str, filled: Path, start_gpu: Start) -> None:
    for path in filled.glob(which):
        data = path.read_bytes()
        if damage == "gone":
            path.unlink()
        else:
            flipped = data[:-1] + bytes([data[-1] ^ 1])
            path.write_bytes({"cut": data[:-1], "flipped": flipped, "empty": b""}[damage])
    assert compiled(start_gpu, filled) > 0
    assert compiled(start_gpu, filled) == 0


def test_a_cache_that_cannot_be_written_is_no_failure(start_gpu: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert compiled(start_gpu, tmp_path / "file" / "cache") > 0
