"""Damaged directories, data files and manifests."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np

from hvdc.artifact.codes import Code
from hvdc.artifact.manifest import INDEX_NAME, MANIFEST_NAME
from tests.artifacts import replace_data
from tests.malformed.registry import (
    ADALN,
    BIAS,
    FACTOR,
    REGION,
    ROPE,
    SCHEDULE,
    WEIGHT,
    case,
    manifest_case,
    put,
    tensor_case,
)  # fmt: skip

# Files of the directory.


@case(Code.OK)
def sound(root: Path) -> None:
    pass


@case(Code.MISSING_FILE)
def no_index(root: Path) -> None:
    (root / INDEX_NAME).unlink()


@case(Code.MISSING_FILE)
def no_manifest(root: Path) -> None:
    (root / MANIFEST_NAME).unlink()


@case(Code.MISSING_FILE)
def no_region(root: Path) -> None:
    (root / REGION).unlink()


@case(Code.IO)
def index_is_a_folder(root: Path) -> None:
    (root / INDEX_NAME).unlink()
    (root / INDEX_NAME).mkdir()
    (root / INDEX_NAME / "x").write_bytes(b"x")


@case(Code.IO)
def region_is_a_folder(root: Path) -> None:
    (root / REGION).unlink()
    (root / REGION).mkdir()
    (root / REGION / "x").write_bytes(b"x")


@case(Code.IO)
def folder_is_a_file(root: Path) -> None:
    shutil.rmtree(root / "schedule")
    (root / "schedule").write_bytes(b"x")


@case(Code.FILE_SIZE)
def region_cut_short(root: Path) -> None:
    (root / REGION).write_bytes((root / REGION).read_bytes()[:-4096])


@case(Code.FILE_SIZE)
def region_too_long(root: Path) -> None:
    (root / REGION).write_bytes((root / REGION).read_bytes() + bytes(1))


@case(Code.EXTRA_FILE)
def extra_file(root: Path) -> None:
    (root / "regions" / "block-001.bin").write_bytes(b"x")


@case(Code.EXTRA_FILE)
def extra_folder(root: Path) -> None:
    (root / "libraries").mkdir()
    (root / "libraries" / "libqnn.so").write_bytes(b"x")


@case(Code.EXTRA_FILE)
def a_runtime_that_is_no_folder(root: Path) -> None:
    (root / "runtime").write_bytes(b"x")


@case(Code.MANIFEST_HASH)
def manifest_edited(root: Path) -> None:
    text = (root / MANIFEST_NAME).read_bytes()
    (root / MANIFEST_NAME).write_bytes(text.replace(b'"draft": true', b'"draft":  true'))


# Data files. Where no hash is the point, the hashes are right.


@case(Code.DATA_HASH)
def flipped_bit_in_a_weight(root: Path) -> None:
    data = bytearray((root / REGION).read_bytes())
    data[0] ^= 1
    (root / REGION).write_bytes(data)


@case(Code.DATA_HASH)
def flipped_bit_in_padding(root: Path) -> None:
    data = bytearray((root / SCHEDULE).read_bytes())
    data[-1] ^= 1
    (root / SCHEDULE).write_bytes(data)


@case(Code.DATA_PADDING)
def padding_at_the_end_of_a_file(root: Path) -> None:
    data = bytearray((root / SCHEDULE).read_bytes())
    data[-1] = 1
    replace_data(root, SCHEDULE, bytes(data))


@case(Code.DATA_PADDING)
def padding_between_tensors(root: Path) -> None:
    data = bytearray((root / SCHEDULE).read_bytes())
    data[-4096 + 2304 + 768 + 100] = 1  # ROPE tables are shorter than their alignment
    replace_data(root, SCHEDULE, bytes(data))


f32, f64 = np.float32, np.float64
tensor_case(Code.DATA_PADDING, "padding-row-of-a-tile", FACTOR, lambda part, t: put(part, 4 * 16, b"\x01"))
tensor_case(Code.DATA_PADDING, "padding-column-of-a-tile", "blocks.0.attn1.to_q.lora_B.weight",
            lambda part, t: put(part, 128 * 4, b"\x01"))  # fmt: skip
tensor_case(Code.DATA_PADDING, "minus-128-in-padding", FACTOR, lambda part, t: put(part, 4 * 31, b"\x80"))
tensor_case(Code.DATA_PADDING, "bias-padding", BIAS, lambda part, t: put(part, -4, f32(1).tobytes()))
tensor_case(Code.DATA_PADDING, "bias-padding-minus-zero", BIAS, lambda part, t: put(part, 4 * 40, f32(-0.0).tobytes()))
for where, element in {"first": (2, 0, 0), "middle": (1, 3, 4), "last": (1, 2, 5), "every": (2, 3, 5)}.items():
    at = 4 * int(np.ravel_multi_index(element, (3, 4, 6)))
    tensor_case(Code.DATA_PADDING, f"padding-of-the-{where}-dimension", "padded_everywhere",
                lambda part, t, at=at: put(part, at, f32(1).tobytes()))  # fmt: skip
tensor_case(Code.DATA_PADDING, "scale-padding-zero", f"{FACTOR}_scale", lambda part, t: put(part, 4 * 16, bytes(4)))
tensor_case(Code.DATA_SCALE, "scale-nan", f"{WEIGHT}_scale", lambda part, t: put(part, 0, f32(np.nan).tobytes()))
tensor_case(Code.DATA_SCALE, "scale-infinite", f"{WEIGHT}_scale", lambda part, t: put(part, 124, f32(np.inf).tobytes()))
tensor_case(Code.DATA_SCALE, "scale-zero", f"{FACTOR}_scale", lambda part, t: put(part, 4, bytes(4)))
tensor_case(Code.DATA_SCALE, "scale-negative", f"{FACTOR}_scale", lambda part, t: put(part, 4, f32(-1e-3).tobytes()))
tensor_case(Code.DATA_MINUS_128, "minus-128", WEIGHT, lambda part, t: put(part, 1023, b"\x80"))
tensor_case(Code.DATA_NOT_FINITE, "bias-nan", BIAS, lambda part, t: put(part, 0, f32(np.nan).tobytes()))
tensor_case(Code.DATA_NOT_FINITE, "adaln-infinite", ADALN, lambda part, t: put(part, 0, f32(-np.inf).tobytes()))
tensor_case(Code.DATA_NOT_FINITE, "rope-nan", ROPE, lambda part, t: put(part, 8, f64(np.nan).tobytes()))

# Manifests whose hash index.bin holds: only Python looks inside.

manifest_case(Code.MANIFEST_JSON, "manifest-cut-short", lambda text: text[:-2])
manifest_case(Code.MANIFEST_JSON, "manifest-not-utf8", lambda text: text.replace(b'"none"', b'"n\xffne"', 1))
manifest_case(
    Code.MANIFEST_JSON, "manifest-key-twice", lambda text: text.replace(b'"major": 1', b'"major": 1, "major": 1')
)
manifest_case(Code.MANIFEST_JSON, "manifest-endless-nesting", lambda text: b"[" * 200_00 + b"]" * 200_00)
manifest_case(
    Code.MANIFEST_SCHEMA, "manifest-unknown-key", lambda text: text.replace(b'"draft"', b'"final": 1, "draft"')
)
manifest_case(
    Code.MANIFEST_SCHEMA, "manifest-number-as-text", lambda text: text.replace(b'"rank": 16', b'"rank": "16"')
)
manifest_case(Code.MANIFEST_SCHEMA, "manifest-nan", lambda text: text.replace(b'"eps": 1e-06', b'"eps": NaN'))
manifest_case(Code.MANIFEST_SCHEMA, "manifest-newer-minor", lambda text: text.replace(b'"minor": 0', b'"minor": 9'))
manifest_case(Code.MANIFEST_SCHEMA, "manifest-path-escape",
              lambda text: text.replace(b'"host/shared.bin"', b'"../shared.bin"'))  # fmt: skip
manifest_case(Code.MANIFEST_SCHEMA, "manifest-scale-lost",
              lambda text: text.replace(b'"name": "blocks.0.attn1.to_q.weight_scale"', b'"name": "lost"'))  # fmt: skip
manifest_case(
    Code.MANIFEST_SCHEMA,
    "manifest-identity",
    lambda text: re.sub(rb'("model_sha256": ")(.)', lambda m: m[1] + (b"1" if m[2] == b"0" else b"0"), text),
)
manifest_case(
    Code.MANIFEST_INDEX,
    "manifest-of-another-step",
    lambda text: text.replace(b'"timestep": 949.0', b'"timestep": 950.0'),
)
manifest_case(
    Code.MANIFEST_INDEX, "manifest-of-another-height", lambda text: text.replace(b'"height": 32', b'"height": 48')
)
