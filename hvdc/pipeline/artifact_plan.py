"""Which file holds which tensor, where, and from what it is made: decided from the geometry, before a weight is read.

The same plan drives the dry run, the compiler and the splat artifact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import get_args

from exporters import model
from exporters.model import Geometry
from hvdc.artifact.fields import Expert
from hvdc.artifact.manifest import DTypeName, FileKind, TensorKind, TileOrderName, Totals
from hvdc.artifact.records import DTYPE_BYTES, DType
from hvdc.pipeline.activation_scales import ActivationScales
from layouts.grid import TileGrid
from layouts.order import HMX_INT8_K4
from layouts.regions import Item, Placement, Region, align_up, group_items, plan_region

COLUMN_MULTIPLE = HMX_INT8_K4.col_count
"""Per-column vectors (scales, biases) are padded to whole tiles, so that a kernel's epilogue never reads past them."""

ADALN, HEAD_TABLE = "schedule.adaln", "schedule.head"
ROPE = ("schedule.rope_freqs_frame", "schedule.rope_freqs_row", "schedule.rope_freqs_col")
EXPERTS: tuple[Expert, Expert] = ("semantic", "detail")


class Role(Enum):
    """How a stored tensor comes about."""

    WEIGHT = "quantised and tiled from its source; fills its scale too"
    SCALE = "filled by its weight"
    COPY = "FP32 copy of its source, zero-padded"
    TABLE = "computed from the schedule and the time embedders"
    CALIBRATION = "given: what calibration found"
    OPAQUE = "given: a file of the decoder"


@dataclass(frozen=True)
class TensorPlan:
    """One stored tensor. ``source`` is the canonical tensor that a WEIGHT or COPY is made from.

    ``times_alpha``: the adapter's alpha / r is folded into this weight's scales.
    """

    name: str
    role: Role
    kind: TensorKind
    shape: tuple[int, ...]
    padded_shape: tuple[int, ...]
    dtype: DTypeName = "float32"
    tile_order: TileOrderName = "row-major"
    source: str | None = None
    linear: str | None = None
    block: int | None = None
    expert: Expert | None = None
    scale: str | None = None
    times_alpha: bool = False

    @property
    def bytes(self) -> int:
        return math.prod(self.padded_shape) * DTYPE_BYTES[DType[self.dtype.upper()]]


@dataclass(frozen=True)
class FilePlan:
    """One data file: its tensors in order, and where each lies."""

    path: str
    kind: FileKind
    first_block: int | None
    block_count: int
    tensors: tuple[TensorPlan, ...]
    region: Region


@dataclass(frozen=True)
class ArtifactPlan:
    """Every data file, in manifest order."""

    geometry: Geometry
    files: tuple[FilePlan, ...]

    def tensors(self) -> Iterator[TensorPlan]:
        for file in self.files:
            yield from file.tensors

    def mapped_bytes(self) -> int:
        """Bytes that an NPU session maps: all regions and adapters."""
        return sum(f.region.bytes for f in self.files if f.kind in ("region", "adapter"))

    def totals(self) -> Totals:
        """Bytes by kind, padding and sum."""
        kinds: dict[str, int] = dict.fromkeys(get_args(TensorKind), 0)
        for tensor in self.tensors():
            kinds[tensor.kind] += tensor.bytes
        return Totals(
            **{f"{kind}_bytes": total for kind, total in kinds.items()},
            padding_bytes=sum(f.region.padding_bytes for f in self.files),
            data_bytes=sum(f.region.bytes for f in self.files),
        )


def plan_artifact(
    geometry: Geometry,
    steps: int,
    region_cap_bytes: int,
    activations: ActivationScales | None = None,
    opaque: Mapping[str, tuple[str, int]] | None = None,
) -> ArtifactPlan:
    """Plan the files of an artifact, calibrated if there are ``activations``, with a decoder if there is one:
    ``opaque`` gives its files' tensors, each with path and bytes.

    Raises layouts.regions.RegionTooLargeError for a block above the cap.
    """
    files = [
        _file(f"regions/block-{b:03d}.bin", "region", b, 1, list(_block_tensors(geometry, b)), region_cap_bytes)
        for b in range(geometry.layers)
    ]
    files += _adapter_files(geometry, region_cap_bytes)
    files.append(_file("host/shared.bin", "host", None, 0, list(_copies(_patch_sources(geometry), None))))
    for expert in EXPERTS[: len(geometry.experts)]:
        sources = _host_sources(geometry, expert)
        files.append(_file(f"host/{expert}.bin", "host", None, 0, list(_copies(sources, expert))))
    files.append(_file("schedule/tables.bin", "schedule", None, 0, list(_tables(geometry, steps))))
    if activations is not None:
        files.append(_file("calibration/scales.bin", "calibration", None, 0, list(_calibration(activations))))
    files += [_opaque(name, path, size) for name, (path, size) in (opaque or {}).items()]
    return ArtifactPlan(geometry, tuple(files))


def _opaque(name: str, path: str, size: int) -> FilePlan:
    """A file as it is, without padding, so that other tools can read it."""
    tensor = TensorPlan(name, Role.OPAQUE, "decoder", (size,), (size,), dtype="uint8")
    return FilePlan(path, "decoder", None, 0, (tensor,), Region(path, size, (Placement(name, 0, size),)))


