"""The deep checks: every byte of the data files against its hash and against what it must be.

The order is that of the C reader (docs/FORMAT.md, "Order of checks"): file by file in table order; in a file its hash,
then for each tensor the gap before it, its padding, its values, what calibration asks of them; then the gap after the
last one. A decoder's files are opaque: of them the hash is all. Where C stops at the first fault, `validate_deep` goes
on and returns all of them, so the first one is C's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdc.artifact import records
from hvdc.artifact.calibration import factors_fault, table_fault
from hvdc.artifact.codes import Code
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.manifest import FileEntry, TensorEntry
from hvdc.artifact.reader import DTYPES, Artifact
from layouts.grid import TileGrid, unpack_padded
from layouts.order import BY_NAME

Progress = Callable[[str, int], None]
"""Called with a data file's path and how many more of its bytes were checked; they sum up to ``totals.data_bytes``."""

Bytes = npt.NDArray[np.uint8]

CHUNK_BYTES = 4 << 20
"""About as much of a file is held in memory at a time."""


def validate_deep(artifact: Artifact, progress: Progress | None = None) -> list[ArtifactError]:
    """Every fault in the data files, at most one for each check of a tensor; ``[]`` for a sound artifact.

    Raises ArtifactError only for a file that cannot be read to its end.
    """
    scales = {tensor.scale for _, tensor in artifact.manifest.tensors() if tensor.scale is not None}
    findings: list[ArtifactError] = []
    for file_index, file in enumerate(artifact.manifest.files):
        reader = _Reader(artifact, file_index, file, progress)
        found: list[ArtifactError] = []
        for tensor in file.tensors:
            found += _gap(reader, tensor.offset, f"before {tensor.name}")
            found += _tensor(reader, tensor, tensor.name in scales)
            if tensor.kind == "calibration":
                found += _calibration(artifact, file_index, tensor)
        found += _gap(reader, file.bytes, "after the last tensor")
        digest = reader.sha256.hexdigest()
        if digest != file.sha256:  # known last, reported first: it explains the rest
            findings.append(
                ArtifactError(
                    Code.DATA_HASH,
                    where=reader.where,
                    expected=file.sha256,
                    found=digest,
                    fix="the file was damaged or edited: copy it again, or compile again",
                )
            )
        findings += found
    return findings


def calibration_faults(artifact: Artifact) -> list[ArtifactError]:
    """What `validate_deep` says of values that calibration found, at most one for each tensor."""
    return [
        fault
        for i, file in enumerate(artifact.manifest.files)
        if file.kind == "calibration"
        for tensor in file.tensors
        for fault in _calibration(artifact, i, tensor)
    ]


def _calibration(artifact: Artifact, file_index: int, tensor: TensorEntry) -> list[ArtifactError]:
    """The first value of a calibration tensor that no engine can use, if there is one. Reads the tensor, unmapped."""
    data = artifact.read(file_index, tensor.offset, tensor.bytes).view(DTYPES[tensor.dtype]).reshape(tensor.shape)
    held = artifact.manifest.calibration
    if held is not None and tensor.name == records.ACTIVATION_SCALES_NAME:
        fault = table_fault(data, held.inputs, [step.expert for step in artifact.manifest.steps])
    else:
        fault = factors_fault(data)
    if fault is None:
        return []
    place, expected = fault
    where = f"{artifact.where(file_index)}: {tensor.name} {list(place)}"
    return [ArtifactError(Code.DATA_CALIBRATION, where=where, expected=expected, found=str(data[place]))]


@dataclass
class _Tally:
    """How many elements a check objects to, and the first of them."""

    count: int = 0
    first: str = ""

    def add(self, bad: npt.NDArray[np.bool_], data: npt.NDArray[Any], place: Callable[[int], str]) -> None:
        """Count the elements of ``data`` that are ``bad``; ``place`` names the element at a position."""
        at = np.flatnonzero(bad)
        if at.size:
            if not self.count:
                self.first = f"{place(int(at[0]))} is {data[at[0]]}"
            self.count += at.size

    def finding(self, code: Code, where: str, expected: str) -> list[ArtifactError]:
        if not self.count:
            return []
        more = f", and {self.count - 1} more" if self.count > 1 else ""
        return [ArtifactError(code, where=where, expected=expected, found=self.first + more)]


class _Reader:
    """Reads one file from its start to its end in pieces, and hashes it on the way."""

    def __init__(self, artifact: Artifact, file_index: int, file: FileEntry, progress: Progress | None) -> None:
        self.where = artifact.where(file_index)
        self.at = 0
        self.sha256 = hashlib.sha256()
        self._artifact, self._file_index, self._path, self._progress = artifact, file_index, file.path, progress

    def take(self, size: int) -> Bytes:
        """The next ``size`` bytes."""
        data = self._artifact.read(self._file_index, self.at, size)
        self.at += size
        self.sha256.update(data.data)
        if self._progress is not None:
            self._progress(self._path, size)
        return data


