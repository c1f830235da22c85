"""Run a model's own trajectories and keep what its GEMM inputs reach: prompts × seeds, on one or several processes."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from exporters.checkpoint import Checkpoint
from exporters.errors import CheckpointError
from exporters.model import Geometry
from exporters.prompts import Prompts, read_prompts
from exporters.schedule import Step
from hvdc.artifact import manifest as m
from hvdc.artifact.calibration import CalibrationDType
from hvdc.config import CompileConfig
from hvdc.errors import HvdcError, UsageError
from hvdc.pipeline.build import manifest_steps, source_sha256
from hvdc.pipeline.calibration_file import Calibrated, Provenance, write_calibration
from hvdc.pipeline.calibration_parts import Parts, may_replace
from hvdc.pipeline.cost import check_memory, out_of_memory
from hvdc.pipeline.latents_file import write_latents
from hvdc.pipeline.prepare import Request, open_configured, schedule_of, video_of
from hvdc.pipeline.ranks import Ranks
from hvdc.pipeline.sources import CheckpointSource
from hvdc.pipeline.tensors import pieces, value_hash
from hvdc.pipeline.workspace import partial_path
from hvdc.progress import Progress
from quant.calibration.statistics import Statistics, empty
from quant.calibration.watch import NonFiniteActivationError, run_watched
from quant.paths.host import initial_noise
from quant.paths.weights import Weights

DTYPES: dict[CalibrationDType, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class CalibrateRequest:
    """What a person asked for."""

    checkpoint: Path
    prompts: Path
    output: Path
    adapter: Path | None = None
    config: CompileConfig = field(default_factory=CompileConfig)
    prompts_limit: int | None = None
    seeds: tuple[int, ...] = (0,)
    dtype: CalibrationDType = "fp32"
    resume: bool = False
    """Go on with what an interrupted run left. With ``force``: where that is possible, else start over."""
    force: bool = False
    """Replace outputs, and start over where an interrupted run left something."""
    save_latents: Path | None = None


@dataclass(frozen=True, order=True)
class Job:
    """One trajectory: the prompt's row and the seed's place in the list."""

    prompt: int
    seed: int


@dataclass(frozen=True)
class Outcome:
    """A finished calibration."""

    calibrated: Calibrated
    steps: tuple[Step, ...]
    jobs: int
    resumed: int
    peak_device_bytes: int | None
    """Largest amount of memory in use on the GPU; None on a CPU."""


def calibrate(
    request: CalibrateRequest, ranks: Ranks, progress: Progress, say: Callable[[str], None]
) -> Outcome | None:
    """Calibrate and write ``request.output``; with several ranks, rank 0 does the writing. None on the others.

    Raises UsageError, CheckpointError, HvdcError. Nothing is written when a value is not finite. Finished trajectories
    survive an interrupt, a crash or a lost rank in ``NAME.partial``, and `resume` goes on from there.
    """
    _check_output(request)
    with (
        open_configured(request.checkpoint, request.adapter, request.config) as checkpoint,
        _open_prompts(request, checkpoint.geometry) as prompts,
    ):
        return calibrate_open(request, checkpoint, prompts, ranks, progress, say)


@contextlib.contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU, one thread in this process: a product's last bits depend on how many threads share it, and the result
    must not depend on how many cores or processes there are. More processes use more cores.
    """
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def calibrate_open(
    request: CalibrateRequest,
    checkpoint: Checkpoint,
    prompts: Prompts,
    ranks: Ranks,
    progress: Progress,
    say: Callable[[str], None],
    sha256: str | None = None,
) -> Outcome | None:
    """`calibrate`, of a checkpoint and prompts that are open. ``sha256``: the tensors' identity, where it is known."""
    geometry = checkpoint.geometry
    steps, video = schedule_of(request.config, geometry), video_of(request.config, geometry)
    jobs = [Job(*pair) for pair in itertools.product(range(len(prompts)), range(len(request.seeds)))]
    with _one_thread(ranks.device):
        for note in check_memory(geometry, video, len(steps) * len(jobs), request.dtype, ranks):
            say(note)
    identity = _identity(request, prompts, sha256)
    with (
        _one_thread(ranks.device),
        Parts(request.output, identity, ranks, resume=request.resume, discard=request.force) as parts,
    ):
        found = parts.take_over(geometry, len(steps), keep=request.save_latents is not None)
        mine = ranks.share([job for job in jobs if (job.prompt, job.seed) not in found.jobs])
        weights = Weights(CheckpointSource(checkpoint, steps), ranks.device)
        progress.start("calibrating", len(mine) * len(steps) * geometry.layers, len(mine), unit="blocks")
        own, done = empty(geometry, len(steps)), []
        try:
            for job in mine:
                embeds = torch.from_numpy(prompts.embeds[job.prompt].copy())
                statistics, latent = _run(request, weights, geometry, video, job, embeds, progress)
                own = own.merged(statistics)
                done.append((job.prompt, job.seed))
                parts.keep(own, done, None if request.save_latents is None else latent)
                progress.item_done(f"prompt {job.prompt + 1}/{len(prompts)}, seed {request.seeds[job.seed]}")
        finally:
            progress.finish()
        merged = ranks.reduce(own).merged(found.statistics)
        if not ranks.is_first:
            return None
        held = sha256 or tensors_sha256(checkpoint, progress)
        if _identity(request, prompts, sha256) != identity:
            parts.discard()
            raise CheckpointError(
                "the checkpoint changed while it was calibrated",
                where=str(request.checkpoint),
                fix="run the command again when nothing writes to it any more",
            )
        calibrated = _result(request, geometry, steps, video, prompts, held, merged)
        parts.may_replace()
        write_calibration(request.output, calibrated)
        if request.save_latents is not None:
            _write_latents(request.save_latents, jobs, parts, prompts, calibrated.provenance)
        parts.discard()
        peak = torch.cuda.max_memory_allocated(ranks.device) if ranks.device.type == "cuda" else None
        return Outcome(calibrated, steps, len(jobs), len(found.jobs), peak)


