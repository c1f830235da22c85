"""``index.bin`` read with every check that the C reader makes, in the same order.

docs/FORMAT.md, "Order of checks", is the specification of `parse_index`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from hvdc.artifact import records
from hvdc.artifact.codes import Code
from hvdc.artifact.index_calibration import check_calibration
from hvdc.artifact.index_decoder import check_decoder
from hvdc.artifact.index_tables import NAME, PATH, Index, Table, is_text, refuse, string_at
from hvdc.artifact.index_write import HASH_FIELD, seal
from hvdc.artifact.records import NONE, DType, Expert, FileKind, Section, TensorKind
from layouts.order import BY_ID, ROW_MAJOR_ID
from layouts.regions import REGION_GRANULE_BYTES, TENSOR_ALIGNMENT_BYTES, align_up

EXPERTS = frozenset(Expert)


def parse_index(data: bytes) -> Index:
    """Parse and check ``index.bin``. Raises ArtifactError with the first fault in the documented order."""
    header = _parse_header(data)
    sections = dict(_sections(data, header))
    features = int(header["required_features"])
    calibrated, decodes = (bool(features & bit) for bit in (records.FEATURE_CALIBRATION, records.FEATURE_DECODER))
    for kind in Section:
        due = kind not in records.SECTION_FEATURE or bool(features & records.SECTION_FEATURE[kind])
        due = due and int(header["minor"]) >= records.SECTION_MINOR.get(kind, 0)
        if (kind in sections) != due:
            states = ("missing", "present")
            refuse(Code.INDEX_SECTION, f"section {kind.name}", states[due], states[not due])
    strings = sections[Section.STRINGS][0]
    if not strings or strings[-1] != 0 or len(strings) != sections[Section.STRINGS][1]:
        refuse(Code.INDEX_STRING, "string section", "a zero byte at its end")
    tables = {
        kind: _table(kind, *sections.get(kind, (b"", 0, record.bytes)))
        for kind, record in records.SECTION_RECORDS.items()
    }
    if len(tables[Section.GEOMETRY]) != 1:
        refuse(Code.INDEX_GEOMETRY, "geometry", "1 record", len(tables[Section.GEOMETRY]))
    if calibrated and len(tables[Section.CALIBRATION]) != 1:
        refuse(Code.INDEX_CALIBRATION, "calibration", "1 record", len(tables[Section.CALIBRATION]))
    if decodes and len(tables[Section.DECODER]) != 1:
        refuse(Code.INDEX_DECODER, "decoder", "1 record", len(tables[Section.DECODER]))
    index = Index(
        header,
        tables[Section.GEOMETRY][0],
        tables[Section.FILES],
        tables[Section.TENSORS],
        tables[Section.STEPS],
        strings,
        tables[Section.CALIBRATION][0] if calibrated else None,
        tables[Section.GEMM_INPUTS],
        tables[Section.DECODER][0] if decodes else None,
        tables[Section.DECODER_GRAPHS],
        tables[Section.DECODER_PORTS],
        tables[Section.DECODER_BINARIES],
    )
    _check_geometry(index)
    _check_files(index)
    _check_tensors(index)
    _check_unique(index)
    _check_scales(index)
    _check_steps(index)
    _check_totals(index)
    _check_schedule(index)
    check_calibration(index)
    check_decoder(index)
    return index


def _parse_header(data: bytes) -> np.void:
    if len(data) < records.HEADER.bytes:
        refuse(Code.INDEX_TOO_SHORT, "header", f"≥ {records.HEADER.bytes} bytes", len(data))
    header: np.void = np.frombuffer(data, records.HEADER.dtype, 1)[0]
    if header["magic"].tobytes() != records.MAGIC:
        refuse(Code.INDEX_MAGIC, "offset 0", records.MAGIC, header["magic"].tobytes())
    if header["major"] != records.MAJOR:
        refuse(Code.INDEX_MAJOR, "header.major", records.MAJOR, header["major"])
    if header["total_bytes"] != len(data) or len(data) > records.MAX_INDEX_BYTES:
        refuse(Code.INDEX_SIZE, "header.total_bytes", header["total_bytes"], len(data))
    if seal(data)[HASH_FIELD] != data[HASH_FIELD]:
        refuse(Code.INDEX_CHECKSUM, "header.index_sha256")
    unknown = int(header["required_features"]) & ~records.KNOWN_FEATURES
    if unknown:
        refuse(Code.INDEX_FEATURE, "header.required_features", "no unknown bits", hex(unknown))
    return header


def _sections(data: bytes, header: np.void) -> Iterator[tuple[int, tuple[bytes, int, int]]]:
    """``(kind, (bytes, count, record_bytes))`` of every known section."""
    header_bytes, stride, count = (int(header[f]) for f in ("header_bytes", "section_record_bytes", "section_count"))
    end = header_bytes + stride * count
    if (
        count > records.MAX_SECTIONS
        or header_bytes < records.HEADER.bytes
        or header_bytes % 8
        or stride < records.SECTION.bytes
        or stride % 8
        or end > len(data)
    ):
        refuse(
            Code.INDEX_SECTION,
            "section table",
            f"inside {len(data)} bytes",
            f"{count} × {stride} at {header_bytes}",
        )
    seen = set()
    for i in range(count):
        row = np.frombuffer(data, records.SECTION.dtype, 1, header_bytes + stride * i)[0]
        kind, offset, size, records_n, record_bytes = (
            int(row[f]) for f in ("kind", "offset", "bytes", "count", "record_bytes")
        )
        if offset != end or size % 8 or size > len(data) - offset or align_up(records_n * record_bytes, 8) != size:
            refuse(
                Code.INDEX_SECTION,
                f"section {i}",
                f"at {end}",
                f"{size} bytes at {offset}, {records_n} × {record_bytes}",
            )
        end = offset + size
        if kind in seen:
            refuse(Code.INDEX_SECTION, f"section {i}", "one of its kind", f"kind {kind} again")
        seen.add(kind)
        if any(data[offset + records_n * record_bytes : end]):
            refuse(Code.INDEX_SECTION, f"section {i}", "zero padding")
        if kind in list(Section):
            yield kind, (data[offset : offset + records_n * record_bytes], records_n, record_bytes)
        elif int(row["flags"]) & records.SECTION_REQUIRED:
            refuse(Code.INDEX_FEATURE, f"section {i}", "a known kind", kind)
    if end != len(data):
        refuse(Code.INDEX_SECTION, "end of the last section", len(data), end)


def _table(kind: Section, data: bytes, count: int, record_bytes: int) -> Table:
    """Records may be longer than known: a newer minor version appended fields."""
    record = records.SECTION_RECORDS[kind]
    if record_bytes < record.bytes or record_bytes % 8:
        refuse(Code.INDEX_SECTION, f"section {kind.name}", f"records of ≥ {record.bytes} bytes", record_bytes)
    raw = np.frombuffer(data, np.uint8).reshape(count, record_bytes)
    return np.ascontiguousarray(raw[:, : record.bytes]).view(record.dtype).reshape(count)


def _check_geometry(index: Index) -> None:
    g = index.geometry
    positive = (
        "layers", "width", "ffn_width", "heads", "text_width", "text_tokens", "in_channels", "out_channels", "steps",
        "frames", "height", "video_width", "tokens",
    )  # fmt: skip
    latent, patch = [[int(v) for v in g[f]] for f in ("latent", "patch")]
    possible = (
        all(int(g[f]) > 0 for f in positive)
        and all(v > 0 for v in (*latent, *patch))
        and int(g["width"]) % int(g["heads"]) == 0
        and sum(int(v) for v in g["rope_dims"]) == int(g["width"]) // int(g["heads"])
        and int(g["experts"]) == (2 if g["rank"] else 1)
        and int(g["steps"]) == len(index.steps)
        and all(l_ % p == 0 for l_, p in zip(latent, patch, strict=True))
        and int(g["tokens"]) == math.prod(l_ // p for l_, p in zip(latent, patch, strict=True))
        and math.isfinite(g["eps"])
        and g["eps"] > 0
    )
    if not possible:
        refuse(Code.INDEX_GEOMETRY, "geometry")


def _check_files(index: Index) -> None:
    layers, first = int(index.geometry["layers"]), 0
    regions = calibrations = 0
    calibrated = index.calibration is not None
    if len(index.files) == 0:
        refuse(Code.INDEX_FILE_RECORD, "files", "at least 1", 0)
    for i, f in enumerate(index.files):
        place = f"file {i}"
        path = string_at(index, f["path"], place)
        if not is_text(path, PATH):
            refuse(Code.INDEX_PATH, place, "a canonical path", path)
        kind, block, blocks = (int(f[name]) for name in ("kind", "first_block", "block_count"))
        if kind == FileKind.REGION:  # region i is block i
            in_model = block == regions and blocks == 1 and block < layers
            regions += 1
        elif kind == FileKind.ADAPTER:
            in_model = 0 < blocks <= layers and block <= layers - blocks
        else:
            in_model = block == NONE and blocks == 0
        if kind == FileKind.CALIBRATION:  # without the feature bit the kind is unknown, as it is to version 1.0
            in_model = in_model and calibrated
            calibrations += 1
        elif kind == FileKind.DECODER:  # as unknown without its bit
            in_model = in_model and index.decoder is not None
        if kind not in list(FileKind) or not in_model:
            refuse(
                Code.INDEX_FILE_RECORD,
                place,
                f"a known kind, its blocks of {layers}",
                f"kind {kind}, {blocks} at {block}",
            )
        count = int(f["tensor_count"])
        lone = kind != FileKind.DECODER or count == 1
        if int(f["first_tensor"]) != first or not 1 <= count <= len(index.tensors) - first or not lone:
            refuse(Code.INDEX_FILE_RECORD, place, f"tensors from {first}", f"{count} from {f['first_tensor']}")
        first += count
        size = int(f["bytes"])
        granule = _granule(f)
        if size == 0 or size % granule or size >= 2**63:
            refuse(Code.INDEX_FILE_RECORD, place, f"a multiple of {granule} bytes", size)
        if kind in (FileKind.REGION, FileKind.ADAPTER) and size > int(index.geometry["region_cap_bytes"]):
            refuse(Code.INDEX_REGION_CAP, place, f"≤ {index.geometry['region_cap_bytes']} bytes", size)
    if first != len(index.tensors):
        refuse(Code.INDEX_FILE_RECORD, "files", f"{len(index.tensors)} tensors in all", first)
    if regions != layers:
        refuse(Code.INDEX_FILE_RECORD, "files", f"{layers} regions", regions)
    if calibrations != calibrated:
        refuse(Code.INDEX_FILE_RECORD, "files", f"{int(calibrated)} of kind CALIBRATION", calibrations)


def _granule(file: np.void) -> int:
    """What the size of a file is a multiple of. An opaque one ends with its last byte: others read it as it is."""
    return 1 if int(file["kind"]) == FileKind.DECODER else REGION_GRANULE_BYTES


def _check_tensors(index: Index) -> None:
    for file_index, f in enumerate(index.files):
        end = 0
        for i in range(int(f["first_tensor"]), int(f["first_tensor"]) + int(f["tensor_count"])):
            t, place = index.tensors[i], f"tensor {i}"
            name = string_at(index, t["name"], place)
            if not is_text(name, NAME):
                refuse(Code.INDEX_NAME, place, "a canonical name", name)
            linear = None if int(t["linear"]) == NONE else string_at(index, t["linear"], place)
            if linear is not None and not is_text(linear, NAME):
                refuse(Code.INDEX_STRING, place, "a canonical linear", linear)
            _check_tensor_record(index, t, file_index, place)
            if linear is not None and not name.startswith(b"blocks.%d.%s." % (t["block"], linear)):
                refuse(Code.INDEX_TENSOR_RECORD, place, f"the name of {linear!r} in block {t['block']}", name)
            offset, size = int(t["offset"]), int(t["bytes"])
            if (
                offset != align_up(end, TENSOR_ALIGNMENT_BYTES)
                or offset > int(f["bytes"])
                or size > int(f["bytes"]) - offset
            ):
                refuse(
                    Code.INDEX_OFFSET,
                    place,
                    f"at {align_up(end, TENSOR_ALIGNMENT_BYTES)}",
                    f"{size} bytes at {offset}",
                )
            end = offset + size
        due = align_up(end, _granule(f))
        if due != int(f["bytes"]):
            refuse(Code.INDEX_OFFSET, f"end of file {file_index}", f["bytes"], due)
        if int(f["kind"]) == FileKind.REGION:
            _check_pair(index, file_index)


def _check_pair(index: Index, file_index: int) -> None:
    """A region holds two feed-forward weights one behind the other, so that they can be staged as one span."""
    f = index.files[file_index]
    start = int(f["first_tensor"])
    kinds = index.tensors["kind"][start : start + int(f["tensor_count"])]
    ids = [int(i) for i in np.flatnonzero(kinds == TensorKind.FFN_BASE)]
    if len(ids) != 2 or ids[1] != ids[0] + 1:
        refuse(Code.INDEX_FILE_RECORD, f"file {file_index}", "a contiguous feed-forward pair", f"{len(ids)} weights")


def _check_unique(index: Index) -> None:
    for code, table, field in ((Code.INDEX_PATH, index.files, "path"), (Code.INDEX_NAME, index.tensors, "name")):
        texts = [string_at(index, reference, field) for reference in table[field]]
        if len(set(texts)) != len(texts):
            refuse(code, f"every {field}", "different ones", f"{len(texts) - len(set(texts))} again")


def _check_tensor_record(index: Index, t: np.void, file_index: int, place: str) -> None:
    f, block = index.files[file_index], int(t["block"])
    held = records.FILE_HOLDS[FileKind(int(f["kind"]))]
    if int(t["file"]) != file_index or int(t["kind"]) not in held or int(t["expert"]) not in EXPERTS:
        refuse(Code.INDEX_TENSOR_RECORD, place, f"file {file_index}, a kind that it holds, a known expert")
    opaque = int(f["kind"]) == FileKind.DECODER
    if opaque and (int(t["expert"]) != Expert.SHARED or int(t["linear"]) != NONE):
        refuse(Code.INDEX_TENSOR_RECORD, place, "no expert's and no linear's", f"expert {t['expert']}")
    first, blocks = int(f["first_block"]), int(f["block_count"])
    if not (first <= block < first + blocks if blocks else block == NONE):
        refuse(Code.INDEX_TENSOR_RECORD, place, f"a block of the {blocks} from {first}", block)
    if int(t["dtype"]) not in records.DTYPE_BYTES:
        refuse(Code.INDEX_DTYPE, place, "a known dtype", t["dtype"])
    if (int(t["dtype"]) == DType.UINT8) != opaque:
        refuse(Code.INDEX_DTYPE, place, "UINT8 in a file of kind DECODER and nowhere else", t["dtype"])
    tile_order = int(t["tile_order"])
    if tile_order != ROW_MAJOR_ID and tile_order not in BY_ID:
        refuse(Code.INDEX_TILE_ORDER, place, "a known tile order", tile_order)
    dims = int(t["dims"])
    shape, padded = t["shape"].tolist(), t["padded"].tolist()
    good = 1 <= dims <= records.MAX_DIMS
    good = good and all(0 < s <= p for s, p in zip(shape[:dims], padded[:dims], strict=True))
    good = good and not any(shape[dims:]) and not any(padded[dims:])
    itemsize = records.DTYPE_BYTES[DType(int(t["dtype"]))]
    good = good and math.prod(padded[:dims]) * itemsize == int(t["bytes"])
    if good and tile_order != ROW_MAJOR_ID:
        order = BY_ID[tile_order]
        tiles = [align_up(s, e) for s, e in zip(shape[:2], (order.col_count, order.row_count), strict=True)]
        good = dims == 2 and order.element_bytes == itemsize and padded[:2] == tiles
    if opaque:
        good = good and dims == 1 and tile_order == ROW_MAJOR_ID and shape == padded
    if not good:
        refuse(Code.INDEX_SHAPE, place, f"{t['bytes']} bytes", f"shape {shape[:dims]}, padded {padded[:dims]}")


def _check_scales(index: Index) -> None:
    """An INT8 tensor has one FP32 scale per padded output column; nothing else has a scale."""
    columns = (index.tensors["scale"].tolist(), index.tensors["dtype"].tolist())
    for i, (link, dtype) in enumerate(zip(*columns, strict=True)):
        if dtype != DType.INT8:
            if link != NONE:
                refuse(Code.INDEX_SCALE_LINK, f"tensor {i}", "no scale", link)
            continue
        if link >= len(index.tensors):
            refuse(Code.INDEX_SCALE_LINK, f"tensor {i}", "the id of a scale", link)
        t, s = index.tensors[i], index.tensors[link]
        if (
            int(s["dtype"]) != DType.FLOAT32
            or int(s["dims"]) != 1
            or s["shape"][0] != t["shape"][0]
            or s["padded"][0] != t["padded"][0]
            or s["file"] != t["file"]
        ):
            refuse(
                Code.INDEX_SCALE_LINK,
                f"tensor {i}",
                f"{t['padded'][0]} FP32 scales in the same file",
                f"tensor {link}",
            )


def _check_steps(index: Index) -> None:
    for i, s in enumerate(index.steps):
        values = [float(s[f]) for f in ("timestep", "sigma", "sigma_next", "step_size")]
        if not all(map(math.isfinite, values)) or int(s["expert"]) >= int(index.geometry["experts"]):
            refuse(Code.INDEX_STEP_RECORD, f"step {i}", "finite values, a known expert", values)
        with np.errstate(over="ignore"):
            difference = np.subtract(s["sigma_next"], s["sigma"], dtype=np.float32)
        if not 0 <= values[2] < values[1] or s["step_size"] != difference:
            refuse(Code.INDEX_STEP_RECORD, f"step {i}", f"descending to ≥ 0 by {difference}", values)
        if i and float(index.steps[i - 1]["sigma_next"]) != values[1]:
            refuse(Code.INDEX_STEP_RECORD, f"step {i}", f"sigma {index.steps[i - 1]['sigma_next']}", values[1])


def _check_totals(index: Index) -> None:
    recorded = [int(size) for size in index.geometry["kind_bytes"]]
    recorded += [0 if record is None else int(record["bytes"]) for record in (index.calibration, index.decoder)]
    totals: Counter[int] = Counter()
    for number, size in zip(index.tensors["kind"].tolist(), index.tensors["bytes"].tolist(), strict=True):
        totals[number] += size
    for kind, size in zip(TensorKind, recorded, strict=True):
        if totals[kind] != size:
            refuse(Code.INDEX_TOTALS, f"kind {kind.name}", totals[kind], size)
    total = sum(int(f["bytes"]) for f in index.files)
    if total != int(index.geometry["data_bytes"]):
        refuse(Code.INDEX_TOTALS, "data_bytes", total, index.geometry["data_bytes"])


def _check_schedule(index: Index) -> None:
    """The two tables that a step reads rows of are there, FP32, unpadded, of the geometry's shape."""
    g = index.geometry
    steps, layers, width = (int(g[f]) for f in ("steps", "layers", "width"))
    names = {index.text(int(t["name"])): t for t in index.tensors if int(t["kind"]) == TensorKind.SCHEDULE}
    for name, shape in ((records.ADALN_NAME, [steps, layers, 6, width]), (records.HEAD_NAME, [steps, 2, width])):
        t = names.get(name)
        padded = shape + [0] * (records.MAX_DIMS - len(shape))
        if (
            t is None
            or int(t["dtype"]) != DType.FLOAT32
            or t["shape"].tolist() != padded
            or t["padded"].tolist() != padded
        ):
            refuse(Code.INDEX_SCHEDULE, name, f"FP32 {shape}", "missing" if t is None else t["shape"].tolist())
