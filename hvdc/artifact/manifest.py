"""``manifest.json`` as a typed model: strict, unknown keys refused, its JSON Schema generated and shipped.

The manifest is the readable truth; ``index.bin`` is a pure function of it (`hvdc.artifact.index_write`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from hvdc.artifact import decoder, records
from hvdc.artifact.calibration import Calibration, smoothing_tensor
from hvdc.artifact.codes import Code
from hvdc.artifact.decoder import Decoder
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.fields import Bytes, Count, Expert, FilePath, Model, ParameterCount, Sha256, Size, TensorName
from hvdc.config import CompileConfig

MANIFEST_NAME = "manifest.json"
INDEX_NAME = "index.bin"
MAX_MANIFEST_BYTES = 64 << 20
"""A manifest of the full-size model is about 600 KB; a reader refuses to parse anything absurd."""

FileKind = Literal["region", "adapter", "host", "schedule", "calibration", "decoder"]
TensorKind = Literal[
    "attention_base", "ffn_base", "base_scale", "adapter", "block_other", "host", "schedule", "calibration", "decoder"
]
DTypeName = Literal["int8", "float32", "float64", "uint8"]
TileOrderName = Literal["row-major", "hmx-int8-k4", "hmx-fp16-2"]


class Format(Model):
    """Which format this is. ``draft`` artifacts may change until the format is final."""

    name: Literal["hvdc-artifact"] = "hvdc-artifact"
    major: Literal[1] = 1
    minor: Count = records.MINOR
    draft: bool = True


class Geometry(Model):
    """Sizes of the model, in channels, blocks and tokens; the names are those of `exporters.model.Geometry`."""

    layers: Size
    width: Size
    ffn_width: Size
    heads: Size
    text_width: Size
    text_tokens: Size
    in_channels: Size
    out_channels: Size
    patch: tuple[Size, Size, Size]
    freq_dim: Size
    cross_attn_norm: bool
    eps: Annotated[float, Field(gt=0)]
    rope_theta: Annotated[float, Field(gt=0)]
    rope_max_positions: Size
    rope_axis_dims: tuple[Size, Size, Size]
    rank: Count
    alpha_over_rank: float


class Video(Model):
    """The clip that the artifact is made for. Latent sizes are (frames, rows, columns); ``tokens`` is M."""

    frames: Size
    height: Size
    width: Size
    latent: tuple[Size, Size, Size]
    tokens: Size


class Step(Model):
    """One denoising step: ``x += v * step_size`` with v by ``expert``."""

    timestep: float
    sigma: float
    sigma_next: float
    step_size: float
    expert: Expert


class TensorEntry(Model):
    """One tensor. ``scale`` names the FP32 scales per output column of an INT8 weight: ``W ≈ q · s``."""

    name: TensorName
    linear: TensorName | None
    kind: TensorKind
    dtype: DTypeName
    tile_order: TileOrderName
    block: Count | None
    expert: Expert | None
    shape: Annotated[tuple[Size, ...], Field(min_length=1, max_length=records.MAX_DIMS)]
    padded_shape: Annotated[tuple[Size, ...], Field(min_length=1, max_length=records.MAX_DIMS)]
    scale: TensorName | None
    offset: Bytes
    bytes: Bytes

    @model_validator(mode="after")
    def _bytes_agree(self) -> TensorEntry:
        if self.bytes != math.prod(self.padded_shape) * records.DTYPE_BYTES[records.DType[self.dtype.upper()]]:
            raise ValueError(f"{self.name}: {self.bytes} bytes for {self.padded_shape} {self.dtype}")
        return self


class FileEntry(Model):
    """One data file with its tensors in order of offset."""

    path: FilePath
    kind: FileKind
    first_block: Count | None
    block_count: Count
    bytes: Bytes
    sha256: Sha256
    tensors: Annotated[tuple[TensorEntry, ...], Field(min_length=1)]


class Source(Model):
    """What was compiled. ``tensors_sha256`` is a function of the canonical tensors' values, never of the input file."""

    tensors_sha256: Sha256
    tensor_count: Count
    left_out_energy: dict[TensorName, float] | None = None
    """Only where a merged detail checkpoint was split by SVD: ‖ΔW − BA‖² / ‖ΔW‖² of each linear."""


class Parameters(Model):
    """Parameter counts of the source model that the memory accounting needs."""

    base: ParameterCount
    """The semantic expert, whole."""
    text_embedder: ParameterCount
    """Its text projection, which the CPU runs once per prompt."""
    ffn_pair: ParameterCount
    """Weights of one block's feed-forward pair, without biases."""


