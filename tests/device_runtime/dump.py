"""What ``hvdc_dump`` prints, made from the Python reader."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from hvdc.artifact import records
from hvdc.artifact.reader import Artifact
from hvdc.artifact.record import Field, Record
from hvdc.artifact.records import NONE, FileKind, TensorKind


def dump(artifact: Artifact, deep: bool) -> dict[str, Any]:
    """The same facts as ``hvdc_dump [--deep]``, as parsed JSON."""
    index = artifact.index
    blocks = range(int(index.geometry["layers"]))
    return {
        "header": _record(records.HEADER, index.header) | {"files": len(index.files), "tensors": len(index.tensors)},
        "geometry": _record(records.GEOMETRY, index.geometry) | {"records": 1},
        "files": [_record(records.FILE, f) | {"path_text": index.text(int(f["path"]))} for f in index.files],
        "tensors": [_tensor(artifact, i, deep) for i in range(len(index.tensors))],
        "regions": [_block_file(artifact, FileKind.REGION, block) for block in blocks],
        "ffn_pairs": [_pair(artifact, block) for block in blocks],
        "adapters": [_block_file(artifact, FileKind.ADAPTER, block) for block in blocks],
        "calibration": _calibration(artifact),
        "decoder": _decoder(artifact),
        "steps": [_step(artifact, step) for step in range(len(index.steps))],
    }


def _record(record: Record, row: Any) -> dict[str, Any]:
    return {field.name: _field(field, row[field.name]) for field in record.fields}


def _field(field: Field, value: Any) -> Any:
    array = np.asarray(value, field.dtype).reshape(-1)
    if field.type == "u8":
        return array.tobytes().hex()
    values = _bits(array) if field.type in ("f32", "f64") else array.tolist()
    return values if field.count > 1 else values[0]


def _bits(array: np.ndarray[Any, Any]) -> list[str]:
    digits = 2 * array.itemsize
    return [f"0x{int(v):0{digits}x}" for v in np.ascontiguousarray(array).view(f"<u{array.itemsize}")]


def _span(artifact: Artifact, file_index: int, offset: int, size: int) -> dict[str, Any]:
    data = artifact.file_bytes(file_index)[offset : offset + size]
    path = artifact.manifest.files[file_index].path
    return {"path": path, "offset": offset, "bytes": size, "first": data[:16].tobytes().hex()}


def _tensor(artifact: Artifact, i: int, deep: bool) -> dict[str, Any]:
    index, row = artifact.index, artifact.index.tensors[i]
    linear = int(row["linear"])
    name = index.text(int(row["name"]))
    out = _record(records.TENSOR, row) | {
        "name_text": name,
        "linear_text": None if linear == NONE else index.text(linear),
        "found": list(artifact).index(name),
        "found_in_block": NONE if linear == NONE else i,
        "span": _span(artifact, int(row["file"]), int(row["offset"]), int(row["bytes"])),
    }
    return out | ({"sha256": hashlib.sha256(artifact.raw(name)).hexdigest()} if deep else {})


def _block_file(artifact: Artifact, kind: FileKind, block: int) -> dict[str, Any] | None:
    for i, file in enumerate(artifact.manifest.files):
        first = file.first_block
        if file.kind == kind.name.lower() and first is not None and first <= block < first + file.block_count:
            return _span(artifact, i, 0, file.bytes)
    return None


def _pair(artifact: Artifact, block: int) -> dict[str, Any]:
    pair = [t for t in artifact.index.tensors if t["kind"] == TensorKind.FFN_BASE and t["block"] == block]
    start = int(pair[0]["offset"])
    return _span(artifact, int(pair[0]["file"]), start, int(pair[-1]["offset"]) + int(pair[-1]["bytes"]) - start)


def _calibration(artifact: Artifact) -> dict[str, Any] | None:
    index = artifact.index
    if index.calibration is None:
        return None
    table = artifact.tensor(records.ACTIVATION_SCALES_NAME)
    inputs = [
        _record(records.GEMM_INPUT, row) | {"name_text": index.text(int(row["name"])), "found": i}
        for i, row in enumerate(index.inputs)
    ]
    scales = [_bits(row) for row in table.reshape(-1, len(inputs))]
    return _record(records.CALIBRATION, index.calibration) | {"gemm_inputs": inputs, "scales": scales}


def _decoder(artifact: Artifact) -> dict[str, Any] | None:
    index = artifact.index
    if index.decoder is None:
        return None

    def text(reference: int) -> str | None:
        return None if reference == NONE else index.text(reference)

    graphs = [
        _record(records.DECODER_GRAPH, row)
        | {
            "name_text": text(int(row["name"])),
            "name_in_binary_text": text(int(row["name_in_binary"])),
            "found": i,
        }
        for i, row in enumerate(index.graphs)
    ]
    ports = [_record(records.DECODER_PORT, row) | {"name_text": text(int(row["name"]))} for row in index.ports]
    binaries = [
        _record(records.DECODER_BINARY, b) | {"build_id_text": text(int(b["build_id"]))} for b in index.binaries
    ]
    return _record(records.DECODER, index.decoder) | {
        "graph_records": graphs,
        "port_records": ports,
        "binary_records": binaries,
    }


def _step(artifact: Artifact, step: int) -> dict[str, Any]:
    def ends(row: np.ndarray[Any, Any]) -> list[str]:
        return _bits(row.reshape(-1)[[0, 1, -1]])

    adaln, head = artifact.tensor(records.ADALN_NAME)[step], artifact.tensor(records.HEAD_NAME)[step]
    return _record(records.STEP, artifact.index.steps[step]) | {
        "head": ends(head),
        "adaln": [ends(adaln[block]) for block in range(len(adaln))],
    }
