"""Asking single kernels of the host and of the NPU executor: one process for many questions."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from layouts.grid import pack
from layouts.order import HMX_INT8_K4, TileOrder

LEVELS = ("generic", "x86-64-v3", "x86-64-v4")
"""Of a processor: device_runtime/host/include/hvdc/cpu.h."""

Array = npt.NDArray[Any]


def usable_levels(program: Path) -> list[str]:
    """Those of `LEVELS` that this processor can execute; the first always is."""
    done = [subprocess.run([program, level, "1"], input=b"", capture_output=True, check=False) for level in LEVELS]
    return [level for level, process in zip(LEVELS, done, strict=True) if process.returncode == 0]


class Kernels:
    """``hvdc_kernels`` as a process; see device_runtime/npu/tools/hvdc_kernels.c. A sanitizer's report fails the test
    that asked."""

    def __init__(
        self,
        program: Path | Sequence[str],
        level: str = "generic",
        threads: int = 1,
        sums: str = "fast",
        vtcm_kib: int | None = None,
    ) -> None:
        """``program``: its path, or the command that runs it. ``vtcm_kib``: the matrix unit is the model of a DSP's,
        with so much memory."""
        command = [str(program)] if isinstance(program, Path) else list(program)
        vtcm = [] if vtcm_kib is None else [str(vtcm_kib)]
        self._process = subprocess.Popen(
            [*command, level, str(threads), sums, *vtcm],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Kernels:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _, report = self._process.communicate(timeout=60)
        if kind is None:
            assert self._process.returncode == 0, report.decode(errors="replace")

    def ask(self, name: str, *sizes: int, arrays: tuple[Array, ...] = (), dtype: npt.DTypeLike = np.float16) -> Array:
        """The answer as a flat array."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{name} {' '.join(map(str, sizes))}\n".encode())
        for array in arrays:
            stdin.write(np.ascontiguousarray(array).tobytes())
        stdin.flush()
        size = stdout.readline()
        if not size:  # it died: a sanitizer has something to say
            _, report = self._process.communicate(timeout=60)
            raise AssertionError(report.decode(errors="replace"))
        return np.frombuffer(stdout.read(int(size)), dtype)


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def near_halves() -> Array:
    """All finite FP16 values, the ties between neighbours, and their neighbours in FP32; then many random bits."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[:-1] + halves[1:]) / 2
    edge = np.array([65504, 65519.996, 65520, 65536, 1e38, np.inf, np.nan], np.float32)
    up, down = np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(0))
    all_of = np.concatenate([halves, ties, up, down, edge])
    bits = rng(0).integers(0, 2**32, 100_000, np.uint32).view(np.float32)
    return np.concatenate([all_of, -all_of, bits])


def same_bits_or_nan(found: Array, due: Array) -> bool:
    word = np.dtype(f"u{due.itemsize}")
    return bool(np.all((found.view(word) == due.view(word)) | (np.isnan(found) & np.isnan(due))))


def weight(rng: np.random.Generator, n: int, k: int) -> tuple[Array, Array]:
    """Codes ``[n, k]`` INT8 and scales ``[n]`` FP32 of a plausible weight."""
    q = rng.integers(-127, 128, (n, k)).astype(np.int8)
    return q, (rng.uniform(0.5, 2.0, n) / 127 / np.sqrt(k)).astype(np.float32)


def tiled(q: Array, scale: Array) -> tuple[Array, Array]:
    """A weight as an artifact stores it: tiles, and a scale for every padded column."""
    return pack(HMX_INT8_K4, q), padded(scale, 1.0)


def padded(vector: Array, value: float = 0.0) -> Array:
    """A vector of a linear's outputs, up to a whole tile."""
    out = np.full(-(-len(vector) // 32) * 32, value, np.float32)
    out[: len(vector)] = vector
    return out


def untiled(order: TileOrder, tiles: Array, rows: int, cols: int) -> Array:
    """Tiles ``[row tile][column tile]``, each of (row, column), to ``[rows, cols]``."""
    shape = (-(-rows // order.row_count), -(-cols // order.col_count))
    whole = tiles.reshape(*shape, order.elements)[:, :, order.offsets()]
    return whole.transpose(0, 2, 1, 3).reshape(shape[0] * order.row_count, -1)[:rows, :cols]