def _run(
    request: CalibrateRequest,
    weights: Weights,
    geometry: Geometry,
    video: m.Video,
    job: Job,
    embeds: torch.Tensor,
    progress: Progress,
) -> tuple[Statistics, np.ndarray[Any, Any]]:
    """One trajectory, watched: its statistics and final latent. Raises HvdcError."""
    noise = initial_noise(request.seeds[job.seed], weights.shape.in_channels, video.latent)
    where = f"prompt {job.prompt}, seed {request.seeds[job.seed]}"
    try:
        statistics, final = run_watched(
            weights, embeds, noise, DTYPES[request.dtype], lambda done, hidden: progress.advance(1)
        )
    except NonFiniteActivationError as error:
        raise HvdcError(
            f"the model computed NaN or Inf: step {error.step}, block {error.block}, {error.name}",
            where=where,
            expected="finite inputs and outputs of every GEMM",
            fix="check that checkpoint and prompts belong together; nothing was written",
        ) from error
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        raise out_of_memory(geometry, video, request.dtype, weights.device) from error
    if not bool(final.isfinite().all()):
        raise HvdcError(
            "the model's final latent holds NaN or Inf",
            where=where,
            fix="check the output heads of the checkpoint; nothing was written",
        )
    return statistics, final.cpu().numpy()


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in str(error)


def tensors_sha256(checkpoint: Checkpoint, progress: Progress) -> str:
    """Identity of the canonical tensors: reads all of them. Raises CheckpointError."""
    sizes = {name: 4 * int(np.prod(tensor.shape)) for name, tensor in checkpoint.tensors.items()}
    progress.start("hashing the checkpoint", sum(sizes.values()), 1)
    try:
        hashes = {name: value_hash(t, pieces(t), progress.advance) for name, t in checkpoint.tensors.items()}
        progress.item_done("done")
    finally:
        progress.finish()
    return source_sha256(checkpoint, hashes)


