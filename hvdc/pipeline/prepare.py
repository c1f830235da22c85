"""Everything that is decided, and everything that can be refused, before the first weight is read.

checkpoint → schedule → plan of files → needs (disk, memory) → checks.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from exporters import model
from exporters.checkpoint import Checkpoint, open_checkpoint
from exporters.errors import CheckpointError
from exporters.model import Geometry
from exporters.schedule import DCM_BOUNDARY, DCM_TIMESTEPS, Step, make_schedule, unused_expert_notes
from exporters.split import DEFAULT_MAX_LEFT_OUT_ENERGY
from hvdc import __version__
from hvdc.artifact.fields import Expert
from hvdc.artifact.manifest import Parameters, Video
from hvdc.config import CompileConfig
from hvdc.errors import HvdcError, UsageError
from hvdc.pipeline.activation_scales import ActivationScales
from hvdc.pipeline.artifact_plan import EXPERTS, ArtifactPlan, Role, plan_artifact
from hvdc.pipeline.calibration_file import Provenance
from hvdc.pipeline.decoder_parts import DecoderParts
from hvdc.pipeline.workspace import check_output, partial_path
from hvdc.targets import TargetDescription
from quant.weights import SMALLEST_SCALE

VAE_STRIDES = (4, 8, 8)
"""Frames, rows, columns of video per latent position. Source: Wan2.1 VAE, wan/modules/vae.py."""

MANIFEST_ALLOWANCE_BYTES = 4 << 20
"""Room for manifest.json and index.bin, about 0.9 MB at full size."""

BASE_MEMORY_BYTES = 160 << 20
"""Interpreter and libraries, as measured by `make bench-compile`."""

ANSWER_BASE_BYTES, ANSWER_WEIGHT_COPIES_BYTES = 80 << 20, 40
"""Computing the stored answer, at the end: PyTorch beside these, and bytes for each weight of the largest linear."""


@dataclass(frozen=True)
class Request:
    """What a person asked for."""

    checkpoint: Path | None
    """None where the tensors do not come from files."""
    output: Path | None
    """None for a dry run without `-o`."""
    adapter: Path | None = None
    config: CompileConfig = field(default_factory=CompileConfig)
    jobs: int = 1
    resume: bool = False
    force: bool = False
    activations: ActivationScales | None = None
    """What calibration found; None leaves the artifact uncalibrated."""
    decoder: DecoderParts | None = None
    """The VAE's decoder; None leaves the artifact without one."""
    latents: Provenance | None = None
    """The run that the decoder's calibration latents say they are of; it decides no byte."""

    def inputs(self) -> list[Path]:
        """The files of checkpoint and adapter; not what hvdc itself writes there, as in `compile . -o out.hvdc`."""
        paths = [path for path in (self.checkpoint, self.adapter) if path is not None]
        # An index of shards is a file that stands for its folder.
        roots = [path.parent if path.is_file() and path.suffix == ".json" else path for path in paths]
        files = [f for root in roots for f in ([root] if root.is_file() else _files_below(root))]
        made = (".hvdc", ".hvdc.partial")
        return [f for f in files if not any(parent.name.endswith(made) for parent in f.parents)]


def _files_below(folder: Path) -> list[Path]:
    """All files in a folder, through links too, each folder once."""
    found, seen = [], set()
    for at, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(at)
        if real in seen:
            folders.clear()  # a link led back
            continue
        seen.add(real)
        found += [path for name in names if (path := Path(at, name)).is_file()]
    return sorted(found)


@dataclass(frozen=True)
class Needs:
    """What the build takes, in bytes."""

    disk_bytes: int
    memory_bytes: int
    """Estimated peak resident memory."""


@dataclass(frozen=True)
class Prepared:
    """A build that can begin."""

    request: Request
    checkpoint: Checkpoint
    config: CompileConfig
    """The effective configuration: what the request left open is filled in."""
    target: TargetDescription
    video: Video
    steps: tuple[Step, ...]
    plan: ArtifactPlan
    needs: Needs
    notes: tuple[str, ...]
    """Sentences for the person, beside the checkpoint's own report."""

    @property
    def geometry(self) -> Geometry:
        return self.checkpoint.geometry


def prepare(request: Request) -> Prepared:
    """Open, decide, check. Raises UsageError, CheckpointError, RegionTooLargeError or HvdcError; writes nothing."""
    if request.checkpoint is None:
        raise ValueError("prepare opens a checkpoint; decide takes an open one")
    if request.output is not None:
        check_output(request.output, force=request.force, resume=request.resume)
    request.config.described_target()
    checkpoint = open_configured(request.checkpoint, request.adapter, request.config)
    try:
        return decide(request, checkpoint)
    except BaseException:
        checkpoint.close()
        raise


