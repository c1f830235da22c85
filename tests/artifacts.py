"""Tiny valid artifacts from random bytes, and ways to damage them.

They are made from the manifest model alone, without the compiler: what the readers are tested with must not depend on
the code that usually makes it. Every shape that pads is in them: rank 16, feed-forward width 80, per-column vectors.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from hvdc.artifact import manifest as m
from hvdc.artifact.answer_records import ANSWER_NAME
from hvdc.artifact.decoder import Decoder
from hvdc.artifact.index_write import build_index
from hvdc.artifact.manifest import FileEntry, Manifest, TensorEntry
from hvdc.artifact.records import DTYPE_BYTES, DType
from hvdc.artifact.runtime import FOLDER, LIST_NAME
from hvdc.config import CompileConfig
from layouts.regions import Item, plan_region
from tests.artifact_blobs import (
    KINDS,
    Blob,
    Spec,
    adapter_blobs,
    block_blobs,
    calibration_of,
    host_blobs,
    rope_of,
    scale_blobs,
    schedule_blobs,
    steps_of,
)
from tests.decoder_entries import decoder_entry, decoder_files

REGION_CAP_BYTES = 1 << 20


def make_artifact(root: Path, spec: Spec | None = None) -> Path:
    """Write a valid artifact into the new directory ``root``; the same spec gives the same bytes."""
    manifest, data = make(spec or Spec())
    for path, content in data.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    write_manifest(root, manifest)
    return root


def make(spec: Spec) -> tuple[Manifest, dict[str, bytes]]:
    """Manifest and data files of a test artifact."""
    rng = np.random.default_rng(spec.seed)
    planned: list[tuple[str, m.FileKind, int | None, int, list[Blob]]] = [
        (f"regions/block-{b:03d}.bin", "region", b, 1, list(block_blobs(rng, spec, b))) for b in range(spec.layers)
    ]
    if spec.rank:
        factors = [blob for b in range(spec.layers) for blob in adapter_blobs(rng, spec, b)]
        planned.append(("adapters/detail-000.bin", "adapter", 0, spec.layers, factors))
    planned.append(("host/shared.bin", "host", None, 0, list(host_blobs(rng, spec))))
    planned.append(("schedule/tables.bin", "schedule", None, 0, list(schedule_blobs(rng, spec))))
    if spec.calibrated:
        planned.append(("calibration/scales.bin", "calibration", None, 0, list(scale_blobs(rng, spec))))
    files, data = [], dict(decoder_files(spec.decoder) if spec.decoder is not None else {})
    opaque = [_opaque(path, content, path.replace("/", ".")) for path, content in data.items()]
    for path, kind, first, count, blobs in planned:
        entry, data[path] = _file(path, kind, first, count, blobs)
        files.append(entry)
    return _manifest(spec, (*files, *opaque)), data


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Write ``manifest.json`` and the ``index.bin`` that follows from it."""
    text = manifest.to_json()
    (root / m.MANIFEST_NAME).write_bytes(text)
    (root / m.INDEX_NAME).write_bytes(build_index(manifest, text))


def read_manifest(root: Path) -> Manifest:
    """The manifest of a test artifact."""
    return m.parse_manifest((root / m.MANIFEST_NAME).read_bytes(), str(root))


def forget_answer(root: Path) -> Path:
    """Take the stored answer out of a compiled artifact whose weights are to be edited: it would object first."""
    listed = root / FOLDER / LIST_NAME
    listed.write_text(json.dumps(json.loads(listed.read_text()) | {"answer": None}))
    (root / FOLDER / ANSWER_NAME).unlink()
    return root


def replace_data(root: Path, path: str, data: bytes) -> None:
    """Give a data file other bytes and every hash that covers them, so that only deeper checks can object.

    The manifest is edited as text: what else is written in it stays as it is.
    """
    (root / path).write_bytes(data)
    old, text = read_manifest(root), (root / m.MANIFEST_NAME).read_bytes()
    hashes = {f.path: f.sha256 for f in old.files} | {path: hashlib.sha256(data).hexdigest()}
    identity = m.model_sha256([(f.path, f.bytes, hashes[f.path]) for f in old.files])
    sha256 = next(f.sha256 for f in old.files if f.path == path)
    for before, after in ((sha256, hashes[path]), (old.model_sha256, identity)):
        text = text.replace(before.encode("ascii"), after.encode("ascii"))
    (root / m.MANIFEST_NAME).write_bytes(text)
    (root / m.INDEX_NAME).write_bytes(build_index(read_manifest(root), text))


def replace_opaque(root: Path, path: str, data: bytes) -> None:
    """Give a decoder's file other bytes, of any number, with size, totals and hashes in the manifest made right."""
    old = read_manifest(root)
    files = tuple(_opaque(path, data, f.tensors[0].name) if f.path == path else f for f in old.files)
    grown = len(data) - (root / path).stat().st_size
    totals = {field: getattr(old.totals, field) + grown for field in ("decoder_bytes", "data_bytes")}
    changes = {
        "files": files,
        "totals": old.totals.model_copy(update=totals),
        "model_sha256": m.model_sha256([(f.path, f.bytes, f.sha256) for f in files]),
    }
    (root / path).write_bytes(data)
    write_manifest(root, old.model_copy(update=changes))


