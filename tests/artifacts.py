"""Tiny valid artifacts from random bytes, and ways to damage them.

They are made from the manifest model alone, without the compiler: what the readers are tested with must not depend on
the code that usually makes it. Every shape that pads is in them: rank 16, feed-forward width 80, per-column vectors.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hvdc.artifact import manifest as m
from hvdc.artifact.answer_records import ANSWER_NAME
from hvdc.artifact.calibration import Calibration, Clip, GemmInput, Smoothing
from hvdc.artifact.decoder import Backend, Decoder
from hvdc.artifact.index_write import build_index
from hvdc.artifact.manifest import FileEntry, Manifest, TensorEntry
from hvdc.artifact.records import DTYPE_BYTES, DType
from hvdc.artifact.runtime import FOLDER, LIST_NAME
from hvdc.config import CompileConfig
from layouts.grid import TileGrid, pack
from layouts.order import HMX_INT8_K4
from layouts.regions import Item, align_up, plan_region
from tests.decoder_entries import decoder_entry, decoder_files

ATTENTION = tuple(f"{attn}.{part}" for attn in ("attn1", "attn2") for part in ("to_q", "to_k", "to_v", "to_out.0"))
FFN = ("ffn.net.0.proj", "ffn.net.2")
KINDS = (
    "attention_base", "ffn_base", "base_scale", "adapter", "block_other", "host", "schedule", "calibration", "decoder"
)  # fmt: skip
SITE = "ffn.net.2"
"""Where a calibrated test artifact's weights are smoothed."""
REGION_CAP_BYTES = 1 << 20


@dataclass(frozen=True)
class Spec:
    """Sizes of a test artifact."""

    layers: int = 2
    width: int = 64
    ffn_width: int = 80
    heads: int = 1
    rank: int = 16
    linears: int = 8
    """How many of a block's attention linears there are."""
    seed: int = 0
    calibrated: bool = False
    decoder: Backend | None = None
    """None: there is no decoder."""


@dataclass(frozen=True)
class Blob:
    """A tensor with its stored bytes, before it has a place."""

    name: str
    kind: m.TensorKind
    dtype: m.DTypeName
    shape: tuple[int, ...]
    padded: tuple[int, ...]
    data: bytes
    tiled: bool = False
    linear: str | None = None
    block: int | None = None
    expert: m.Expert | None = None
    scale: str | None = None


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
        (f"regions/block-{b:03d}.bin", "region", b, 1, list(_block(rng, spec, b))) for b in range(spec.layers)
    ]
    if spec.rank:
        factors = [blob for b in range(spec.layers) for blob in _adapter(rng, spec, b)]
        planned.append(("adapters/detail-000.bin", "adapter", 0, spec.layers, factors))
    planned.append(("host/shared.bin", "host", None, 0, list(_host(rng, spec))))
    planned.append(("schedule/tables.bin", "schedule", None, 0, list(_schedule(rng, spec))))
    if spec.calibrated:
        planned.append(("calibration/scales.bin", "calibration", None, 0, list(_scales(rng, spec))))
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


def _weight(rng: np.random.Generator, name: str, kind: m.TensorKind, n: int, k: int, **more: Any) -> list[Blob]:
    """A quantised weight and its scale."""
    grid = TileGrid(HMX_INT8_K4, n, k)
    q = rng.integers(-127, 128, (n, k), np.int8)
    scales = np.ones(grid.padded_n, "<f4")  # padding columns have scale 1
    scales[:n] = rng.uniform(1e-3, 2e-2, n)
    weight = Blob(
        name, kind, "int8", (n, k), (grid.padded_n, grid.padded_k), pack(HMX_INT8_K4, q).tobytes(), True,
        scale=f"{name}_scale", **more,
    )  # fmt: skip
    scale_kind: m.TensorKind = "adapter" if kind == "adapter" else "base_scale"
    return [
        weight,
        Blob(f"{name}_scale", scale_kind, "float32", (n,), (grid.padded_n,), scales.tobytes(), **more),
    ]


def _floats(
    rng: np.random.Generator,
    name: str,
    kind: m.TensorKind,
    shape: tuple[int, ...],
    padded: tuple[int, ...] | None = None,
    **more: Any,
) -> Blob:
    """An FP32 tensor; vectors of a block are padded to whole tiles."""
    if padded is None:
        padded = (align_up(shape[0], 32),) if kind in ("attention_base", "block_other") else shape
    data = np.zeros(padded, "<f4")
    data[tuple(slice(s) for s in shape)] = rng.standard_normal(shape)
    return Blob(name, kind, "float32", shape, padded, data.tobytes(), **more)


def _block(rng: np.random.Generator, s: Spec, block: int) -> Iterator[Blob]:
    shapes = dict.fromkeys(ATTENTION[: s.linears], (s.width, s.width))
    shapes |= {FFN[0]: (s.ffn_width, s.width), FFN[1]: (s.width, s.ffn_width)}
    weights, scales, biases = [], [], []
    for linear, (n, k) in shapes.items():
        name = f"blocks.{block}.{linear}"
        kind: m.TensorKind = "ffn_base" if linear in FFN else "attention_base"
        weight, scale = _weight(rng, f"{name}.weight", kind, n, k, linear=linear, block=block)
        bias_kind: m.TensorKind = "block_other" if linear in FFN else "attention_base"
        weights.append(weight)
        scales.append(scale)
        biases.append(_floats(rng, f"{name}.bias", bias_kind, (n,), linear=linear, block=block))
    yield from (*weights, *scales, *biases)
    for norm in ("attn1.norm_q.weight", "norm2.bias"):
        yield _floats(rng, f"blocks.{block}.{norm}", "block_other", (s.width,), block=block)