def open_configured(path: Path, adapter: Path | None, config: CompileConfig) -> Checkpoint:
    """Open a checkpoint as a configuration says. Raises CheckpointError."""
    return open_checkpoint(
        path,
        adapter=adapter,
        lora_alpha=config.lora_alpha,
        rank=config.rank,
        max_left_out_energy=_left_out_limit(config),
        heads=config.heads,
        text_tokens=config.text_tokens,
    )


def _answer_bytes(geometry: Geometry) -> int:
    return ANSWER_BASE_BYTES + ANSWER_WEIGHT_COPIES_BYTES * geometry.width * geometry.ffn_width


def decide(request: Request, checkpoint: Checkpoint) -> Prepared:
    """Plan the build of an open checkpoint. Raises as `prepare` does."""
    target = request.config.described_target()
    geometry = checkpoint.geometry
    _check_alpha(checkpoint)
    steps = schedule_of(request.config, geometry)
    video = video_of(request.config, geometry)
    if request.activations is not None:
        run_by: list[Expert] = ["detail" if step.expert == "detail" else "semantic" for step in steps]
        request.activations.check(run_by, geometry.layers, EXPERTS[: len(geometry.experts)])
    opaque = request.decoder.sizes() if request.decoder is not None else None
    plan = plan_artifact(geometry, len(steps), target.region_cap_bytes.value, request.activations, opaque)
    _check_all_used(plan, checkpoint)
    largest = max(f.region.bytes for f in plan.files if f.kind != "decoder")
    needs = Needs(
        disk_bytes=plan.totals().data_bytes + MANIFEST_ALLOWANCE_BYTES,
        memory_bytes=BASE_MEMORY_BYTES + max((request.jobs + 1) * largest, _answer_bytes(geometry)),
    )
    if request.output is not None:
        _check_disk(request.output, needs)
    config = request.config.model_copy(
        update={
            "timesteps": tuple(s.timestep for s in steps),
            "expert_boundary": _boundary(request.config),
            "rank": geometry.rank or None,
            "lora_alpha": geometry.alpha_over_rank * geometry.rank if geometry.rank else None,
            "max_left_out_energy": _left_out_limit(request.config),
            "heads": geometry.heads,
            "text_tokens": geometry.text_tokens,
        }
    )
    notes = _mapping_notes(plan, target) + unused_expert_notes(
        steps, geometry.experts, boundary=_boundary(request.config)
    )
    return Prepared(request, checkpoint, config, target, video, steps, plan, needs, notes)


def with_decoder_bytes(prepared: Prepared, size: int) -> Prepared:
    """Needs of a build whose decoder is not made yet. Raises HvdcError where the disk has no room for all of it."""
    needs = replace(prepared.needs, disk_bytes=prepared.needs.disk_bytes + size)
    if prepared.request.output is not None:
        _check_disk(prepared.request.output, needs)
    return replace(prepared, needs=needs)


def schedule_of(config: CompileConfig, geometry: Geometry) -> tuple[Step, ...]:
    timesteps = DCM_TIMESTEPS if config.timesteps is None else config.timesteps
    try:
        return make_schedule(timesteps, boundary=_boundary(config), experts=geometry.experts)
    except CheckpointError as error:  # the list comes from the configuration, so it is not the checkpoint that is bad
        raise UsageError(
            error.what, where="timesteps", expected=error.expected, found=error.found, fix=error.fix
        ) from error


def _boundary(config: CompileConfig) -> int:
    return DCM_BOUNDARY if config.expert_boundary is None else config.expert_boundary


def _check_alpha(checkpoint: Checkpoint) -> None:
    """alpha / rank is multiplied into FP32 scales, which are positive normal numbers. Raises CheckpointError."""
    ratio = checkpoint.geometry.alpha_over_rank
    if checkpoint.geometry.rank and ratio <= 0:
        raise CheckpointError(
            "the adapter's alpha is negative, and it is folded into scales, which are positive",
            where=str(checkpoint.path),
            expected="alpha / rank above 0",
            found=f"{ratio:g}",
            fix="negate lora_B and alpha when saving the adapter: that is the same adapter",
        )
    with np.errstate(over="ignore"):
        stored = np.float32(ratio)
    if checkpoint.geometry.rank and not SMALLEST_SCALE <= stored < np.inf:
        raise CheckpointError(
            "the adapter's alpha / rank cannot be folded into its scales",
            where=str(checkpoint.path),
            expected="a positive number that FP32 holds",
            found=f"{ratio:g}, from {checkpoint.report.alpha_source}",
            fix="give the alpha that it was trained with: --lora-alpha",
        )


def _mapping_notes(plan: ArtifactPlan, target: TargetDescription) -> tuple[str, ...]:
    mapped, budget = plan.mapped_bytes(), target.mapping_budget_bytes.value
    if mapped <= budget:
        return ()
    return (
        f"regions and adapters are {mapped:,} bytes, more than the {budget:,} that one NPU session of {target.name} "
        "can map: this model does not fit that phone",
    )