def add_opaque(root: Path, added: Mapping[str, bytes], entry: Decoder) -> None:
    """Give an artifact more files of its decoder, with another ``entry`` of it, and totals and hashes made right."""
    old = read_manifest(root)
    files = (*old.files, *(_opaque(path, data, path.replace("/", ".")) for path, data in added.items()))
    grown = sum(map(len, added.values()))
    totals = {field: getattr(old.totals, field) + grown for field in ("decoder_bytes", "data_bytes")}
    changes = {
        "files": files,
        "decoder": entry,
        "totals": old.totals.model_copy(update=totals),
        "model_sha256": m.model_sha256([(f.path, f.bytes, f.sha256) for f in files]),
    }
    for path, data in added.items():
        (root / path).write_bytes(data)
    write_manifest(root, old.model_copy(update=changes))


def edit_tensor(root: Path, name: str, edit: Callable[[bytearray, TensorEntry], None]) -> None:
    """Change the stored bytes of a tensor, hashes included."""
    for file, tensor in read_manifest(root).tensors():
        if tensor.name == name:
            data = bytearray((root / file.path).read_bytes())
            part = data[tensor.offset : tensor.offset + tensor.bytes]
            edit(part, tensor)
            data[tensor.offset : tensor.offset + tensor.bytes] = part
            replace_data(root, file.path, bytes(data))
            return
    raise KeyError(name)


def _file(path: str, kind: m.FileKind, first: int | None, count: int, blobs: list[Blob]) -> tuple[FileEntry, bytes]:
    region = plan_region(path, [Item(b.name, len(b.data)) for b in blobs])
    data, tensors = bytearray(region.bytes), []
    for blob, place in zip(blobs, region.placements, strict=True):
        assert len(blob.data) == math.prod(blob.padded) * DTYPE_BYTES[DType[blob.dtype.upper()]]
        data[place.offset : place.offset + place.bytes] = blob.data
        tensors.append(
            TensorEntry(
                name=blob.name,
                linear=blob.linear,
                kind=blob.kind,
                dtype=blob.dtype,
                tile_order="hmx-int8-k4" if blob.tiled else "row-major",
                block=blob.block,
                expert=blob.expert,
                shape=blob.shape,
                padded_shape=blob.padded,
                scale=blob.scale,
                offset=place.offset,
                bytes=place.bytes,
            )
        )
    entry = FileEntry(
        path=path,
        kind=kind,
        first_block=first,
        block_count=count,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        tensors=tuple(tensors),
    )
    return entry, bytes(data)


def _opaque(path: str, data: bytes, name: str) -> FileEntry:
    """A file of a decoder: as it is, without a gap at its end."""
    tensor = TensorEntry(
        name=name,
        linear=None,
        kind="decoder",
        dtype="uint8",
        tile_order="row-major",
        block=None,
        expert=None,
        shape=(len(data),),
        padded_shape=(len(data),),
        scale=None,
        offset=0,
        bytes=len(data),
    )
    sha256 = hashlib.sha256(data).hexdigest()
    return FileEntry(
        path=path, kind="decoder", first_block=None, block_count=0, bytes=len(data), sha256=sha256, tensors=(tensor,)
    )


def _manifest(s: Spec, files: tuple[FileEntry, ...]) -> Manifest:
    tensors = [t for f in files for t in f.tensors]
    kinds = {f"{kind}_bytes": sum(t.bytes for t in tensors if t.kind == kind) for kind in KINDS}
    data_bytes = sum(f.bytes for f in files)
    return Manifest(
        format=m.Format(),
        tools={"hvdc": "0.0.0"},
        configuration=CompileConfig(timesteps=(1000.0, 949.0, 810.0)),
        geometry=m.Geometry(
            layers=s.layers,
            width=s.width,
            ffn_width=s.ffn_width,
            heads=s.heads,
            text_width=24,
            text_tokens=8,
            in_channels=4,
            out_channels=4,
            patch=(1, 2, 2),
            freq_dim=32,
            cross_attn_norm=True,
            eps=1e-6,
            rope_theta=10000.0,
            rope_max_positions=1024,
            rope_axis_dims=rope_of(s),
            rank=s.rank,
            alpha_over_rank=2.0,
        ),
        video=m.Video(frames=5, height=32, width=32, latent=(2, 4, 4), tokens=8),
        target=m.Target(
            name="test",
            soc="none",
            hexagon_arch="none",
            region_cap_bytes=REGION_CAP_BYTES,
            mapping_budget_bytes=1 << 30,
        ),
        experts=("semantic", "detail") if s.rank else ("semantic",),
        steps=steps_of(s),
        source=m.Source(tensors_sha256="0" * 64, tensor_count=len(tensors)),
        parameters=m.Parameters(base=1, text_embedder=1, ffn_pair=1),
        totals=m.Totals(**kinds, padding_bytes=data_bytes - sum(kinds.values()), data_bytes=data_bytes),
        calibration=calibration_of(s) if s.calibrated else None,
        decoder=decoder_entry(s.decoder) if s.decoder is not None else None,
        model_sha256=m.model_sha256([(f.path, f.bytes, f.sha256) for f in files]),
        files=files,
    )


def put_float(element: int, value: float) -> Callable[[bytearray, TensorEntry], None]:
    """A change for `edit_tensor`: one FP32 element."""

    def edit(part: bytearray, _: TensorEntry) -> None:
        part[4 * element : 4 * element + 4] = np.array(value, "<f4").tobytes()

    return edit
