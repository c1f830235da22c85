"""A damaged decoder: its files, its sections of index.bin, its entry in the manifest."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hvdc.artifact import records
from hvdc.artifact.codes import Code
from hvdc.artifact.decoder_records import GRAPH_LIMIT, MAX_DECODER_GRAPHS, MAX_DECODER_PORTS, DecoderBackend
from hvdc.artifact.records import NONE, DType, Expert, TensorKind
from layouts.order import HMX_INT8_K4
from tests.index_edit import IndexEdit, appended
from tests.malformed.registry import BIAS, NEWER, both, header, replaced, setter, without
from tests.malformed.registry import case as any_case
from tests.malformed.registry import index_case as any_index_case
from tests.malformed.registry import manifest_case as any_manifest_case
from tests.malformed.registry import raw_case as any_raw_case

DECODER = "base-decoder"
MODEL, ENCODINGS = "decoder.decoder_first_mid.onnx", "decoder.encodings.json"
SHARED, ALONE = "decoder.all.bin", "decoder.last.bin"
FILE = "decoder/last.bin"
FIRST_MID, FIRST_UP, LATER_MID, LATER_UP = range(4)
LATENT, WRITTEN_MID, READ_CUT, FIRST_FRAMES, LATER_LATENT, READ_MID, LATER_FRAMES = 0, 2, 3, 4, 6, 7, 12
"""Ports. A graph has the latent or the cut, and if later its cache; then the cut or the frames, and its cache again."""

case = partial(any_case, base=DECODER)
index_case = partial(any_index_case, base=DECODER)
raw_case = partial(any_raw_case, base=DECODER)
manifest_case = partial(any_manifest_case, base=DECODER)
fault = partial(index_case, Code.INDEX_DECODER)
"""A case of what only the decoder's checks object to."""

index_case(Code.OK, "sound-decoder", lambda e: None)

# Files: opaque, so that only size and hash can be wrong.


@case(Code.MISSING_FILE)
def no_binary(root: Path) -> None:
    (root / FILE).unlink()


@case(Code.FILE_SIZE)
def binary_padded_to_a_page(root: Path) -> None:
    data = (root / FILE).read_bytes()
    (root / FILE).write_bytes(data + bytes(-len(data) % 4096))


@case(Code.FILE_SIZE)
def binary_cut_short(root: Path) -> None:
    (root / FILE).write_bytes((root / FILE).read_bytes()[:-1])


@case(Code.DATA_HASH)
def flipped_bit_in_a_binary(root: Path) -> None:
    data = bytearray((root / FILE).read_bytes())
    data[-1] ^= 1
    (root / FILE).write_bytes(data)


@case(Code.DATA_HASH)
def binary_of_another_artifact(root: Path) -> None:
    (root / FILE).write_bytes(bytes((root / FILE).stat().st_size))


# Sections, the feature bit and the files belong together.

SECTIONS = ("decoder", "graphs", "ports")
for name in SECTIONS:
    index_case(Code.INDEX_SECTION, f"decoder-section-missing-{name}", without(name))
index_case(Code.INDEX_SECTION, "decoder-without-its-feature", lambda e: setattr(e, "features", 1))
index_case(Code.INDEX_SECTION, "calibration-beside-a-decoder-without-its-feature", lambda e: setattr(e, "features", 2))
any_index_case(Code.INDEX_SECTION, "decoder-feature-without-sections", lambda e: setattr(e, "features", 2))
raw_case(Code.INDEX_FEATURE, "decoder-and-an-unknown-feature", header(required_features=7))
index_case(Code.INDEX_FILE_RECORD, "decoder-files-of-1.1", both(
    lambda e: setattr(e, "features", 1), without(*SECTIONS),
))  # fmt: skip
index_case(Code.INDEX_FILE_RECORD, "decoder-file-of-a-block", both(
    setter("files", "first_block", -1, 0), setter("files", "block_count", -1, 1),
))  # fmt: skip
index_case(Code.INDEX_FILE_RECORD, "decoder-file-of-no-bytes", setter("files", "bytes", -1, 0))
index_case(Code.INDEX_FILE_RECORD, "two-tensors-in-a-decoder-file", both(
    setter("files", "tensor_count", -2, 2), lambda e: setattr(e, "files", e.files[:-1]),
))  # fmt: skip
index_case(Code.INDEX_FILE_RECORD, "host-file-of-odd-size", setter("files", "bytes", 2, 8191))
index_case(Code.INDEX_TOTALS, "other-decoder-total", setter("decoder", "bytes", 0, 4))