def _left_out_limit(config: CompileConfig) -> float:
    return DEFAULT_MAX_LEFT_OUT_ENERGY if config.max_left_out_energy is None else config.max_left_out_energy


def video_of(config: CompileConfig, geometry: Geometry) -> Video:
    """Latent sizes and token count. Raises UsageError for a clip that the model cannot position."""
    latent = latent_shape(config.frames, config.height, config.width)
    for size, patch, name in zip(latent, geometry.patch, ("frames", "height", "width"), strict=True):
        if size % patch:
            raise UsageError(
                f"the video's {name} does not divide into the model's patches",
                where=name,
                expected=f"a latent size that is a multiple of {patch}",
                found=str(size),
            )
        if size // patch > geometry.rope_max_positions:
            raise UsageError(
                f"the video's {name} is beyond the model's positions",
                where=name,
                expected=f"at most {geometry.rope_max_positions} positions",
                found=str(size // patch),
            )
    tokens = tokens_of(geometry, config.frames, config.height, config.width)
    return Video(frames=config.frames, height=config.height, width=config.width, latent=latent, tokens=tokens)


def latent_shape(frames: int, height: int, width: int) -> tuple[int, int, int]:
    """Latent frames, rows and columns of a clip."""
    t, h, w = VAE_STRIDES
    return (frames - 1) // t + 1, height // h, width // w


def tokens_of(geometry: Geometry, frames: int, height: int, width: int) -> int:
    """Tokens of a clip."""
    latent = latent_shape(frames, height, width)
    return math.prod(size // patch for size, patch in zip(latent, geometry.patch, strict=True))


def table_sources(geometry: Geometry) -> list[str]:
    """Canonical tensors that exist in the artifact only as tables: modulations and time embedders."""
    time_embedders = tuple(
        f"{model.EMBEDDER[expert]}.{linear}." for expert in geometry.experts for linear in model.TIME_EMBEDDER_LINEARS
    )
    return [
        name
        for name in model.canonical_tensors(geometry)
        if name.endswith("scale_shift_table") or name.startswith(time_embedders)
    ]


def _check_all_used(plan: ArtifactPlan, checkpoint: Checkpoint) -> None:
    """No silent no-op: what the plan reads is exactly what the checkpoint holds."""
    used = {t.source for t in plan.tensors() if t.role in (Role.WEIGHT, Role.COPY)} | {*table_sources(plan.geometry)}
    if used != set(checkpoint.tensors):
        odd = sorted(str(name) for name in used ^ set(checkpoint.tensors))
        raise HvdcError(
            "the plan does not use each tensor of the checkpoint",
            found=", ".join(odd[:8]),
            fix="this is a fault of hvdc: report it, with the checkpoint's layout",
        )


def _check_disk(output: Path, needs: Needs) -> None:
    """Refuse a disk without room; what an unfinished build holds already counts as room."""
    partial = partial_path(output)
    held = sum(f.stat().st_size for f in partial.rglob("*") if f.is_file()) if partial.is_dir() else 0
    require_room(output.parent, needs.disk_bytes, "the artifact", "choose another -o", held)


def require_room(folder: Path, size: int, what: str, otherwise: str, held: int = 0) -> None:
    """``held``: bytes that lie there and are a part of ``what`` already. Raises HvdcError."""
    free = shutil.disk_usage(folder).free + held
    if free < size:
        raise HvdcError(
            f"the disk has too little room for {what}",
            where=str(folder),
            expected=f"{size:,} bytes",
            found=f"{free:,} bytes free",
            fix=f"make room, or {otherwise}",
        )


def parameters(g: Geometry) -> Parameters:
    """Parameter counts from the canonical shapes."""
    sizes = {name: math.prod(shape) for name, shape in model.base_tensors(g).items()}
    return Parameters(
        base=sum(sizes.values()),
        text_embedder=sum(size for name, size in sizes.items() if f".{model.TEXT_EMBEDDER}." in name),
        ffn_pair=sum(math.prod(g.linear_shape(linear)) for linear in model.FFN_LINEARS),
    )


def fingerprint(prepared: Prepared) -> str:
    """Identity of a build for `--resume`: inputs by path, size and time of change; configuration; plan; activation
    scales; versions."""
    files = [(f.resolve(), f.stat()) for f in prepared.request.inputs()]
    activations = prepared.request.activations
    identity = {
        "inputs": [[os.fspath(path), status.st_size, status.st_mtime_ns] for path, status in files],
        "config": prepared.config.model_dump(mode="json"),
        "plan": [[f.path, f.region.bytes, len(f.tensors)] for f in prepared.plan.files],
        "activations": activations.sha256() if activations is not None else None,
        "decoder": prepared.request.decoder.sha256() if prepared.request.decoder is not None else None,
        "versions": [__version__, np.__version__],
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
