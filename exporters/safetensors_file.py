"""One safetensors file: its header checked, its rows read with `pread`.

The file is never mapped. Mapped pages count as resident memory, and a 6 GB file read through a map would
take 6 GB of a compiler that promises to stay below 1.5 GiB. Every read goes into a fresh array, so several
threads may read at once.
"""

from __future__ import annotations

import json
import math
import os
import struct
import threading
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from exporters.dtypes import DECODABLE, ITEM_BYTES, decode_into
from exporters.errors import CheckpointError
from exporters.tensor import Float32Array, RowReader, Tensor

MAX_HEADER_BYTES = 100_000_000
"""The safetensors format's own limit."""

_SCRATCH_BYTES = 4 << 20
# One buffer per thread for bytes that are decoded on the way: small enough to stay in cache, never returned.
_scratch = threading.local()

_DOWNLOAD_AGAIN = "download the file again and compare its size with the one that its host shows"


@dataclass(frozen=True)
class Entry:
    """One tensor of a safetensors header; ``begin`` and ``end`` are byte offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """An open safetensors file. ``tensors`` are lazy and valid until `close`. ``header``: its JSON, as it is stored."""

    def __init__(self, path: Path) -> None:
        """Opens and checks ``path``.

        Raises:
            CheckpointError: the file cannot be read, is cut off, or breaks the format.
        """
        self.path = path
        try:
            self._file = FileIO(path, "r")
        except OSError as error:
            raise CheckpointError(f"the file cannot be read: {error.strerror or error}", where=str(path)) from error
        try:
            entries, self.metadata, self.header = _read_header(self._file, path)
            _validate_with_library(path)
        except BaseException:
            self._file.close()
            raise
        self.tensors = {
            e.name: Tensor(e.name, e.shape, e.dtype, f"{path}: {e.name}", _row_reader(self._file, path, e))
            for e in entries
        }

    def close(self) -> None:
        """Gives the file descriptor back; later reads fail."""
        self._file.close()


def _refuse(path: Path, what: str, *, expected: str = "", found: str = "", fix: str = "") -> CheckpointError:
    return CheckpointError(
        what,
        where=str(path),
        expected=expected,
        found=found,
        fix=fix or f"the file is damaged: {_DOWNLOAD_AGAIN}",
    )


def _truncated(path: Path, expected: int, found: int) -> CheckpointError:
    return CheckpointError(
        "the file is cut off: the download or copy did not finish",
        where=str(path),
        expected=f"{expected:,} bytes, by the file's own header",
        found=f"{found:,} bytes ({expected - found:,} missing)",
        fix=_DOWNLOAD_AGAIN,
    )


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f"the name {key!r} appears twice")
        out[key] = value
    return out


def _read_header(file: FileIO, path: Path) -> tuple[list[Entry], dict[str, str], bytes]:
    size = os.fstat(file.fileno()).st_size
    start = os.pread(file.fileno(), 8, 0)
    if len(start) < 8:
        raise _truncated(path, 8, size)
    (header_bytes,) = struct.unpack("<Q", start)
    if header_bytes > MAX_HEADER_BYTES:
        raise _refuse(
            path,
            "the safetensors header is too large to be true",
            expected=f"at most {MAX_HEADER_BYTES:,} bytes",
            found=f"{header_bytes:,} bytes",
        )
    if 8 + header_bytes > size:
        raise _truncated(path, 8 + header_bytes, size)
    try:
        text = os.pread(file.fileno(), header_bytes, 8)
        header = json.loads(text, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise _refuse(path, f"the safetensors header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise _refuse(path, "the safetensors header is not a JSON object")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict):
        raise _refuse(path, "the safetensors header's __metadata__ is not a JSON object")
    data_start = 8 + header_bytes
    entries = sorted((_entry(path, k, v, data_start) for k, v in header.items()), key=lambda e: (e.begin, e.end))
    position = data_start
    for entry in entries:
        if entry.begin != position:
            raise _refuse(
                path,
                f"tensor {entry.name!r} leaves a hole before it or overlaps its neighbour",
                expected=f"data at byte {position:,}",
                found=f"byte {entry.begin:,}",
            )
        position = entry.end
    if position > size:
        raise _truncated(path, position, size)
    if position < size:
        raise _refuse(
            path,
            "bytes follow the last tensor",
            expected=f"{position:,} bytes, by the header",
            found=f"{size:,} bytes",
        )
    return entries, {str(k): str(v) for k, v in metadata.items()}, text


def _entry(path: Path, name: str, value: object, data_start: int) -> Entry:
    def is_count(x: object) -> bool:
        return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 2**63

    ok = (
        isinstance(value, dict)
        and isinstance(value.get("dtype"), str)
        and isinstance(value.get("shape"), list)
        and isinstance(value.get("data_offsets"), list)
        and len(value["data_offsets"]) == 2
        and all(map(is_count, [*value["shape"], *value["data_offsets"]]))
    )
    if not ok:
        raise _refuse(path, f"the safetensors header's entry for {name!r} is malformed", found=repr(value)[:200])
    assert isinstance(value, dict)  # noqa: S101 - `ok` says so; this line tells the type checker
    begin, end = value["data_offsets"]
    need = math.prod(value["shape"]) * ITEM_BYTES.get(value["dtype"], 0)
    if end < begin or (value["dtype"] in ITEM_BYTES and end - begin != need):
        raise _refuse(
            path,
            f"tensor {name!r} occupies a wrong number of bytes",
            expected=f"{need:,} bytes for {value['dtype']} {tuple(value['shape'])}",
            found=f"{end - begin:,} bytes",
        )
    return Entry(name, value["dtype"], tuple(value["shape"]), data_start + begin, data_start + end)


def _validate_with_library(path: Path) -> None:
    """The safetensors library's own opinion, so that hvdc never reads a file that others refuse."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy"):
            pass
    except (SafetensorError, OSError, ValueError) as error:
        raise _refuse(path, f"the safetensors library refuses this file: {error}") from error