# Tensors in them.

index_case(Code.INDEX_TENSOR_RECORD, "decoder-tensor-of-another-kind", setter("tensors", "kind", MODEL, 6))
index_case(Code.INDEX_TENSOR_RECORD, "weight-of-kind-decoder", setter("tensors", "kind", BIAS, TensorKind.DECODER))
index_case(Code.INDEX_TENSOR_RECORD, "decoder-tensor-of-an-expert", setter("tensors", "expert", MODEL, Expert.DETAIL))
index_case(Code.INDEX_TENSOR_RECORD, "decoder-tensor-of-a-linear", both(
    setter("tensors", "linear", MODEL, lambda e: e.text(b"x")),
    setter("tensors", "name", MODEL, lambda e: e.text(b"blocks.4294967295.x.y")),
))  # fmt: skip
index_case(Code.INDEX_DTYPE, "decoder-tensor-of-int8", setter("tensors", "dtype", MODEL, DType.INT8))
index_case(Code.INDEX_DTYPE, "uint8-in-a-region", setter("tensors", "dtype", BIAS, DType.UINT8))
index_case(Code.INDEX_SHAPE, "decoder-tensor-in-tiles", setter("tensors", "tile_order", MODEL, HMX_INT8_K4.id))
index_case(Code.INDEX_SHAPE, "decoder-tensor-of-two-dimensions", both(
    setter("tensors", "dims", ENCODINGS, 2),
    setter("tensors", "shape", ENCODINGS, (1, 127, 0, 0, 0)),
    setter("tensors", "padded", ENCODINGS, (1, 127, 0, 0, 0)),
))  # fmt: skip
index_case(Code.INDEX_SHAPE, "decoder-tensor-padded", setter("tensors", "shape", ENCODINGS, (126, 0, 0, 0, 0)))
index_case(Code.INDEX_OFFSET, "decoder-file-of-whole-pages", setter("files", "bytes", -1, 4096))
index_case(Code.INDEX_OFFSET, "decoder-file-shorter-than-its-tensor", setter("files", "bytes", -1, 128))
index_case(Code.INDEX_OFFSET, "decoder-tensor-not-at-zero", both(
    setter("files", "bytes", -1, 257), setter("tensors", "offset", ALONE, 128),
))  # fmt: skip
index_case(Code.INDEX_SCALE_LINK, "decoder-tensor-with-a-scale", setter("tensors", "scale", MODEL, 0))

# The record.

fault("two-decoders", lambda e: setattr(e, "decoder", e.decoder.repeat(2)))
fault("no-decoder", lambda e: setattr(e, "decoder", e.decoder[:0]))
fault("decoder-backend-unknown", setter("decoder", "backend", 0, 4))
fault("decoder-backend-zero", setter("decoder", "backend", 0, 0))
fault("decoder-not-compiled-with-binaries", setter("decoder", "backend", 0, DecoderBackend.ONNX))
fault("decoder-compiled-without-binaries", setter("decoder", "binaries", 0, 0))
fault("decoder-of-more-graphs", setter("decoder", "graphs", 0, 5))
fault("decoder-of-more-ports", setter("decoder", "ports", 0, 15))
fault("decoder-of-other-channels", setter("decoder", "channels", 0, 16))
for field in ("tile_rows", "tile_columns", "spatial_scale", "temporal_scale"):
    fault(f"decoder-without-{field.replace('_', '-')}", setter("decoder", field, 0, 0))
fault("overlap-above-half-a-tile", setter("decoder", "overlap_rows", 0, 3))
# As in a video of half that height, whose latent has half as many rows.
fault("tile-of-more-rows-than-the-latent", both(
    setter("geometry", "latent", 0, (2, 2, 4)), setter("geometry", "tokens", 0, 4),
))  # fmt: skip
fault("tile-of-more-columns-than-the-latent", both(
    setter("geometry", "latent", 0, (2, 4, 2)), setter("geometry", "tokens", 0, 4),
))  # fmt: skip
fault("overlap-overflows", setter("decoder", "overlap_columns", 0, 1 << 31))


def of_many(graphs: int, ports: int) -> Callable[[IndexEdit], object]:
    """As many records as that, all alike."""
    return both(
        setter("decoder", "graphs", 0, graphs), lambda e: setattr(e, "graphs", np.resize(e.graphs[:1], graphs)),
        setter("decoder", "ports", 0, ports), lambda e: setattr(e, "ports", np.resize(e.ports[:1], ports)),
    )  # fmt: skip