class Target(Model):
    """The device limits that shaped the artifact, copied from the target description."""

    name: str
    soc: str
    hexagon_arch: str
    region_cap_bytes: Bytes
    mapping_budget_bytes: Bytes


class Totals(Model):
    """Bytes of tensors by kind, and of all data files with their padding. Version 1.0 has no calibration, 1.1 no
    decoder."""

    attention_base_bytes: Bytes
    ffn_base_bytes: Bytes
    base_scale_bytes: Bytes
    adapter_bytes: Bytes
    block_other_bytes: Bytes
    host_bytes: Bytes
    schedule_bytes: Bytes
    calibration_bytes: Bytes = 0
    decoder_bytes: Bytes = 0
    padding_bytes: Bytes
    data_bytes: Bytes


class Manifest(Model):
    """The whole manifest."""

    format: Format
    tools: dict[str, str]
    configuration: CompileConfig
    geometry: Geometry
    video: Video
    target: Target
    experts: tuple[Expert, ...]
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    source: Source
    parameters: Parameters
    totals: Totals
    calibration: Calibration | None = None
    """None: activations are uncalibrated. Version 1.0 does not have the key."""
    decoder: Decoder | None = None
    """None: latents stay latents. Versions before 1.2 do not have the key."""
    model_sha256: Sha256
    files: Annotated[tuple[FileEntry, ...], Field(min_length=1)]

    def tensors(self) -> list[tuple[FileEntry, TensorEntry]]:
        """Every tensor with its file, in id order."""
        return [(file, tensor) for file in self.files for tensor in file.tensors]

    def to_json(self) -> bytes:
        """Canonical bytes: keys in the model's order, one tensor a line, ASCII, final newline."""
        return (_pretty(self.model_dump(mode="json")) + "\n").encode("ascii")


