"""From canonical tensors to stored bytes: one data file at a time, strip by strip, so that a strip stays in cache."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from exporters.errors import CheckpointError
from exporters.tensor import Float32Array, Tensor, check_finite
from hvdc.pipeline.artifact_plan import FilePlan, Role, TensorPlan
from layouts.grid import pack_into
from layouts.order import HMX_INT8_K4
from layouts.regions import Placement, align_up
from quant.hashing import ValueHash
from quant.weights import SMALLEST_SCALE, NonFiniteError, Quantizer

Buffer = npt.NDArray[np.uint8]
Advance = Callable[[int], None]
"""Called with the bytes of float32 values that were consumed."""

STRIP_BYTES = 3 << 20
"""FP32 bytes of a strip: small enough for the cache, so large that threads rarely wait for the interpreter lock."""


class Buffers:
    """One buffer for each thread, kept from file to file: fresh memory costs a page fault every 4 KiB."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._local = threading.local()

    def mine(self) -> Buffer:
        """The calling thread's buffer."""
        if not hasattr(self._local, "buffer"):
            self._local.buffer = np.empty(self._size, np.uint8)
        buffer: Buffer = self._local.buffer
        return buffer


def unchanged(name: str, rows: Float32Array, first_row: int) -> Float32Array:
    """The rows as they are: no smoothing."""
    return rows


class InterruptedBuildError(Exception):
    """The build was asked to stop."""


class Tiler:
    """Quantises strips of a weight and stores them in tile order, with scratch memory of its own: one per thread."""

    def __init__(self, padded_k: int) -> None:
        self._quantize = Quantizer()
        self._q = np.zeros((0, padded_k), np.int8)

    def __call__(self, start: int, rows: Float32Array, out: Buffer, scales: Float32Array) -> None:
        """Rows ``[start, start + n)`` of W, FP32 ``[n, k]``, into ``out`` and ``scales`` of the whole weight.

        ``start`` is a multiple of the tile's columns, and so is n but for the last strip. Raises NonFiniteError.
        """
        n, k = rows.shape
        padded_n, padded_k = align_up(n, HMX_INT8_K4.col_count), self._q.shape[1]
        if len(self._q) != padded_n:
            self._q = np.zeros((padded_n, padded_k), np.int8)  # so that padding rows and columns are zero
        scales[start : start + n] = self._quantize(rows, self._q[:n, :k])
        pack_into(HMX_INT8_K4, self._q, out[start * padded_k : (start + padded_n) * padded_k])


@dataclass
class FileMaker:
    """Fills the bytes of planned files from canonical tensors and tables. Safe to call from several threads."""

    tensors: Mapping[str, Tensor]
    compute_tables: Callable[[], Mapping[str, npt.NDArray[np.generic]]]
    """Called once for the file that holds the tables."""
    table_sources: Sequence[str]
    """The canonical tensors that the tables are computed from."""
    alpha_over_rank: float
    calibration: Mapping[str, Float32Array] = field(default_factory=dict)
    """What the file of the calibration holds."""
    rescale: Callable[[str, Float32Array, int], Float32Array] = unchanged
    """(name, rows, first row) -> the rows as the artifact has them; hashes are of the rows before."""
    stop: threading.Event = field(default_factory=threading.Event)

    def make(self, file: FilePlan, buffer: Buffer, advance: Advance) -> tuple[Buffer, dict[str, str]]:
        """The file's bytes in the front of ``buffer``, and the value hash of every canonical tensor that went into it.

        Raises CheckpointError for a value that is not finite, InterruptedBuildError once ``stop`` is set.
        """
        data = buffer[: file.region.bytes]
        data[...] = 0
        at = {p.name: _slot(data, p) for p in file.region.placements}
        hashes: dict[str, str] = {}
        if any(plan.role is Role.TABLE for plan in file.tensors):
            for name, table in self.compute_tables().items():
                at[name][...] = table.reshape(-1).view(np.uint8)
            for name in self.table_sources:
                hashes[name] = value_hash(self.tensors[name], self._pieces(self.tensors[name]), advance)
        for plan in file.tensors:
            if plan.role is Role.CALIBRATION:
                at[plan.name].view("<f4")[...] = self.calibration[plan.name].reshape(-1)
            if plan.source is not None:
                source = self.tensors[plan.source]
                if plan.scale is not None:
                    digest = self._weight(plan, source, at[plan.name], at[plan.scale].view(np.float32), advance)
                else:
                    digest = self._copy(source, at[plan.name].view(np.float32), advance)
                hashes[plan.source] = digest
        return data, hashes

    def _weight(self, plan: TensorPlan, source: Tensor, out: Buffer, scales: Float32Array, advance: Advance) -> str:
        """Quantise and tile one weight into ``out``; scales of padding columns are 1."""
        tiler, digest, n = Tiler(plan.padded_shape[1]), ValueHash(), source.shape[0]
        scales[n:] = 1.0
        for start, rows in self._pieces(source, HMX_INT8_K4.col_count):
            digest.update(rows)
            try:
                tiler(start, self.rescale(source.name, rows, start), out, scales)
            except NonFiniteError:
                check_finite(source, rows, start)  # says which tensor of which file
                raise
            advance(rows.nbytes)
        if plan.times_alpha:
            with np.errstate(over="ignore", under="ignore"):
                scales[:n] *= np.float32(self.alpha_over_rank)
            _check_scales(source, scales[:n])
        return digest.hexdigest()

    def _copy(self, source: Tensor, out: Float32Array, advance: Advance) -> str:
        digest, at = ValueHash(), 0
        for start, rows in self._pieces(source):
            digest.update(rows)
            check_finite(source, rows, start)
            out[at : at + rows.size] = self.rescale(source.name, rows, start).reshape(-1)
            at += rows.size
            advance(rows.nbytes)
        return digest.hexdigest()

    def _pieces(self, source: Tensor, multiple: int = 1) -> Iterator[tuple[int, Float32Array]]:
        for piece in pieces(source, multiple):
            if self.stop.is_set():
                raise InterruptedBuildError
            yield piece


def _check_scales(source: Tensor, scales: Float32Array) -> None:
    """Raises CheckpointError for a scale that folding alpha / r in has made infinite or subnormal."""
    bad = ~((scales >= SMALLEST_SCALE) & np.isfinite(scales))
    if bad.any():
        column = int(bad.argmax())
        raise CheckpointError(
            f"alpha / rank takes the scale of {source.name!r} out of FP32's range",
            where=f"{source.origin}, row {column}",
            expected="a normal, finite number",
            found=str(scales[column]),
            fix="check the adapter's alpha, and the size of its factors",
        )


def value_hash(source: Tensor, rows: Iterable[tuple[int, Float32Array]], advance: Advance) -> str:
    """The value hash of a tensor from its `pieces`. Raises CheckpointError for a value that is not finite."""
    digest = ValueHash()
    for start, piece in rows:
        digest.update(check_finite(source, piece, start))
        advance(piece.nbytes)
    return digest.hexdigest()


def pieces(source: Tensor, multiple: int = 1) -> Iterator[tuple[int, Float32Array]]:
    """``(first row, rows)`` of a tensor, in order, in pieces of about a strip; all but the last a multiple of rows."""
    row_bytes = 4 * math.prod(source.shape[1:])
    step = max(STRIP_BYTES // row_bytes // multiple, 1) * multiple
    for start in range(0, source.shape[0], step):
        yield start, source.rows(start, min(start + step, source.shape[0]))


def _slot(data: Buffer, place: Placement) -> Buffer:
    return data[place.offset : place.offset + place.bytes]