fault("too-many-graphs", of_many(MAX_DECODER_GRAPHS + 1, 3 * MAX_DECODER_GRAPHS + 3))
fault("too-many-ports", of_many(2, MAX_DECODER_PORTS + 1))
fault("one-graph", of_many(1, 3))
fault("no-graphs", of_many(0, 0))

# Graphs.

index_case(Code.INDEX_STRING, "graph-name-outside", setter("graphs", "name", 0, NONE))
for name, text in {
    "with-a-dot": b"decoder.first", "starts-with-a-digit": b"1st", "empty": b"", "too-long": b"x" * (GRAPH_LIMIT + 1)
}.items():  # fmt: skip
    index_case(Code.INDEX_STRING, f"graph-name-{name}", setter("graphs", "name", 0, lambda e, text=text: e.text(text)))
fault("graph-twice", setter("graphs", "name", 1, lambda e: e.graphs["name"][0]))
fault("graph-variant-unknown", setter("graphs", "variant", 3, 3))
fault("graph-of-the-first-frame-behind-a-later-one", setter("graphs", "variant", LATER_UP, 1))
fault("no-graph-of-the-first-frame", setter("graphs", "variant", slice(None), 2))
fault("no-graph-of-later-frames", both(
    setter("decoder", "graphs", 0, 2), lambda e: setattr(e, "graphs", e.graphs[:2]),
    setter("decoder", "ports", 0, 6), lambda e: setattr(e, "ports", e.ports[:6]),
))  # fmt: skip
fault("graph-of-no-binary", setter("graphs", "binary", LATER_UP, NONE))
index_case(Code.INDEX_STRING, "name-in-binary-missing", setter("graphs", "name_in_binary", 0, NONE))
index_case(
    Code.INDEX_STRING, "name-in-binary-with-a-space", setter("graphs", "name_in_binary", 0, lambda e: e.text(b"a b"))
)
index_case(
    Code.INDEX_STRING, "name-in-binary-too-long",
    setter("graphs", "name_in_binary", 0, lambda e: e.text(b"x" * (records.TEXT_LIMIT + 1))),
)  # fmt: skip
index_case(Code.INDEX_STRING, "name-in-binary-empty", setter("graphs", "name_in_binary", 0, lambda e: e.text(b"")))
fault("name-in-binary-twice", setter("graphs", "name_in_binary", 1, lambda e: e.graphs["name_in_binary"][0]))
fault("optimization-zero", setter("graphs", "optimization", 0, 0))
fault("optimization-above-3", setter("graphs", "optimization", 0, 4))
fault("graph-reserved-field-used", setter("graphs", "reserved", 0, 1))
fault("ports-leave-a-hole", setter("graphs", "first_port", FIRST_UP, 4))
fault("graph-without-outputs", setter("graphs", "outputs", LATER_UP, 0))
fault("graph-without-inputs", both(setter("graphs", "inputs", LATER_UP, 0), setter("graphs", "outputs", LATER_UP, 4)))
fault("ports-beyond-the-last", setter("graphs", "outputs", LATER_UP, 3))
fault("ports-overflow", setter("graphs", "outputs", LATER_UP, NONE))
fault("ports-left-over", setter("graphs", "outputs", LATER_UP, 1))
fault("first-graph-reads-a-cache", both(
    setter("graphs", "inputs", FIRST_MID, 2), setter("graphs", "outputs", FIRST_MID, 1),
))  # fmt: skip

# Ports.

index_case(Code.INDEX_STRING, "port-name-outside", setter("ports", "name", 0, NONE))
index_case(Code.INDEX_STRING, "port-name-not-canonical", setter("ports", "name", 0, lambda e: e.text(b"la-tent")))
fault("port-dtype-unknown", setter("ports", "dtype", LATENT, 3))
fault("port-dtype-zero", setter("ports", "dtype", LATENT, 0))
fault("port-without-dimensions", setter("ports", "dims", LATENT, 0))
fault("port-of-six-dimensions", setter("ports", "dims", LATENT, 6))
fault("port-of-no-rows", setter("ports", "shape", LATENT, (1, 4, 1, 0, 4)))
fault("port-unused-dimension-set", setter("ports", "dims", LATENT, 4))
fault("zero-point-no-code-of-8-bits", setter("ports", "zero_point", LATER_FRAMES, 256))
fault("zero-point-no-code-of-16-bits", setter("ports", "zero_point", LATENT, 1 << 16))
for name, value in {
    "zero": 0.0,
    "negative": -0.5,
    "nan": math.nan,
    "infinite": math.inf,
    "subnormal": 2.0**-127,
}.items():
    fault(f"port-scale-{name}", setter("ports", "scale", LATENT, value))

