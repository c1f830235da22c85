"""``index.bin`` taken apart, changed at will, and put together again with a right checksum."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdc.artifact import records
from hvdc.artifact.index_read import parse_index
from hvdc.artifact.index_write import assemble, seal
from hvdc.artifact.manifest import INDEX_NAME
from hvdc.artifact.record import Record
from hvdc.artifact.records import Section

Table = npt.NDArray[np.void]


@dataclass
class IndexEdit:
    """The tables of an index, writable: ``edit.tensors["offset"][3] = 5``."""

    geometry: Table
    files: Table
    tensors: Table
    steps: Table
    strings: bytearray
    manifest_sha256: bytes
    calibration: Table | None = None
    inputs: Table | None = None
    decoder: Table | None = None
    graphs: Table | None = None
    ports: Table | None = None
    binaries: Table | None = None
    features: int = 0
    header: dict[str, int] = field(default_factory=dict)
    """Header fields to overwrite at the end, before the checksum."""
    more: list[tuple[int, bytes, int, int]] = field(default_factory=list)
    """Further sections ``(kind, bytes, count, record_bytes)``."""
    optional: frozenset[int] = frozenset(records.SECTION_MINOR)
    minor: int = records.MINOR

    @classmethod
    def of(cls, data: bytes) -> IndexEdit:
        """Take a valid index apart."""
        index = parse_index(data)
        decodes = index.decoder is not None
        return cls(
            index.geometry.reshape(1).copy(),
            index.files.copy(),
            index.tensors.copy(),
            index.steps.copy(),
            bytearray(index.strings),
            index.header["manifest_sha256"].tobytes(),
            index.calibration.reshape(1).copy() if index.calibration is not None else None,
            index.inputs.copy() if index.calibration is not None else None,
            index.decoder.reshape(1).copy() if index.decoder is not None else None,
            index.graphs.copy() if decodes else None,
            index.ports.copy() if decodes else None,
            index.binaries.copy() if decodes and int(index.header["minor"]) >= records.BINARIES_MINOR else None,
            int(index.header["required_features"]),
            minor=int(index.header["minor"]),
        )

    def text(self, text: bytes) -> int:
        """Append a string; returns its reference."""
        at = len(self.strings)
        self.strings += text + b"\0"
        return at

    def id(self, name: str) -> int:
        """Id of a tensor by name."""
        for i, reference in enumerate(self.tensors["name"]):
            start = int(reference)
            if self.strings[start : self.strings.index(0, start)] == name.encode():
                return i
        raise KeyError(name)

    def payloads(self) -> list[tuple[int, bytes, int, int]]:
        tables: list[tuple[int, Table]] = [
            (Section.GEOMETRY, self.geometry),
            (Section.FILES, self.files),
            (Section.TENSORS, self.tensors),
            (Section.STEPS, self.steps),
        ]
        later = [
            (Section.CALIBRATION, self.calibration),
            (Section.GEMM_INPUTS, self.inputs),
            (Section.DECODER, self.decoder),
            (Section.DECODER_GRAPHS, self.graphs),
            (Section.DECODER_PORTS, self.ports),
            (Section.DECODER_BINARIES, self.binaries),
        ]
        strings = (int(Section.STRINGS), bytes(self.strings), len(self.strings), 1)
        return [*map(_payload, tables), strings, *(_payload((k, t)) for k, t in later if t is not None), *self.more]

    def bytes(self) -> bytes:
        data = assemble(self.payloads(), self.manifest_sha256, self.minor, self.optional, self.features)
        return with_fields(data, records.HEADER, 0, self.header)


def _payload(table: tuple[int, Table]) -> tuple[int, bytes, int, int]:
    kind, rows = table
    return int(kind), rows.tobytes(), len(rows), rows.dtype.itemsize


def with_fields(data: bytes, record: Record, offset: int, fields: dict[str, Any]) -> bytes:
    """``data`` with fields of the record at ``offset`` overwritten, sealed again."""
    out = bytearray(data)
    for name, value in fields.items():
        dtype = next(f.dtype for f in record.fields if f.name == name)
        at = offset + record.offset(name)
        raw = np.array(value, dtype).tobytes()
        out[at : at + len(raw)] = raw
    return seal(bytes(out))


def appended(table: Table, extra: int) -> Table:
    """The same records with ``extra`` bytes of 0xEE after each: fields of a newer minor version."""
    raw = table.view(np.uint8).reshape(len(table), -1)
    wide = np.concatenate([raw, np.full((len(table), extra), 0xEE, np.uint8)], axis=1)
    return np.ascontiguousarray(wide).view(np.dtype((np.void, wide.shape[1]))).reshape(len(table))


@contextmanager
def edited(root: Path) -> Iterator[IndexEdit]:
    """Change the index of an artifact; its manifest stays."""
    edit = IndexEdit.of((root / INDEX_NAME).read_bytes())
    yield edit
    (root / INDEX_NAME).write_bytes(edit.bytes())
