"""Damaged calibration: its sections of index.bin, its table, its entry in the manifest."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from hvdc.artifact import records
from hvdc.artifact.codes import Code
from hvdc.artifact.records import NONE, CalibrationMode, FileKind
from layouts.order import HMX_INT8_K4
from tests.artifact_blobs import SITE
from tests.index_edit import appended
from tests.malformed.registry import NEWER, both, put, replaced, setter, without
from tests.malformed.registry import index_case as any_index_case
from tests.malformed.registry import manifest_case as any_manifest_case
from tests.malformed.registry import tensor_case as any_tensor_case

CALIBRATED = "base-calibrated"
TABLE = records.ACTIVATION_SCALES_NAME
FACTORS = f"{records.SMOOTHING_PREFIX}{SITE}"

index_case = partial(any_index_case, base=CALIBRATED)
tensor_case = partial(any_tensor_case, base=CALIBRATED)
manifest_case = partial(any_manifest_case, base=CALIBRATED)

index_case(Code.OK, "sound-calibrated", lambda e: None)

# Sections, the feature bit and the file belong together.

index_case(Code.INDEX_SECTION, "calibration-without-its-feature", without("features"))
index_case(Code.INDEX_SECTION, "calibration-section-missing", without("calibration"))
index_case(Code.INDEX_SECTION, "gemm-inputs-missing", without("inputs"))
index_case(Code.INDEX_FILE_RECORD, "calibration-file-of-1.0", without("features", "calibration", "inputs"))
any_index_case(Code.INDEX_SECTION, "calibration-feature-without-sections", lambda e: setattr(e, "features", 1))
index_case(Code.INDEX_FEATURE, "calibration-and-an-unknown-feature", lambda e: setattr(e, "features", 5))
index_case(Code.INDEX_FILE_RECORD, "calibration-file-missing", both(
    setter("files", "kind", -1, int(FileKind.SCHEDULE)),
    lambda e: e.tensors["kind"].__setitem__(slice(e.id(TABLE), None), 7),
))  # fmt: skip
index_case(Code.INDEX_FILE_RECORD, "two-calibration-files", both(
    setter("files", "kind", -2, int(FileKind.CALIBRATION)),
    lambda e: e.tensors["kind"].__setitem__(slice(e.id("schedule.adaln"), None), 8),
))  # fmt: skip
index_case(Code.INDEX_FILE_RECORD, "calibration-file-of-a-block", both(
    setter("files", "first_block", -1, 0), setter("files", "block_count", -1, 1),
))  # fmt: skip
index_case(Code.INDEX_TENSOR_RECORD, "calibration-tensor-of-another-kind", setter("tensors", "kind", TABLE, 7))
index_case(Code.INDEX_TOTALS, "other-calibration-total", setter("calibration", "bytes", 0, 4))

# The record.

index_case(Code.INDEX_CALIBRATION, "two-calibrations", lambda e: setattr(e, "calibration", e.calibration.repeat(2)))
index_case(Code.INDEX_CALIBRATION, "no-calibration", lambda e: setattr(e, "calibration", e.calibration[:0]))
index_case(Code.INDEX_CALIBRATION, "more-inputs-than-records", setter("calibration", "inputs", 0, 4))
index_case(Code.INDEX_CALIBRATION, "no-inputs", both(
    setter("calibration", "inputs", 0, 0), lambda e: setattr(e, "inputs", e.inputs[:0]),
))  # fmt: skip
index_case(Code.INDEX_CALIBRATION, "too-many-inputs", both(
    setter("calibration", "inputs", 0, records.MAX_GEMM_INPUTS + 1),
    lambda e: setattr(e, "inputs", e.inputs[[0] * (records.MAX_GEMM_INPUTS + 1)]),
))  # fmt: skip
index_case(Code.INDEX_CALIBRATION, "unknown-calibration-mode", setter("calibration", "mode", 0, 9))
index_case(Code.INDEX_CALIBRATION, "percentile-of-another-mode", setter("calibration", "mode", 0, CalibrationMode.MSE))
for name, value in {"nan": math.nan, "zero": 0.0, "above-100": 100.5, "infinite": math.inf}.items():
    index_case(Code.INDEX_CALIBRATION, f"percentile-{name}", setter("calibration", "percentile", 0, value))
for field in ("frames", "height", "video_width"):
    name = f"calibrated-at-no-{field}".replace("_", "-")
    index_case(Code.INDEX_CALIBRATION, name, setter("calibration", field, 0, 0))
index_case(Code.INDEX_CALIBRATION, "own-geometry-said-of-another", setter("calibration", "flags", 0, 0))
index_case(Code.INDEX_CALIBRATION, "other-geometry-said-of-its-own", setter("calibration", "video_width", 0, 32))

# GEMM inputs.

index_case(Code.INDEX_STRING, "input-name-outside", setter("inputs", "name", 0, NONE))
index_case(Code.INDEX_STRING, "input-name-not-canonical", setter("inputs", "name", 1, lambda e: e.text(b"attn1 input")))
index_case(
    Code.INDEX_STRING,
    "input-name-too-long",
    setter("inputs", "name", 1, lambda e: e.text(b"x" * (records.TEXT_LIMIT + 1))),
)
index_case(Code.INDEX_CALIBRATION, "input-twice", setter("inputs", "name", 1, lambda e: e.text(b"attn1.input")))
index_case(Code.INDEX_CALIBRATION, "input-per-zero", setter("inputs", "per", 0, 0))
index_case(Code.INDEX_CALIBRATION, "input-per-unknown", setter("inputs", "per", 0, 3))
index_case(Code.INDEX_CALIBRATION, "input-of-no-expert", setter("inputs", "experts", 2, 0))
index_case(Code.INDEX_CALIBRATION, "input-of-an-unknown-expert", setter("inputs", "experts", 2, 4))

# The table and the factors.

index_case(Code.INDEX_CALIBRATION, "table-outside", setter("calibration", "table", 0, NONE))
index_case(Code.INDEX_CALIBRATION, "table-of-another-kind", setter("calibration", "table", 0, 0))
index_case(Code.INDEX_CALIBRATION, "table-is-a-smoothing", setter("calibration", "table", 0, lambda e: e.id(FACTORS)))
index_case(
    Code.INDEX_CALIBRATION,
    "table-of-another-name",
    setter("tensors", "name", TABLE, lambda e: e.text(b"calibration.x")),
)
index_case(Code.INDEX_CALIBRATION, "table-transposed", both(
    setter("tensors", "shape", TABLE, (1, 3, 3, 0, 0)), setter("tensors", "padded", TABLE, (1, 3, 3, 0, 0)),
))  # fmt: skip
index_case(Code.INDEX_CALIBRATION, "table-padded", setter("tensors", "shape", TABLE, (3, 1, 2, 0, 0)))
index_case(Code.INDEX_CALIBRATION, "fewer-inputs-than-columns", both(
    setter("calibration", "inputs", 0, 2), lambda e: setattr(e, "inputs", e.inputs[:2]),
))  # fmt: skip
index_case(Code.INDEX_CALIBRATION, "table-of-an-expert", setter("tensors", "expert", TABLE, 1))
index_case(Code.INDEX_CALIBRATION, "table-of-doubles", both(
    setter("tensors", "dtype", TABLE, 3),
    setter("tensors", "bytes", TABLE, 72),
    setter("geometry", "kind_bytes", 0, lambda e: e.geometry["kind_bytes"][0]),
    lambda e: e.calibration["bytes"].__setitem__(0, e.calibration["bytes"][0] + 36),
))  # fmt: skip
index_case(Code.INDEX_CALIBRATION, "more-smoothed-sites", setter("calibration", "smoothed_sites", 0, 2))
index_case(Code.INDEX_CALIBRATION, "smoothed-sites-overflow", setter("calibration", "smoothed_sites", 0, NONE))
index_case(
    Code.INDEX_CALIBRATION, "smoothing-of-another-name",
    setter("tensors", "name", FACTORS, lambda e: e.text(b"calibration.smoothed")),
)  # fmt: skip
index_case(Code.INDEX_CALIBRATION, "smoothing-of-more-blocks", both(
    setter("tensors", "shape", FACTORS, (2, 20, 0, 0, 0)), setter("tensors", "padded", FACTORS, (2, 20, 0, 0, 0)),
))  # fmt: skip
index_case(
    Code.INDEX_SHAPE, "smoothing-in-tiles", setter("tensors", "tile_order", FACTORS, HMX_INT8_K4.id)
)  # no order of four-byte elements exists
index_case(Code.INDEX_SECTION, "calibration-record-too-small", lambda e: setattr(
    e, "calibration", np.frombuffer(e.calibration.tobytes()[:40], np.dtype((np.void, 40))),
))  # fmt: skip
for table in ("calibration", "inputs"):
    index_case(
        Code.MANIFEST_INDEX, f"fields-appended-to-{table}",
        lambda e, table=table: setattr(e, table, appended(getattr(e, table), 8)), only_python=NEWER,
    )  # fmt: skip

# Values. Steps are semantic, detail, detail; inputs are of both, of both per expert, of the detail expert.

f32 = np.float32
for name, value, code in (
    ("nan", np.nan, Code.DATA_NOT_FINITE),
    ("infinite", np.inf, Code.DATA_NOT_FINITE),
    ("zero", 0.0, Code.DATA_CALIBRATION),
    ("negative", -0.5, Code.DATA_CALIBRATION),
    ("subnormal", 2.0**-127, Code.DATA_CALIBRATION),
):
    for kind, tensor in (("activation-scale", TABLE), ("smoothing-factor", FACTORS)):
        tensor_case(code, f"{kind}-{name}", tensor, lambda part, t, value=value: put(part, 0, f32(value).tobytes()))
for name, value in {"absent-scale": 0.25, "absent-scale-minus-zero": -0.0}.items():
    tensor_case(Code.DATA_CALIBRATION, name, TABLE, lambda part, t, value=value: put(part, 4 * 2, f32(value).tobytes()))
tensor_case(Code.DATA_CALIBRATION, "scale-not-of-its-expert", TABLE, lambda part, t: put(part, 4 * 7, f32(1).tobytes()))
tensor_case(Code.OK, "scale-of-a-step", TABLE, lambda part, t: put(part, 4 * 6, f32(1).tobytes()))
tensor_case(Code.OK, "smallest-scale", TABLE, lambda part, t: put(part, 4 * 6, f32(2.0**-126).tobytes()))

# The manifest's entry.

manifest_case(Code.MANIFEST_SCHEMA, "calibration-in-version-1.0", replaced('"minor": 1', '"minor": 0'))
manifest_case(Code.MANIFEST_SCHEMA, "calibration-mode-unknown", replaced('"mode": "percentile"', '"mode": "magic"'))
manifest_case(Code.MANIFEST_SCHEMA, "calibration-mode-changed", replaced('"mode": "percentile"', '"mode": "mse"'))
manifest_case(Code.MANIFEST_SCHEMA, "calibration-percentile-lost", replaced('"percentile": 99.9', '"percentile": null'))
manifest_case(
    Code.MANIFEST_SCHEMA, "calibration-geometry-denied", replaced('"other_geometry": true', '"other_geometry": false')
)
manifest_case(Code.MANIFEST_SCHEMA, "calibration-input-twice", replaced('"attn2.text"', '"attn1.input"'))
manifest_case(Code.MANIFEST_SCHEMA, "calibration-experts-twice", replaced('["detail"]}', '["detail", "detail"]}'))
manifest_case(Code.MANIFEST_SCHEMA, "calibration-experts-out-of-order", replaced(
    '"experts": ["semantic", "detail"]}', '"experts": ["detail", "semantic"]}'
))  # fmt: skip
manifest_case(Code.MANIFEST_SCHEMA, "calibration-site-renamed", replaced(f'"sites": ["{SITE}"]', '"sites": ["attn1"]'))
manifest_case(Code.MANIFEST_SCHEMA, "calibration-table-renamed", replaced(f'"{TABLE}"', '"calibration.scales"'))
manifest_case(
    Code.MANIFEST_SCHEMA, "calibration-table-of-another-shape", replaced('"shape": [3, 1, 3]', '"shape": [1, 3, 3]')
)
manifest_case(Code.MANIFEST_INDEX, "calibration-input-of-another-name", replaced('"attn2.text"', '"attn2.other"'))


def without_entry(text: bytes) -> bytes:
    """The manifest with its calibration cut out, the tensors staying."""
    start = text.index(b'  "calibration": {')
    end = text.index(b'  "model_sha256"')
    return text[:start] + b'  "calibration": null,\n' + text[end:]


manifest_case(Code.MANIFEST_SCHEMA, "calibration-entry-lost", without_entry)