def _result(
    request: CalibrateRequest,
    geometry: Geometry,
    steps: tuple[Step, ...],
    video: m.Video,
    prompts: Prompts,
    sha256: str,
    statistics: Statistics,
) -> Calibrated:
    provenance = Provenance(
        tensors_sha256=sha256,
        geometry=m.Geometry(**asdict(geometry), rope_axis_dims=geometry.rope_axis_dims),
        steps=manifest_steps(steps),
        video=video,
        prompts=len(prompts),
        prompts_sha256=prompts.sha256,
        seeds=request.seeds,
        dtype=request.dtype,
        statistics_sha256=statistics.sha256(),
    )
    return Calibrated(provenance, statistics)


def _open_prompts(request: CalibrateRequest, geometry: Geometry) -> Prompts:
    tokens, width = geometry.text_tokens, geometry.text_width
    return read_prompts(request.prompts, text_tokens=tokens, text_width=width, limit=request.prompts_limit)


def _check_output(request: CalibrateRequest) -> None:
    """Refuse outputs that cannot be written, before any work. Raises UsageError."""
    replaces = request.force or (request.resume and may_replace(request.output))
    for path in (request.output, request.save_latents):
        if path is None:
            continue
        if not path.parent.is_dir():
            raise UsageError("the output's directory does not exist", where=str(path.parent), fix="make it first")
        if path.is_dir():
            raise UsageError("the output is a directory", where=str(path), fix="give a file name")
        if path.exists() and not path.is_file():
            raise UsageError("the output is there and is not a file", where=str(path), fix="choose another name")
        if path.resolve() in {p.resolve() for p in (request.checkpoint, request.adapter, request.prompts) if p}:
            raise UsageError("the output is one of the inputs", where=str(path), fix="choose another name")
        if path.exists() and not replaces:
            raise UsageError("the output exists", where=str(path), fix="choose another name, or --force to replace it")
    if request.save_latents is not None and request.save_latents.resolve() == request.output.resolve():
        raise UsageError("-o and --save-latents name one file", where=str(request.output), fix="give two names")
    if len(set(request.seeds)) != len(request.seeds) or not request.seeds:
        raise UsageError("the seeds must be different", found=", ".join(map(str, request.seeds)))


_NOT_OF_A_RUN = {"target", "scale_mode", "percentile", "smooth"} | {
    name for name in CompileConfig.model_fields if name.startswith(("decoder_", "aihub_"))
}
"""Settings that change nothing about a trajectory."""


def _identity(request: CalibrateRequest, prompts: Prompts, tensors_sha256: str | None) -> str:
    """Of a run, for `--resume`: the tensors by their identity where it is known, else by their files."""
    identity = {
        "tensors": tensors_sha256
        or [[str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns] for f in _files(request)],
        "config": request.config.model_dump(mode="json", exclude=_NOT_OF_A_RUN),
        "prompts": prompts.sha256,
        "seeds": request.seeds,
        "dtype": request.dtype,
        "latents": request.save_latents is not None,
        "torch": torch.__version__,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _files(request: CalibrateRequest) -> list[Path]:
    """Of checkpoint and adapter; not what a calibration writes there itself, as in `calibrate . -o c.safetensors`."""
    made = {path.absolute() for path in (request.output, request.save_latents) if path is not None}
    files = Request(request.checkpoint, None, request.adapter).inputs()
    return [f for f in files if f.absolute() not in made and f.absolute().parent not in map(partial_path, made)]


def _write_latents(path: Path, jobs: list[Job], parts: Parts, prompts: Prompts, provenance: Provenance) -> None:
    """Prompt by prompt, seed by seed."""
    values = np.stack([parts.latent((job.prompt, job.seed)) for job in jobs])
    texts, seeds = [prompts.texts[job.prompt] for job in jobs], [provenance.seeds[job.seed] for job in jobs]
    write_latents(path, values, texts, seeds, provenance)