def _row_reader(file: FileIO, path: Path, entry: Entry) -> RowReader:
    shape, dtype = entry.shape or (1,), entry.dtype
    row_items = math.prod(shape[1:])

    def read(start: int, stop: int) -> Float32Array:
        if dtype not in DECODABLE:
            raise CheckpointError(
                f"tensor {entry.name!r} is stored as {dtype}, which is no floating-point number",
                where=str(path),
                expected=", ".join(DECODABLE),
                fix="give the checkpoint before it was quantised",
            )
        if not 0 <= start <= stop <= shape[0]:
            raise IndexError(f"rows [{start}, {stop}) of {entry.name!r}, which has {shape[0]}")
        out = np.empty((stop - start, *shape[1:]), np.float32)
        if out.size == 0:
            return out
        flat, item = out.reshape(-1), ITEM_BYTES[dtype]
        offset = entry.begin + start * row_items * item
        if dtype == "F32":
            _read_exactly(file, path, flat.view(np.uint8).data, offset)
            return out
        if not hasattr(_scratch, "bytes"):
            _scratch.bytes = np.empty(_SCRATCH_BYTES, np.uint8)
        step = _SCRATCH_BYTES // item
        for at in range(0, flat.size, step):
            part = flat[at : at + step]
            raw = _scratch.bytes[: part.size * item]
            _read_exactly(file, path, raw.data, offset + at * item)
            decode_into(part, raw, dtype)
        return out

    return read


def _read_exactly(file: FileIO, path: Path, buffer: memoryview, offset: int) -> None:
    done = 0
    while done < len(buffer):  # one call returns at most 2 GiB
        try:
            count = os.preadv(file.fileno(), [buffer[done:]], offset + done)
        except OSError as error:
            raise CheckpointError(
                f"reading failed: {error.strerror or error}", where=f"{path}, byte {offset + done:,}"
            ) from error
        if count == 0:
            raise CheckpointError(
                "the file became shorter while it was being read",
                where=f"{path}, byte {offset + done:,}",
                fix="keep the checkpoint unchanged while hvdc runs",
            )
        done += count
