"""Damaged index.bin: header, section table, and every kind of record."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hvdc.artifact import records
from hvdc.artifact.codes import Code
from hvdc.artifact.index_write import seal
from hvdc.artifact.manifest import INDEX_NAME
from hvdc.artifact.records import NONE, Expert, TensorKind
from layouts.order import HMX_FP16_2, ROW_MAJOR_ID
from tests.artifacts import REGION_CAP_BYTES
from tests.index_edit import IndexEdit, appended, with_fields
from tests.malformed.registry import (
    BIAS,
    FACTOR,
    NEWER,
    WEIGHT,
    both,
    case,
    header,
    index_case,
    raw_case,
    section,
    setter,
)  # fmt: skip

# Header and section table.

raw_case(Code.INDEX_TOO_SHORT, "empty-index", lambda data: b"")
raw_case(Code.INDEX_TOO_SHORT, "cut-in-the-header", lambda data: data[: records.HEADER.bytes - 1])
raw_case(Code.INDEX_SIZE, "cut-after-the-header", lambda data: data[: records.HEADER.bytes])
raw_case(Code.INDEX_SIZE, "cut-at-the-end", lambda data: data[:-8])
raw_case(Code.INDEX_SIZE, "bytes-behind-the-end", lambda data: data + bytes(8))
raw_case(Code.INDEX_SIZE, "huge-total", header(total_bytes=2**64 - 1))
raw_case(Code.INDEX_MAGIC, "html-page", lambda data: b"<!DOCTYPE html>" + data[15:])
raw_case(Code.INDEX_MAJOR, "major-2", header(major=2))
raw_case(Code.INDEX_MAJOR, "major-0", header(major=0))
raw_case(Code.INDEX_CHECKSUM, "flipped-bit", lambda data: data[:-1] + bytes([data[-1] ^ 1]))
raw_case(Code.INDEX_FEATURE, "unknown-feature", header(required_features=1 << 63))
raw_case(Code.INDEX_SECTION, "section-table-outside", header(section_count=0xFFFFFFFF))
raw_case(Code.INDEX_SECTION, "too-many-sections", header(section_count=records.MAX_SECTIONS + 1))
raw_case(Code.INDEX_SECTION, "section-records-too-small", header(section_record_bytes=24))
raw_case(Code.INDEX_SECTION, "section-records-misaligned", header(section_record_bytes=36))
raw_case(Code.INDEX_SECTION, "header-too-small", header(header_bytes=96))
raw_case(Code.INDEX_SECTION, "header-misaligned", header(header_bytes=108))
raw_case(Code.INDEX_SECTION, "header-behind-the-end", header(header_bytes=0xFFFFFFF8))
raw_case(Code.INDEX_SECTION, "section-overlaps-the-table", section(0, offset=0))
raw_case(Code.INDEX_SECTION, "section-count-overflows", section(2, count=0xFFFFFFFF, record_bytes=0xFFFFFFF8))
raw_case(Code.INDEX_SECTION, "section-bytes-overflow", section(1, bytes=2**64 - 8))
raw_case(Code.INDEX_SECTION, "section-twice", section(3, kind=int(records.Section.FILES)))
raw_case(Code.INDEX_SECTION, "records-too-small", section(3, count=9, record_bytes=8))
raw_case(Code.INDEX_SECTION, "records-misaligned", section(3, count=2, record_bytes=36))
raw_case(Code.INDEX_SECTION, "records-of-no-bytes", section(3, count=NONE, record_bytes=0, bytes=0))
raw_case(
    Code.INDEX_STRING, "strings-of-two-bytes", lambda data: section(4, count=_strings(data) // 2, record_bytes=2)(data)
)
raw_case(Code.INDEX_FEATURE, "unknown-required-section", section(3, kind=77))
raw_case(Code.INDEX_SECTION, "steps-missing", section(3, kind=77, flags=0))


def _strings(data: bytes) -> int:
    """Bytes of the string section, padding included."""
    return int(
        np.frombuffer(data, records.SECTION.dtype, 1, records.HEADER.bytes + 4 * records.SECTION.bytes)["bytes"][0]
    )


def _hole(data: bytes) -> bytes:
    """Eight bytes before the last section, which the table knows of."""
    row = records.HEADER.bytes + 4 * records.SECTION.bytes
    start = int(np.frombuffer(data, records.SECTION.dtype, 1, row)["offset"][0])
    out = data[:start] + bytes(8) + data[start:]
    return with_fields(with_fields(out, records.SECTION, row, {"offset": start + 8}), records.HEADER, 0,
                       {"total_bytes": len(out)})  # fmt: skip


raw_case(Code.INDEX_SECTION, "hole-between-sections", _hole)
raw_case(
    Code.INDEX_SECTION,
    "bytes-behind-the-last-section",
    lambda data: with_fields(data + bytes(8), records.HEADER, 0, {"total_bytes": len(data) + 8}),
)


@case(Code.INDEX_SECTION)
def section_padding_not_zero(root: Path) -> None:
    edit = IndexEdit.of((root / INDEX_NAME).read_bytes())
    while len(edit.strings) % 8 != 1:
        edit.text(b"")
    data = bytearray(edit.bytes())
    data[-1] = 1
    (root / INDEX_NAME).write_bytes(seal(bytes(data)))


# What a newer minor version may do, and an older reader accepts. Python also regenerates index.bin from the manifest,
# which does not know of these.


def newer(name: str, *changes: Callable[[IndexEdit], object]) -> None:
    """A case that C accepts."""
    index_case(Code.MANIFEST_INDEX, name, both(*changes), only_python=NEWER)


newer("optional-section", lambda e: e.more.append((77, b"\x01" * 24, 3, 8)), lambda e: setattr(e, "optional", {77}))
newer("empty-optional-section", lambda e: e.more.append((78, b"", 0, 0)), lambda e: setattr(e, "optional", {78}))
newer("fields-appended-to-tensors", lambda e: setattr(e, "tensors", appended(e.tensors, 16)))
newer("fields-appended-to-files", lambda e: setattr(e, "files", appended(e.files, 8)))
newer("fields-appended-to-steps", lambda e: setattr(e, "steps", appended(e.steps, 8)))
newer("fields-appended-to-geometry", lambda e: setattr(e, "geometry", appended(e.geometry, 64)))
newer("minor-9", lambda e: setattr(e, "minor", 9))

# Strings.

index_case(Code.INDEX_STRING, "no-zero-at-the-end", lambda e: e.strings.extend(b"x"))
index_case(Code.INDEX_STRING, "no-strings", lambda e: e.strings.clear())
index_case(Code.INDEX_STRING, "name-reference-outside", setter("tensors", "name", WEIGHT, 0x7FFFFFFF))
index_case(Code.INDEX_STRING, "name-reference-none", setter("tensors", "name", WEIGHT, NONE))
index_case(Code.INDEX_STRING, "path-reference-outside", setter("files", "path", 0, lambda e: len(e.strings)))
index_case(Code.INDEX_STRING, "reference-into-a-string", setter("files", "path", 0, 1))
index_case(Code.INDEX_STRING, "linear-not-text", setter("tensors", "linear", WEIGHT, lambda e: e.text(b"attn1\xff")))
index_case(Code.INDEX_STRING, "linear-reference-outside", setter("tensors", "linear", WEIGHT, NONE - 1))

# Paths.

for name, path in {
    "path-parent": b"../regions.bin",
    "path-parent-inside": b"regions/../../x",
    "path-absolute": b"/etc/passwd",
    "path-without-folder": b"block-000.bin",
    "path-two-folders": b"regions/a/block-000.bin",
    "path-backslash": b"regions\\block-000.bin",
    "path-drive": b"c:/block-000.bin",
    "path-upper-case": b"Regions/block-000.bin",
    "path-space": b"regions/block 000.bin",
    "path-not-ascii": "regions/blöck.bin".encode(),
    "path-empty": b"",
    "path-folder-only": b"regions/",
    "path-hidden": b"regions/.bin",
    "path-ends-with-dot": b"regions/block.",
    "path-two-dots": b"regions/block..bin",
    "path-too-long": b"regions/" + b"x" * (records.TEXT_LIMIT - 7),
    "path-endless": b"regions/" + b"x" * 3000,
}.items():
    index_case(Code.INDEX_PATH, name, setter("files", "path", 0, lambda e, path=path: e.text(path)))
index_case(Code.INDEX_PATH, "path-twice", setter("files", "path", -1, lambda e: e.files["path"][-2]))
index_case(
    Code.INDEX_PATH, "path-twice-in-two-strings", setter("files", "path", -1, lambda e: e.text(b"host/shared.bin"))
)

# Names.

for name, text in {
    "name-empty": b"",
    "name-slash": b"blocks/0",
    "name-starts-with-dot": b".weight",
    "name-two-dots": b"blocks..weight",
    "name-ends-with-dot": b"blocks.",
    "name-not-ascii": b"bl\xc3\xb6cks",
    "name-newline": b"blocks.0\n",
    "name-too-long": b"x" * (records.TEXT_LIMIT + 1),
}.items():
    index_case(Code.INDEX_NAME, name, setter("tensors", "name", BIAS, lambda e, text=text: e.text(text)))
index_case(
    Code.INDEX_NAME, "name-twice", setter("tensors", "name", "proj_out.weight", lambda e: e.text(b"schedule.head"))
)

# Geometry.

for field in ("layers", "width", "heads", "steps", "tokens", "text_tokens"):
    index_case(Code.INDEX_GEOMETRY, f"no-{field}".replace("_", "-"), setter("geometry", field, 0, 0))
index_case(Code.INDEX_GEOMETRY, "heads-do-not-divide", setter("geometry", "heads", 0, 3))
index_case(Code.INDEX_GEOMETRY, "rope-does-not-fill-a-head", setter("geometry", "rope_dims", 0, (30, 1, 2)))
index_case(Code.INDEX_GEOMETRY, "rope-overflows", setter("geometry", "rope_dims", 0, (NONE, 33, 0)))
index_case(Code.INDEX_GEOMETRY, "experts-without-rank", setter("geometry", "rank", 0, 0))
index_case(Code.INDEX_GEOMETRY, "rank-without-experts", setter("geometry", "experts", 0, 1))
index_case(Code.INDEX_GEOMETRY, "more-steps-than-records", setter("geometry", "steps", 0, 4))
index_case(Code.INDEX_GEOMETRY, "patch-does-not-divide", setter("geometry", "patch", 0, (1, 3, 2)))
index_case(Code.INDEX_GEOMETRY, "patch-is-zero", setter("geometry", "patch", 0, (1, 0, 2)))
index_case(Code.INDEX_GEOMETRY, "tokens-overflow", setter("geometry", "latent", 0, (1 << 31, 1 << 31, 1 << 31)))
index_case(Code.INDEX_GEOMETRY, "other-tokens", setter("geometry", "tokens", 0, 9))
index_case(Code.INDEX_GEOMETRY, "eps-nan", setter("geometry", "eps", 0, math.nan))
index_case(Code.INDEX_GEOMETRY, "eps-zero", setter("geometry", "eps", 0, 0.0))
index_case(
    Code.INDEX_GEOMETRY, "two-geometries", lambda e: setattr(e, "geometry", np.concatenate([e.geometry, e.geometry]))
)

# Files.

index_case(Code.INDEX_FILE_RECORD, "no-files", lambda e: setattr(e, "files", e.files[:0]))
index_case(Code.INDEX_FILE_RECORD, "unknown-file-kind", setter("files", "kind", 0, 9))
index_case(Code.INDEX_FILE_RECORD, "region-of-no-block", setter("files", "first_block", 0, NONE))
index_case(Code.INDEX_FILE_RECORD, "region-of-another-block", setter("files", "first_block", 0, 1))
index_case(Code.INDEX_FILE_RECORD, "region-missing", setter("geometry", "layers", 0, 2))
index_case(Code.INDEX_FILE_RECORD, "huge-layers", setter("geometry", "layers", 0, NONE))
index_case(Code.INDEX_FILE_RECORD, "adapter-beyond-the-last-block", setter("files", "block_count", 1, 2))
index_case(Code.INDEX_FILE_RECORD, "adapter-block-overflows", setter("files", "first_block", 1, NONE))
index_case(Code.INDEX_FILE_RECORD, "host-with-blocks", setter("files", "block_count", 2, 1))
index_case(Code.INDEX_FILE_RECORD, "tensors-overlap", setter("files", "first_tensor", 1, 0))
index_case(Code.INDEX_FILE_RECORD, "huge-tensor-count", setter("files", "tensor_count", 0, NONE))
index_case(Code.INDEX_FILE_RECORD, "file-without-tensors", setter("files", "tensor_count", 0, 0))
index_case(Code.INDEX_FILE_RECORD, "tensors-left-over", lambda e: setattr(e, "tensors", e.tensors.repeat(2)))
index_case(Code.INDEX_FILE_RECORD, "file-not-whole-pages", setter("files", "bytes", 0, 4095))
index_case(Code.INDEX_FILE_RECORD, "file-of-no-bytes", setter("files", "bytes", 0, 0))
index_case(Code.INDEX_FILE_RECORD, "file-of-half-the-universe", setter("files", "bytes", 2, 1 << 63))
index_case(Code.INDEX_REGION_CAP, "region-above-the-cap", setter("geometry", "region_cap_bytes", 0, 4096))
index_case(Code.INDEX_REGION_CAP, "huge-region", setter("files", "bytes", 0, REGION_CAP_BYTES + 4096))
index_case(
    Code.INDEX_FILE_RECORD, "no-pair", setter("tensors", "kind", "blocks.0.ffn.net.2.weight", TensorKind.ATTENTION_BASE)
)
index_case(Code.INDEX_FILE_RECORD, "three-for-a-pair", setter("tensors", "kind", WEIGHT, TensorKind.FFN_BASE))
index_case(
    Code.INDEX_FILE_RECORD,
    "pair-apart",
    both(
        setter("tensors", "kind", WEIGHT, TensorKind.FFN_BASE),
        setter("tensors", "kind", "blocks.0.ffn.net.0.proj.weight", TensorKind.ATTENTION_BASE),
    ),
)

# Tensors.

index_case(Code.INDEX_TENSOR_RECORD, "tensor-of-another-file", setter("tensors", "file", WEIGHT, 1))
index_case(Code.INDEX_TENSOR_RECORD, "unknown-tensor-kind", setter("tensors", "kind", WEIGHT, 8))
index_case(Code.INDEX_TENSOR_RECORD, "tensor-kind-zero", setter("tensors", "kind", WEIGHT, 0))
index_case(Code.INDEX_TENSOR_RECORD, "adapter-in-a-region", setter("tensors", "kind", WEIGHT, TensorKind.ADAPTER))
index_case(Code.INDEX_TENSOR_RECORD, "unknown-expert", setter("tensors", "expert", WEIGHT, 3))
index_case(Code.INDEX_TENSOR_RECORD, "tensor-of-another-block", setter("tensors", "block", WEIGHT, 1))
index_case(Code.INDEX_TENSOR_RECORD, "region-tensor-of-no-block", setter("tensors", "block", BIAS, NONE))
index_case(Code.INDEX_TENSOR_RECORD, "host-tensor-of-a-block", setter("tensors", "block", "proj_out.weight", 0))
index_case(
    Code.INDEX_TENSOR_RECORD,
    "name-of-another-linear",
    setter("tensors", "linear", WEIGHT, lambda e: e.text(b"attn1.to_k")),
)
index_case(Code.INDEX_DTYPE, "unknown-dtype", setter("tensors", "dtype", WEIGHT, 4))
index_case(Code.INDEX_TILE_ORDER, "unknown-tile-order", setter("tensors", "tile_order", WEIGHT, 3))
index_case(Code.INDEX_SHAPE, "tile-order-of-another-dtype", setter("tensors", "tile_order", WEIGHT, HMX_FP16_2.id))
index_case(Code.INDEX_SHAPE, "no-dimensions", setter("tensors", "dims", WEIGHT, 0))
index_case(Code.INDEX_SHAPE, "six-dimensions", setter("tensors", "dims", WEIGHT, 6))
index_case(Code.INDEX_SHAPE, "huge-dims", setter("tensors", "dims", WEIGHT, NONE))
index_case(Code.INDEX_SHAPE, "tiled-with-one-dimension", both(
    setter("tensors", "dims", WEIGHT, 1),
    setter("tensors", "shape", WEIGHT, (1024, 0, 0, 0, 0)),
    setter("tensors", "padded", WEIGHT, (1024, 0, 0, 0, 0)),
))  # fmt: skip
index_case(Code.INDEX_SHAPE, "empty-dimension", setter("tensors", "shape", WEIGHT, (0, 32, 0, 0, 0)))
index_case(Code.INDEX_SHAPE, "shape-above-padded", setter("tensors", "shape", WEIGHT, (33, 32, 0, 0, 0)))
index_case(Code.INDEX_SHAPE, "unused-dimension-set", setter("tensors", "shape", WEIGHT, (32, 32, 1, 0, 0)))
index_case(Code.INDEX_SHAPE, "padded-is-not-whole-tiles", setter("tensors", "padded", FACTOR, (16, 64, 0, 0, 0)))
index_case(Code.INDEX_SHAPE, "other-bytes", setter("tensors", "bytes", WEIGHT, 1023))
index_case(Code.INDEX_SHAPE, "shape-overflows", both(
    setter("tensors", "tile_order", WEIGHT, ROW_MAJOR_ID),
    setter("tensors", "dims", WEIGHT, 5),
    setter("tensors", "shape", WEIGHT, (1 << 16, 1 << 16, 1 << 16, 1 << 16, 1)),
    setter("tensors", "padded", WEIGHT, (1 << 16, 1 << 16, 1 << 16, 1 << 16, 1)),
    setter("tensors", "bytes", WEIGHT, 0),
))  # fmt: skip
index_case(Code.INDEX_OFFSET, "first-tensor-not-at-zero", setter("tensors", "offset", WEIGHT, 128))
index_case(Code.INDEX_OFFSET, "overlap", setter("tensors", "offset", 1, 0))
index_case(Code.INDEX_OFFSET, "hole", setter("tensors", "offset", 1, 1152))
index_case(Code.INDEX_OFFSET, "misaligned", setter("tensors", "offset", 1, 1025))
index_case(Code.INDEX_OFFSET, "offset-overflows", setter("tensors", "offset", 1, (1 << 64) - 128))
index_case(Code.INDEX_OFFSET, "beyond-the-file", both(
    setter("tensors", "shape", "proj_out.weight", (1 << 20, 32, 0, 0, 0)),
    setter("tensors", "padded", "proj_out.weight", (1 << 20, 32, 0, 0, 0)),
    setter("tensors", "bytes", "proj_out.weight", 1 << 27),
))  # fmt: skip
index_case(
    Code.INDEX_OFFSET, "empty-page-at-the-end", setter("files", "bytes", 0, lambda e: e.files["bytes"][0] + 4096)
)

# Scales, steps, totals, tables.

index_case(Code.INDEX_SCALE_LINK, "weight-without-scale", setter("tensors", "scale", WEIGHT, NONE))
index_case(Code.INDEX_SCALE_LINK, "scale-outside", setter("tensors", "scale", WEIGHT, 0x7FFFFFFF))
index_case(Code.INDEX_SCALE_LINK, "scale-is-a-weight", setter("tensors", "scale", WEIGHT, 0))
index_case(
    Code.INDEX_SCALE_LINK,
    "scale-of-another-length",
    setter("tensors", "scale", WEIGHT, lambda e: e.id("blocks.0.ffn.net.0.proj.weight_scale")),
)
index_case(
    Code.INDEX_SCALE_LINK,
    "scale-of-another-file",
    setter("tensors", "scale", FACTOR, lambda e: e.id(f"{WEIGHT}_scale")),
)
index_case(Code.INDEX_SCALE_LINK, "scale-of-a-bias", setter("tensors", "scale", BIAS, 0))
index_case(Code.INDEX_STEP_RECORD, "step-nan", setter("steps", "sigma", 0, math.nan))
index_case(Code.INDEX_STEP_RECORD, "step-infinite", setter("steps", "timestep", 0, math.inf))
index_case(Code.INDEX_STEP_RECORD, "step-of-the-shared-expert", setter("steps", "expert", 0, int(Expert.SHARED)))
index_case(Code.INDEX_STEP_RECORD, "step-ascends", both(
    setter("steps", "sigma", 0, 0.5), setter("steps", "sigma_next", 0, 0.75), setter("steps", "step_size", 0, 0.25),
))  # fmt: skip
index_case(Code.INDEX_STEP_RECORD, "step-of-another-size", setter("steps", "step_size", 1, -0.5))
index_case(Code.INDEX_STEP_RECORD, "step-below-zero", both(
    setter("steps", "sigma_next", -1, -0.5),
    setter("steps", "step_size", -1, lambda e: np.float32(-0.5) - e.steps["sigma"][-1]),
))  # fmt: skip
index_case(Code.INDEX_STEP_RECORD, "steps-do-not-join", lambda e: setattr(e, "steps", e.steps[[0, 2, 1]]))
index_case(Code.INDEX_TOTALS, "other-kind-total", lambda e: e.geometry["kind_bytes"].__setitem__((0, 0), 1))
index_case(Code.INDEX_TOTALS, "other-data-total", setter("geometry", "data_bytes", 0, 4096))
index_case(Code.INDEX_TOTALS, "kind-moved", setter("tensors", "kind", BIAS, TensorKind.BASE_SCALE))
index_case(
    Code.INDEX_SCHEDULE, "no-adaln", setter("tensors", "name", "schedule.adaln", lambda e: e.text(b"schedule.ada"))
)
index_case(
    Code.INDEX_SCHEDULE, "no-head", setter("tensors", "name", "schedule.head", lambda e: e.text(b"schedule.hat"))
)
index_case(Code.INDEX_SCHEDULE, "adaln-of-another-shape", both(
    setter("tensors", "shape", "schedule.adaln", (3, 6, 1, 32, 0)),
    setter("tensors", "padded", "schedule.adaln", (3, 6, 1, 32, 0)),
))  # fmt: skip
index_case(Code.INDEX_SCHEDULE, "head-padded", setter("tensors", "shape", "schedule.head", (3, 2, 31, 0, 0)))