def _pretty(value: Any, indent: str = "") -> str:
    """JSON with containers of plain values on one line, so that a tensor, a step or a shape is a line to read."""
    if not isinstance(value, (dict, list)) or _is_leaf(value):
        return json.dumps(value, allow_nan=False)
    deeper = indent + "  "
    if isinstance(value, dict):
        lines = [f"{deeper}{json.dumps(key)}: {_pretty(item, deeper)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    return "[\n" + ",\n".join(f"{deeper}{_pretty(item, deeper)}" for item in value) + f"\n{indent}]"


def _is_leaf(value: dict[str, Any] | list[Any]) -> bool:
    items = value.values() if isinstance(value, dict) else value
    return all(
        not isinstance(i, dict) and not (isinstance(i, list) and any(isinstance(j, (dict, list)) for j in i))
        for i in items
    )


def model_sha256(files: list[tuple[str, int, str]]) -> str:
    """The identity of the model's bytes: SHA-256 over a line ``path bytes sha256`` per data file, in manifest order."""
    lines = "".join(f"{path} {size} {sha}\n" for path, size, sha in files)
    return hashlib.sha256(lines.encode("ascii")).hexdigest()


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Parse and check ``manifest.json``. Raises ArtifactError MANIFEST_JSON or MANIFEST_SCHEMA."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise ArtifactError(
            Code.MANIFEST_JSON, where=where, expected=f"≤ {MAX_MANIFEST_BYTES} bytes", found=f"{len(data)}"
        )
    try:
        tree = json.loads(data.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(Code.MANIFEST_JSON, where=where, found=str(error)) from error
    _refuse_newer(tree, where)
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ArtifactError(Code.MANIFEST_SCHEMA, where=f"{where}: {place}", found=first["msg"]) from error
    _check(manifest, where)
    return manifest


def _refuse_newer(tree: Any, where: str) -> None:
    """Say that hvdc is too old before its schema stumbles over the first new key."""
    head = tree.get("format") if isinstance(tree, dict) else None
    minor = head.get("minor") if isinstance(head, dict) else None
    if isinstance(minor, int) and minor > records.MINOR:
        raise ArtifactError(
            Code.MANIFEST_SCHEMA,
            what="the artifact was written by a newer hvdc",
            where=f"{where}: format.minor",
            expected=f"≤ {records.MINOR}",
            found=str(minor),
            fix="update hvdc",
        )


def _check(m: Manifest, where: str) -> None:
    """What no single field shows. Raises ArtifactError MANIFEST_SCHEMA."""

    def require(good: bool, place: str, expected: object, found: object = "") -> None:
        if not good:
            raise ArtifactError(
                Code.MANIFEST_SCHEMA, where=f"{where}: {place}", expected=str(expected), found=str(found)
            )

    names = {t.name for _, t in m.tensors()}
    lost = [t.scale for _, t in m.tensors() if t.scale is not None and t.scale not in names]
    kinds = sum(t.bytes for _, t in m.tensors())
    identity = model_sha256([(f.path, f.bytes, f.sha256) for f in m.files])
    require(not lost, "files", "every scale to be a tensor", ", ".join(lost[:1]))
    require(m.experts in (("semantic",), ("semantic", "detail")), "experts", "semantic, then detail", m.experts)
    padding = m.totals.data_bytes - kinds
    require(m.totals.padding_bytes == padding, "totals.padding_bytes", padding, m.totals.padding_bytes)
    require(m.model_sha256 == identity, "model_sha256", identity, m.model_sha256)
    held = [t for f, t in m.tensors() if f.kind == "calibration"]
    if m.calibration is None:
        require(not held, "calibration", "an entry, for there are its tensors", "null")
    else:
        for fault in _calibration_faults(m, m.calibration, held):
            require(False, *fault)
    for fault in _decoder_faults(m):
        require(False, *fault)


def _calibration_faults(m: Manifest, c: Calibration, held: list[TensorEntry]) -> Iterator[tuple[str, object, object]]:
    """Place, expected and found of what the entry gets wrong about itself, the model or its tensors."""
    own = (m.video.frames, m.video.height, m.video.width) == (c.video.frames, c.video.height, c.video.width)
    names = [i.name for i in c.inputs]
    if m.format.minor < records.CALIBRATION_MINOR:
        yield "format.minor", f"≥ {records.CALIBRATION_MINOR}, for there is a calibration", m.format.minor
    if (c.percentile is not None) != (c.mode == "percentile"):
        yield "calibration.percentile", 'a number with mode "percentile", else null', c.percentile
    if c.other_geometry == own:
        yield "calibration.other_geometry", not own, c.other_geometry
    if len(set(names)) != len(names):
        yield "calibration.inputs", "each name once", next(name for name in names if names.count(name) > 1)
    for item in c.inputs:
        if list(item.experts) != [expert for expert in m.experts if expert in item.experts]:
            yield f"calibration.inputs: {item.name}", f"experts of {m.experts}, in order", item.experts
    sites = c.smoothing.sites if c.smoothing is not None else ()
    due = [records.ACTIVATION_SCALES_NAME, *map(smoothing_tensor, sites)]
    if [t.name for t in held] != due:
        yield "files", f"calibration tensors {due}", [t.name for t in held]
    elif held[0].shape != (len(m.steps), m.geometry.layers, len(names)):
        yield held[0].name, f"{len(m.steps)} steps × {m.geometry.layers} blocks × {len(names)} inputs", held[0].shape


def _decoder_faults(m: Manifest) -> Iterator[tuple[str, object, object]]:
    """Place, expected and found of what the entry gets wrong about itself, the model or its files."""
    opaque = [t.name for f, t in m.tensors() if "decoder" in (f.kind, t.kind)]
    if m.decoder is None:
        if opaque:
            yield "decoder", "an entry, for there are its files", "null"
        return
    if m.format.minor < records.DECODER_MINOR:
        yield "format.minor", f"≥ {records.DECODER_MINOR}, for there is a decoder", m.format.minor
    yield from decoder.faults(m.decoder)
    channels = len(m.decoder.latents_mean)
    if channels != m.geometry.out_channels:
        yield "decoder.latents_mean", f"{m.geometry.out_channels} channels, as the model gives", channels
    for axis, length in zip(("rows", "columns"), m.video.latent[1:], strict=True):
        size = getattr(m.decoder.tiles, axis)
        if size > length:
            yield f"decoder.tiles.{axis}", f"at most the {length} of the video's latent", size
    due = list(m.decoder.tensors())
    if opaque != due:
        yield "files", f"files of kind decoder with {due}", opaque
    astray = [t.name for f, t in m.tensors() if (f.kind == "decoder") != (t.kind == "decoder")]
    if astray:
        yield astray[0], "a tensor of kind decoder in a file of that kind", "another"


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return out


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the manifest, as shipped in ``hvdc/artifact/manifest.schema.json``."""
    schema = Manifest.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "hvdc artifact manifest"
    return schema