# Which file is what: models in the order of graphs, encodings, binaries.

fault("graph-of-no-model", setter("graphs", "model", 0, NONE))
fault("two-graphs-of-one-model", setter("graphs", "model", 1, lambda e: e.id(MODEL)))
fault("models-exchanged", lambda e: e.graphs["model"].__setitem__([0, 1], e.graphs["model"][[1, 0]]))
fault("encodings-are-a-model", setter("decoder", "encodings", 0, lambda e: e.id(MODEL)))
fault("encodings-outside", setter("decoder", "encodings", 0, NONE))
fault("binary-is-a-weight", setter("graphs", "binary", LATER_UP, 0))
fault("binary-is-a-model", setter("graphs", "binary", LATER_UP, lambda e: e.id(MODEL)))
fault("binary-is-the-encodings", setter("graphs", "binary", LATER_UP, lambda e: e.id(ENCODINGS)))
fault("binary-outside", setter("graphs", "binary", LATER_UP, NONE - 1))
fault("binary-of-no-graph", setter("graphs", "binary", LATER_UP, lambda e: e.id(SHARED)))
fault("decoder-of-more-binaries", setter("decoder", "binaries", 0, 3))
fault("binaries-overflow", setter("decoder", "binaries", 0, NONE))

# What a variant reads and writes is a tile of the record's sizes.

fault("tile-of-fewer-rows-than-the-latent-port", setter("decoder", "tile_rows", 0, 3))
fault("tile-of-fewer-columns-than-the-latent-port", both(
    setter("decoder", "tile_columns", 0, 3), setter("decoder", "overlap_columns", 0, 1),
))  # fmt: skip
fault("latent-of-other-rows", setter("ports", "shape", LATENT, (1, 4, 1, 5, 4)))
fault("latent-of-other-columns-in-a-later-graph", setter("ports", "shape", LATER_LATENT, (1, 4, 1, 4, 5)))
fault("latent-of-other-channels", setter("ports", "shape", LATENT, (1, 16, 1, 4, 4)))
fault("latent-of-two-frames", setter("ports", "shape", LATER_LATENT, (1, 4, 2, 4, 4)))
fault("latent-of-two-clips", setter("ports", "shape", LATENT, (2, 4, 1, 4, 4)))
fault("latent-without-frames", both(
    setter("ports", "dims", LATENT, 4), setter("ports", "shape", LATENT, (1, 4, 4, 4, 0)),
))  # fmt: skip
fault("frames-of-other-rows", setter("ports", "shape", FIRST_FRAMES, (1, 3, 1, 16, 32)))
fault("frames-of-other-columns", setter("ports", "shape", LATER_FRAMES, (1, 3, 4, 32, 64)))
fault("frames-of-four-channels", setter("ports", "shape", LATER_FRAMES, (1, 4, 4, 32, 32)))
fault("frames-too-many-of-the-first-latent", setter("ports", "shape", FIRST_FRAMES, (1, 3, 4, 32, 32)))
fault("frames-too-few-of-a-later-latent", setter("ports", "shape", LATER_FRAMES, (1, 3, 1, 32, 32)))
fault("decoder-of-another-spatial-scale", setter("decoder", "spatial_scale", 0, 16))
fault("decoder-of-another-temporal-scale", setter("decoder", "temporal_scale", 0, 1))
fault("spatial-scale-overflows", setter("decoder", "spatial_scale", 0, (1 << 30) + 8))

# Cuts and caches: the same integers on both sides.