def _gap(reader: _Reader, end: int, name: str) -> list[ArtifactError]:
    """Zeros up to ``end``: fewer than 4096 bytes, or the layout would not have been accepted."""
    start = reader.at
    data, tally = reader.take(end - start), _Tally()
    tally.add(data != 0, data, lambda i: f"the byte at {start + i}")
    return tally.finding(Code.DATA_PADDING, f"{reader.where}: {name}", "zeros")


def _tensor(reader: _Reader, tensor: TensorEntry, is_scale: bool) -> list[ArtifactError]:
    where = f"{reader.where}: {tensor.name}"
    padding, values = _Tally(), _Tally()
    dtype = DTYPES[tensor.dtype]
    pieces = _row_major(reader, tensor) if tensor.tile_order == "row-major" else _tiled(reader, tensor)
    for data, index, is_padding in pieces:
        if tensor.kind == "decoder":  # opaque: its hash is all that is checked, and it has no padding
            continue
        if is_padding is not None:
            filler = np.ones(1, dtype) if is_scale else np.zeros(1, dtype)
            words = data.view(f"u{dtype.itemsize}")  # bits, not numbers: -0.0 is not padding
            padding.add(is_padding & (words != filler.view(words.dtype)), data, index)
        if tensor.dtype == "int8":
            bad = data == -128
        elif is_scale:
            bad = ~(np.isfinite(data) & (data > 0))
        else:
            bad = ~np.isfinite(data)
        values.add(bad, data, index)
    found = padding.finding(Code.DATA_PADDING, where, "ones in padding" if is_scale else "zeros in padding")
    if tensor.dtype == "int8":
        return found + values.finding(Code.DATA_MINUS_128, where, "-127 … 127")
    if is_scale:
        return found + values.finding(Code.DATA_SCALE, where, "finite scales above 0")
    return found + values.finding(Code.DATA_NOT_FINITE, where, "finite values")


Piece = tuple[npt.NDArray[Any], Callable[[int], str], npt.NDArray[np.bool_] | None]
"""Elements, flat; the name of the element at a position; which of them are padding (None: none)."""


def _row_major(reader: _Reader, tensor: TensorEntry) -> Iterator[Piece]:
    dtype, padded = DTYPES[tensor.dtype], tensor.padded_shape
    step = CHUNK_BYTES // dtype.itemsize
    total = tensor.bytes // dtype.itemsize
    for start in range(0, total, step):
        count = min(step, total - start)
        data = reader.take(count * dtype.itemsize).view(dtype)

        def index(i: int, start: int = start) -> str:
            return str([int(v) for v in np.unravel_index(start + i, padded)])

        if padded == tensor.shape:
            yield data, index, None
            continue
        axes = np.unravel_index(np.arange(start, start + count), padded)
        beyond = [axis >= size for axis, size in zip(axes, tensor.shape, strict=True)]
        yield data, index, np.logical_or.reduce(beyond)


def _tiled(reader: _Reader, tensor: TensorEntry) -> Iterator[Piece]:
    """Whole columns of tiles; only those that hold padding are de-tiled."""
    order, (n, k) = BY_NAME[tensor.tile_order], tensor.shape
    grid = TileGrid(order, n, k)
    step = max(CHUNK_BYTES // grid.strip_bytes, 1)
    dtype = DTYPES[tensor.dtype]
    for start in range(0, grid.n_tiles, step):
        count = min(step, grid.n_tiles - start)
        data = reader.take(count * grid.strip_bytes).view(dtype)
        row, rows = start * order.col_count, count * order.col_count
        if k == grid.padded_k and row + rows <= n:

            def stored_index(i: int, start: int = start) -> str:
                tile, element = divmod(i, order.elements)
                (k_in, n_in), *_ = np.argwhere(order.offsets() == element)
                n_tile, k_tile = divmod(tile, grid.k_tiles)
                return str([int((start + n_tile) * order.col_count + n_in), int(k_tile * order.row_count + k_in)])

            yield data, stored_index, None
            continue

        def index(i: int, row: int = row) -> str:
            return str([row + i // grid.padded_k, i % grid.padded_k])

        matrix = unpack_padded(order, data, count, grid.k_tiles)
        is_padding = np.zeros(matrix.shape, np.bool_)
        is_padding[:, k:] = True
        is_padding[max(n - row, 0) :] = True
        yield matrix.reshape(-1), index, is_padding.reshape(-1)