def _adapter(rng: np.random.Generator, s: Spec, block: int) -> Iterator[Blob]:
    for linear in ATTENTION[: min(s.linears, 2)]:
        for factor, shape in (("lora_A", (s.rank, s.width)), ("lora_B", (s.width, s.rank))):
            name = f"blocks.{block}.{linear}.{factor}.weight"
            yield from _weight(rng, name, "adapter", *shape, linear=linear, block=block, expert="detail")


def _host(rng: np.random.Generator, s: Spec) -> Iterator[Blob]:
    yield _floats(rng, "patch_embedding.weight", "host", (s.width, 4, 1, 2, 2))
    yield _floats(rng, "patch_embedding.bias", "host", (s.width,))
    yield _floats(rng, "proj_out.weight", "host", (16, s.width), expert="semantic")
    yield _floats(rng, "padded_everywhere", "host", (2, 3, 5), padded=(3, 4, 6))


def _schedule(rng: np.random.Generator, s: Spec) -> Iterator[Blob]:
    yield _floats(rng, "schedule.adaln", "schedule", (len(_steps(s)), s.layers, 6, s.width))
    yield _floats(rng, "schedule.head", "schedule", (len(_steps(s)), 2, s.width))
    for axis, size in zip(("frame", "row", "col"), _rope(s), strict=True):
        table = rng.uniform(0, 1, size // 2).astype("<f8")
        name = f"schedule.rope_freqs_{axis}"
        yield Blob(name, "schedule", "float64", (size // 2,), (size // 2,), table.tobytes())


def gemm_inputs(s: Spec) -> tuple[GemmInput, ...]:
    """One of each sort."""
    both: tuple[m.Expert, ...] = ("semantic", "detail") if s.rank else ("semantic",)
    inputs = [
        GemmInput(name="attn1.input", per="step", experts=both),
        GemmInput(name="attn2.text", per="expert", experts=both),
    ]
    if s.rank:
        inputs.append(GemmInput(name="attn1.to_q.lora_hidden", per="step", experts=("detail",)))
    return tuple(inputs)


def scale_table(rng: np.random.Generator, inputs: Sequence[GemmInput], steps: Sequence[m.Expert], layers: int) -> Any:
    """A valid table of activation scales."""
    table = rng.uniform(1e-3, 1e-1, (len(steps), layers, len(inputs))).astype(np.float32)
    for step, expert in enumerate(steps):
        for column, item in enumerate(inputs):
            if item.per == "expert":
                table[step, :, column] = table[list(steps).index(expert), :, column]
            if expert not in item.experts:
                table[step, :, column] = 0
    return table


def _scales(rng: np.random.Generator, s: Spec) -> Iterator[Blob]:
    table = scale_table(rng, gemm_inputs(s), [step.expert for step in _steps(s)], s.layers)
    factors = rng.uniform(0.5, 2, (s.layers, s.ffn_width)).astype(np.float32)
    for name, data in (("calibration.activation_scales", table), (f"calibration.smooth.{SITE}", factors)):
        yield Blob(name, "calibration", "float32", data.shape, data.shape, data.astype("<f4").tobytes())


def _calibration(s: Spec) -> Calibration:
    return Calibration(
        mode="percentile",
        percentile=99.9,
        statistics_sha256="1" * 64,
        prompts=2,
        seeds=(0, 7),
        video=Clip(frames=5, height=32, width=16),
        other_geometry=True,
        dtype="fp32",
        inputs=gemm_inputs(s),
        smoothing=Smoothing(strength=0.5, sites=(SITE,)),
    )


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


def _rope(s: Spec) -> tuple[int, int, int]:
    head = s.width // s.heads
    third = 2 * (head // 6)
    return head - 2 * third, third, third


def _steps(s: Spec) -> tuple[m.Step, ...]:
    times = (1000.0, 949.0, 810.0)
    sigmas = [np.float32(t) / np.float32(1000) for t in times] + [np.float32(0)]
    return tuple(
        m.Step(
            timestep=t,
            sigma=float(sigmas[i]),
            sigma_next=float(sigmas[i + 1]),
            step_size=float(sigmas[i + 1] - sigmas[i]),
            expert="detail" if s.rank and t < 979 else "semantic",
        )
        for i, t in enumerate(times)
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
            rope_axis_dims=_rope(s),
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
        steps=_steps(s),
        source=m.Source(tensors_sha256="0" * 64, tensor_count=len(tensors)),
        parameters=m.Parameters(base=1, text_embedder=1, ffn_pair=1),
        totals=m.Totals(**kinds, padding_bytes=data_bytes - sum(kinds.values()), data_bytes=data_bytes),
        calibration=_calibration(s) if s.calibrated else None,
        decoder=decoder_entry(s.decoder) if s.decoder is not None else None,
        model_sha256=m.model_sha256([(f.path, f.bytes, f.sha256) for f in files]),
        files=files,
    )


def put_float(element: int, value: float) -> Callable[[bytearray, TensorEntry], None]:
    """A change for `edit_tensor`: one FP32 element."""

    def edit(part: bytearray, _: TensorEntry) -> None:
        part[4 * element : 4 * element + 4] = np.array(value, "<f4").tobytes()

    return edit