def _file(
    path: str,
    kind: FileKind,
    first_block: int | None,
    block_count: int,
    tensors: list[TensorPlan],
    cap: int | None = None,
) -> FilePlan:
    region = plan_region(path, [Item(t.name, t.bytes) for t in tensors], cap)
    return FilePlan(path, kind, first_block, block_count, tuple(tensors), region)


def _vector(name: str, role: Role, kind: TensorKind, n: int, **more: object) -> TensorPlan:
    return TensorPlan(name, role, kind, (n,), (align_up(n, COLUMN_MULTIPLE),), **more)  # type: ignore[arg-type]


def _weight(name: str, kind: TensorKind, n: int, k: int, **more: object) -> TensorPlan:
    grid = TileGrid(HMX_INT8_K4, n, k)
    return TensorPlan(
        name, Role.WEIGHT, kind, (n, k), (grid.padded_n, grid.padded_k), dtype="int8", tile_order="hmx-int8-k4",
        source=name, scale=f"{name}_scale", **more,  # type: ignore[arg-type]
    )  # fmt: skip


def _block_tensors(g: Geometry, block: int) -> Iterator[TensorPlan]:
    """Attention weights, then the feed-forward pair (contiguous, so that it can be staged alone), then the vectors."""
    prefix = f"blocks.{block}"
    linears = [*model.ATTENTION_LINEARS, *model.FFN_LINEARS]
    for linear in linears:
        kind: TensorKind = "ffn_base" if linear in model.FFN_LINEARS else "attention_base"
        yield _weight(f"{prefix}.{linear}.weight", kind, *g.linear_shape(linear), linear=linear, block=block)
    for linear in linears:
        name = f"{prefix}.{linear}.weight_scale"
        yield _vector(name, Role.SCALE, "base_scale", g.linear_shape(linear)[0], linear=linear, block=block)
    for linear in linears:
        name = f"{prefix}.{linear}.bias"
        kind = "block_other" if linear in model.FFN_LINEARS else "attention_base"
        yield _vector(name, Role.COPY, kind, g.linear_shape(linear)[0], source=name, linear=linear, block=block)
    for name in model.norm_gains(g, prefix):
        yield TensorPlan(name, Role.COPY, "block_other", (g.width,), (g.width,), source=name, block=block)


def _adapter_tensors(g: Geometry, block: int) -> Iterator[TensorPlan]:
    factors = []
    for linear in model.ATTENTION_LINEARS:
        n, k = g.linear_shape(linear)
        for factor, (rows, cols) in {"lora_A": (g.rank, k), "lora_B": (n, g.rank)}.items():
            name = f"blocks.{block}.{linear}.{factor}.weight"
            factors.append(
                _weight(
                    name,
                    "adapter",
                    rows,
                    cols,
                    linear=linear,
                    block=block,
                    expert="detail",
                    times_alpha=factor == "lora_B",
                )
            )
    yield from factors
    for f in factors:
        yield _vector(
            f"{f.name}_scale", Role.SCALE, "adapter", f.shape[0], linear=f.linear, block=block, expert="detail"
        )


def _adapter_files(g: Geometry, cap: int) -> list[FilePlan]:
    """As few regions as fit under the cap: an NPU session has a limited number of mappings."""
    if not g.rank:
        return []
    plans = {b: list(_adapter_tensors(g, b)) for b in range(g.layers)}
    groups = [(str(b), [Item(t.name, t.bytes) for t in tensors]) for b, tensors in plans.items()]
    starts = [int(name) for name, _ in group_items(groups, cap)]
    files = []
    for i, (start, stop) in enumerate(zip(starts, [*starts[1:], g.layers], strict=True)):
        tensors = [t for b in range(start, stop) for t in plans[b]]
        files.append(_file(f"adapters/detail-{i:03d}.bin", "adapter", start, stop - start, tensors, cap))
    return files


def _patch_sources(g: Geometry) -> dict[str, tuple[int, ...]]:
    return {n: s for n, s in model.base_tensors(g).items() if n.startswith("patch_embedding.")}


def _host_sources(g: Geometry, expert: str) -> dict[str, tuple[int, ...]]:
    """Text projection and output head of one expert: what the CPU runs in FP32."""
    prefixes = (f"{model.EMBEDDER[expert]}.{model.TEXT_EMBEDDER}.", f"{model.HEAD[expert]}.")
    return {n: s for n, s in model.canonical_tensors(g).items() if n.startswith(prefixes)}


def _copies(sources: dict[str, tuple[int, ...]], expert: Expert | None) -> Iterator[TensorPlan]:
    for name, shape in sources.items():
        yield TensorPlan(name, Role.COPY, "host", shape, shape, source=name, expert=expert)


def _tables(g: Geometry, steps: int) -> Iterator[TensorPlan]:
    for name, shape in ((ADALN, (steps, g.layers, 6, g.width)), (HEAD_TABLE, (steps, 2, g.width))):
        yield TensorPlan(name, Role.TABLE, "schedule", shape, shape)
    for name, dim in zip(ROPE, g.rope_axis_dims, strict=True):
        yield TensorPlan(name, Role.TABLE, "schedule", (dim // 2,), (dim // 2,), dtype="float64")


def _calibration(activations: ActivationScales) -> Iterator[TensorPlan]:
    for name, values in activations.tensors().items():
        yield TensorPlan(name, Role.CALIBRATION, "calibration", values.shape, values.shape)
