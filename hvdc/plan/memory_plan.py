"""Does it fit: weights and working memory of every configuration against what a target has."""

from __future__ import annotations

from dataclasses import dataclass

from hvdc.artifact.manifest import Manifest
from hvdc.plan.memory import Row, WeightBytes, memory_table
from hvdc.plan.stages import SLOTS, Mode
from hvdc.plan.working_memory import (
    Buffer,
    ClipSizes,
    exchange_bytes,
    gpu_engine,
    gpu_largest_bytes,
    npu_engine,
    rotations_bytes,
    slot_bytes,
    total_bytes,
    working_buffers,
)
from hvdc.targets import TargetDescription, load_target

SHARED_KINDS = ("region", "adapter")
"""Files that both engines read from shared memory; the others are the CPU's, mapped from where they are."""


@dataclass(frozen=True)
class Check:
    """Something that has a limit. ``source``: who says what the limit is."""

    what: str
    needed_bytes: int
    limit_bytes: int
    source: str

    @property
    def spare_bytes(self) -> int:
        """What is left; negative: what is lacking."""
        return self.limit_bytes - self.needed_bytes

    @property
    def fits(self) -> bool:
        return self.spare_bytes >= 0


@dataclass(frozen=True)
class Configuration:
    """One way to run: what it holds, part by part, and whether that fits."""

    name: str
    parts: tuple[Buffer, ...]
    resident: Check
    mapped: Check

    @property
    def fits(self) -> bool:
        return self.resident.fits and self.mapped.fits


@dataclass(frozen=True)
class MemoryPlan:
    """``weights``: the paper's Table 3, and ``working``: its working buffers at this length of clip. ``verdicts``: of
    each row of ``weights`` with the working buffers. ``modes``: what this project's runtime allocates in each mode."""

    frames: int
    sizes: ClipSizes
    target: TargetDescription
    weights: tuple[Row, ...]
    working: tuple[Buffer, ...]
    verdicts: tuple[Configuration, ...]
    modes: tuple[Configuration, ...]
    npu_buffers: tuple[Buffer, ...]
    gpu_buffers: tuple[Buffer, ...]
    limits: tuple[Check, ...]
    """Of single buffers."""
    has_decoder: bool

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        return (*self.verdicts, *self.modes)


def plan_memory(manifest: Manifest, frames: int | None = None) -> MemoryPlan:
    """The plan for clips of the artifact's own length or of ``frames``.

    Raises UsageError for an impossible number of frames, and for a target that this hvdc does not know.
    """
    target = load_target(manifest.target.name)
    sizes = ClipSizes.of(manifest, frames)
    working = working_buffers(sizes)
    rows = memory_table(WeightBytes(manifest.totals, manifest.parameters))
    npu, gpu = npu_engine(sizes), gpu_engine(sizes)
    return MemoryPlan(
        frames=manifest.video.frames if frames is None else frames,
        sizes=sizes,
        target=target,
        weights=tuple(rows),
        working=tuple(working),
        verdicts=tuple(_verdict(row, total_bytes(working), manifest, target) for row in rows),
        modes=tuple(_mode(mode, sizes, manifest, target) for mode in SLOTS),
        npu_buffers=tuple(npu),
        gpu_buffers=tuple(gpu),
        limits=(
            Check(
                "the largest shared file",
                max(f.bytes for f in manifest.files if f.kind in SHARED_KINDS),
                manifest.target.region_cap_bytes,
                target.region_cap_bytes.source,
            ),
            Check(
                "the GPU's largest buffer",
                gpu_largest_bytes(sizes),
                target.opencl_buffer_bytes.value,
                target.opencl_buffer_bytes.source,
            ),
        ),
        has_decoder=_decoder_bytes(manifest) > 0,
    )


def _verdict(row: Row, working: int, manifest: Manifest, target: TargetDescription) -> Configuration:
    parts = (Buffer("weights", row.weight_bytes), Buffer("transient", row.transient_bytes), Buffer("working", working))
    return Configuration(row.name, parts, _resident(parts, target), _mapped(row.copy_bytes, manifest, target))


def _mode(mode: Mode, sizes: ClipSizes, manifest: Manifest, target: TargetDescription) -> Configuration:
    """As `hvdc_runner` counts before it reads a weight, and what it does not count: other files and the decoder."""
    weights = sum(f.bytes for f in manifest.files if f.kind in SHARED_KINDS)
    slots = SLOTS[mode] * slot_bytes(sizes)
    in_flight = slots + (exchange_bytes(sizes) if mode == "hetero-tensor" else 0)
    others = sum(f.bytes for f in manifest.files if f.kind not in (*SHARED_KINDS, "decoder"))
    parts = (
        Buffer("weights", weights, "shared files"),
        Buffer("in flight", in_flight, "places of videos, and what linears exchange"),
        Buffer("NPU", total_bytes(npu_engine(sizes)), "buffers of the NPU's executor"),
        Buffer("GPU", 0 if mode == "npu" else total_bytes(gpu_engine(sizes)), "buffers of the GPU's executor"),
        Buffer("CPU", others, "files that the CPU reads"),
        Buffer("decoder", _decoder_bytes(manifest), "its binaries, and what their compiler predicted"),
    )
    tables = sum(f.bytes for f in manifest.files if f.kind == "schedule")
    mapped = (
        weights + slots + tables + rotations_bytes(sizes)
    )  # docs/HEXAGON.md; the executor's own buffers are in its heap
    return Configuration(mode, parts, _resident(parts, target), _mapped(mapped, manifest, target))


def _decoder_bytes(manifest: Manifest) -> int:
    """Of the binaries with what each was predicted to need; 0 without any."""
    if manifest.decoder is None:
        return 0
    sizes = {tensor.name: tensor.bytes for _, tensor in manifest.tensors()}
    return sum(b.predicted_graph_bytes + sizes[b.binary] for b in manifest.decoder.binaries)


def _resident(parts: tuple[Buffer, ...], target: TargetDescription) -> Check:
    limit = target.usable_memory_bytes
    return Check("memory", sum(part.bytes for part in parts), limit.value, limit.source)


def _mapped(needed_bytes: int, manifest: Manifest, target: TargetDescription) -> Check:
    budget = manifest.target.mapping_budget_bytes
    return Check("what one session of the NPU maps", needed_bytes, budget, target.mapping_budget_bytes.source)