fault("port-twice-in-a-graph", setter("ports", "name", READ_MID, lambda e: e.ports["name"][LATENT]))
fault("cache-written-by-two-graphs", setter("ports", "name", 5, lambda e: e.ports["name"][WRITTEN_MID]))
fault("cut-of-another-name", setter("ports", "name", READ_CUT, lambda e: e.text(b"mid.other")))
fault("cut-of-another-zero-point", setter("ports", "zero_point", READ_CUT, 127))
fault("cut-of-another-scale", setter("ports", "scale", READ_CUT, 0.0625 + 2.0**-27))
fault("cut-of-another-shape", setter("ports", "shape", READ_CUT, (1, 8, 1, 4, 5)))
fault("cache-that-nobody-writes", setter("ports", "name", READ_MID, lambda e: e.text(b"cache.none")))
fault("cache-that-no-later-graph-writes", setter("ports", "name", 9, lambda e: e.text(b"next_cache.none")))
fault("cache-that-no-first-graph-writes", setter("ports", "name", WRITTEN_MID, lambda e: e.text(b"next_cache.none")))
fault("cache-of-another-zero-point", setter("ports", "zero_point", WRITTEN_MID, 4))
fault("cache-of-another-scale", setter("ports", "scale", 9, 0.25))
fault("cache-of-another-dtype", setter("ports", "dtype", WRITTEN_MID, 2))
fault("cache-of-another-shape", setter("ports", "shape", WRITTEN_MID, (1, 8, 2, 4, 5)))
fault("cache-name-of-the-greatest-length", both(
    setter("ports", "name", READ_MID, lambda e: e.text(b"x" * records.TEXT_LIMIT)),
    setter("ports", "name", WRITTEN_MID, lambda e: e.text(b"next_" + b"x" * (records.TEXT_LIMIT - 5))),
))  # fmt: skip
for name, table in {"decoder": "decoder", "graphs": "graphs", "ports": "ports"}.items():
    index_case(
        Code.MANIFEST_INDEX, f"fields-appended-to-{name}",
        lambda e, table=table: setattr(e, table, appended(getattr(e, table), 8)), only_python=NEWER,
    )  # fmt: skip
    index_case(Code.INDEX_SECTION, f"decoder-records-too-small-{name}", lambda e, table=table: setattr(
        e, table, np.frombuffer(getattr(e, table).tobytes()[:32], np.dtype((np.void, 32))),
    ))  # fmt: skip

# The manifest's entry.


def entry(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """A change of the decoder's entry."""

    def changed(text: bytes) -> bytes:
        tree = json.loads(text)
        change(tree["decoder"])
        return json.dumps(tree).encode("ascii")

    return changed


wrong = partial(manifest_case, Code.MANIFEST_SCHEMA)

wrong("decoder-in-version-1.1", replaced('"minor": 2', '"minor": 1'))
wrong("decoder-entry-with-another-key", entry(lambda d: d.update(colour="red")))
wrong("decoder-entry-of-another-variant", replaced('"variant": "later"', '"variant": "last"'))
wrong(
    "decoder-entry-of-one-channel-more", entry(lambda d: (d["latents_mean"].append(0.5), d["latents_std"].append(1.0)))
)
wrong("decoder-entry-of-models-exchanged", entry(
    lambda d: (d["graphs"][0].update(model=d["graphs"][1]["model"]), d["graphs"][1].update(model=MODEL))
))  # fmt: skip
wrong("decoder-entry-of-a-lost-binary", entry(lambda d: d["binaries"][1].update(binary="decoder.lost.bin")))
wrong("decoder-entry-of-a-scale-beyond-fp32", entry(lambda d: d["graphs"][0]["inputs"][0].update(scale=1e39)))
wrong("decoder-entry-of-a-scale-between-fp32", entry(lambda d: d["graphs"][0]["inputs"][0].update(scale=0.1)))
wrong("decoder-file-of-another-kind", replaced('"kind": "decoder"', '"kind": "host"', 1))
wrong("decoder-tensors-of-another-kind", replaced('"kind": "decoder", "dtype"', '"kind": "host", "dtype"'))
wrong("decoder-entry-of-another-tile", entry(lambda d: d["tiles"].update(rows=3)))
wrong("decoder-entry-of-another-spatial-scale", entry(lambda d: d.update(spatial_scale=16)))
wrong("decoder-entry-of-another-temporal-scale", entry(lambda d: d.update(temporal_scale=2)))
wrong("decoder-entry-of-a-tile-above-the-latent", replaced('"latent": [2, 4, 4]', '"latent": [2, 2, 4]'))
manifest_case(
    Code.MANIFEST_INDEX, "decoder-entry-of-another-overlap", entry(lambda d: d["tiles"].update(overlap_rows=2))
)
manifest_case(
    Code.MANIFEST_INDEX, "decoder-entry-of-another-name-in-binary",
    entry(lambda d: d["binaries"][0]["graphs"][0].update(name_in_binary="x")),
)  # fmt: skip


def without_entry(text: bytes) -> bytes:
    """The manifest without a decoder, the files staying."""
    tree = json.loads(text)
    tree["decoder"] = None
    return json.dumps(tree).encode("ascii")


wrong("decoder-entry-lost", without_entry)
