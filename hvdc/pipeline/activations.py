"""From prompts or a calibration file to the activation scales of a build, and to the smoothing that goes with them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exporters.checkpoint import Checkpoint
from exporters.errors import CheckpointError
from exporters.prompts import read_prompts
from exporters.schedule import Step
from hvdc.artifact.calibration import CalibrationDType, Clip, GemmInput
from hvdc.artifact.manifest import Video
from hvdc.config import CompileConfig
from hvdc.errors import UsageError
from hvdc.pipeline.activation_scales import ActivationScales
from hvdc.pipeline.build import manifest_steps
from hvdc.pipeline.cache import cache_folder
from hvdc.pipeline.calibrate import CalibrateRequest, calibrate_open, tensors_sha256
from hvdc.pipeline.calibration_file import Calibrated, read_calibration, require_same_run
from hvdc.pipeline.calibration_summary import Summary, summarize
from hvdc.pipeline.cost import check_memory, cpu_duration_s
from hvdc.pipeline.latents_file import read_latents
from hvdc.pipeline.prepare import schedule_of, video_of
from hvdc.pipeline.ranks import Ranks
from hvdc.pipeline.tensors import pieces
from hvdc.progress import Progress
from quant.calibration.modes import DEFAULT_PERCENTILE, NEEDS_HISTOGRAM, activation_scales
from quant.smooth import Rescaling, rescaled_statistics, sites, smoothing_factors
from quant.source import Float32Array


@dataclass(frozen=True)
class CalibrationChoice:
    """How a person wants the artifact calibrated: by a file, or by prompts that are run now."""

    file: Path | None = None
    prompts: Path | None = None
    prompts_limit: int | None = None
    seeds: tuple[int, ...] = (0,)
    dtype: CalibrationDType = "fp32"
    allow_geometry: bool = False
    latents: bool = False
    """The final latents of the prompts are wanted."""
    dry_run: bool = False
    """Check everything, but run no trajectory: prompts then give no scales."""


@dataclass(frozen=True)
class Planned:
    """A calibration that a dry run does not run."""

    prompts: int
    seeds: int
    steps: int
    cpu_duration_s: float | None
    """About how long it takes on this CPU; None on a GPU."""

    @property
    def trajectories(self) -> int:
        return self.prompts * self.seeds


@dataclass(frozen=True)
class Activations:
    """What calibrating gave: scales and what the statistics say, or in a dry run what would be run."""

    scales: ActivationScales | None = None
    summary: Summary | None = None
    planned: Planned | None = None
    latents: Path | None = None
    """Final latents of the trajectories, where they were wanted."""


def activations_for(
    choice: CalibrationChoice,
    config: CompileConfig,
    checkpoint: Checkpoint,
    ranks: Ranks,
    progress: Progress,
    say: Callable[[str], None],
) -> Activations:
    """The scales of a build, none where nothing was given. Raises UsageError, CheckpointError, HvdcError."""
    if choice.file is None and choice.prompts is None:
        if config.smooth is not None:
            raise UsageError(
                "smoothing needs to know the activations", where="smooth", fix="give --prompts or --calibration too"
            )
        return Activations()
    if choice.file is not None and choice.prompts is not None:
        raise UsageError("--prompts and --calibration exclude each other", fix="a calibration file is one that was run")
    _require_smoothable(config)
    if choice.file is not None:
        calibrated, latents, where = read_calibration(choice.file), None, str(choice.file)
    else:
        run = _run(choice, config, checkpoint, ranks, progress, say)
        if isinstance(run, Planned):
            return Activations(planned=run)
        (calibrated, latents), where = run, str(choice.prompts)
    steps, video = schedule_of(config, checkpoint.geometry), video_of(config, checkpoint.geometry)
    require_same_model(calibrated, checkpoint, steps, where)
    _require_same_clip(calibrated, video, choice.allow_geometry, where)
    scales = make_activations(calibrated, config, checkpoint, steps)
    summary = summarize(calibrated, config.scale_mode, scales.percentile or DEFAULT_PERCENTILE)
    return Activations(scales, summary, latents=latents)


def make_activations(
    calibrated: Calibrated, config: CompileConfig, checkpoint: Checkpoint, steps: tuple[Step, ...]
) -> ActivationScales:
    """Scales in the configured mode, with smoothing if it is configured. Raises UsageError."""
    _require_smoothable(config)
    provenance, statistics = calibrated.provenance, calibrated.statistics
    factors: dict[str, Float32Array] = {}
    if config.smooth is not None:
        factors = smoothing_of(calibrated, checkpoint, config.smooth)
        statistics = rescaled_statistics(Rescaling(checkpoint.geometry, factors), statistics)
    percentile = (config.percentile or DEFAULT_PERCENTILE) if config.scale_mode == "percentile" else None
    scales = activation_scales(statistics, steps, config.scale_mode, percentile or DEFAULT_PERCENTILE)
    video = provenance.video
    return ActivationScales(
        table=scales.table,
        inputs=tuple(
            GemmInput(
                name=i.name, per=i.per, experts=tuple("detail" if e == "detail" else "semantic" for e in i.experts)
            )
            for i in statistics.inputs
        ),
        mode=config.scale_mode,
        statistics_sha256=provenance.statistics_sha256,
        tensors_sha256=provenance.tensors_sha256,
        prompts=provenance.prompts,
        seeds=provenance.seeds,
        video=Clip(frames=video.frames, height=video.height, width=video.width),
        dtype=provenance.dtype,
        percentile=percentile,
        smoothing_strength=config.smooth,
        smoothing=factors,
    )


def _require_smoothable(config: CompileConfig) -> None:
    if config.smooth is not None and config.scale_mode in NEEDS_HISTOGRAM:
        raise UsageError(
            f"the scale mode {config.scale_mode!r} cannot be joined with smoothing",
            where="smooth",
            expected="per-step or global: the histograms are of activations that were not smoothed",
            found=config.scale_mode,
            fix="--scale-mode per-step",
        )


def smoothing_of(calibrated: Calibrated, checkpoint: Checkpoint, strength: float) -> dict[str, Float32Array]:
    """Site -> factors ``[layers, channels]``. Reads the weights behind every site."""
    geometry = checkpoint.geometry
    columns = {}
    for linear in dict.fromkeys(linear for site in sites(geometry) for linear in site.columns):
        rows = []
        for block in range(geometry.layers):
            weight = checkpoint.tensors[f"blocks.{block}.{linear}.weight"]
            rows.append(np.maximum.reduce([np.abs(piece).max(axis=0) for _, piece in pieces(weight)]))
        columns[linear] = np.stack(rows)
    return smoothing_factors(geometry, calibrated.statistics.channel_absmax, columns, strength)


def _run(
    choice: CalibrationChoice,
    config: CompileConfig,
    checkpoint: Checkpoint,
    ranks: Ranks,
    progress: Progress,
    say: Callable[[str], None],
) -> tuple[Calibrated, Path | None] | Planned:
    """Calibrate, or take the result of the same calibration from the cache. In a dry run neither.

    The final latents are kept beside every calibration, for a compile with ``--vae`` that comes later would otherwise
    run hours of trajectories again. They take little: 16 channels × 4 bytes a latent pixel and latent frame, which is
    8 MiB for a clip of 81 frames of 832 × 480.
    """
    assert choice.prompts is not None  # noqa: S101 - the caller looked
    geometry = checkpoint.geometry
    tokens, width = geometry.text_tokens, geometry.text_width
    with read_prompts(choice.prompts, text_tokens=tokens, text_width=width, limit=choice.prompts_limit) as prompts:
        if choice.dry_run:
            return _planned(choice, config, checkpoint, len(prompts), ranks, say)
        sha256 = tensors_sha256(checkpoint, progress)
        identity = {
            "tensors": sha256,
            "geometry": geometry.__dict__,
            "steps": [s.model_dump(mode="json") for s in manifest_steps(schedule_of(config, geometry))],
            "video": video_of(config, geometry).model_dump(mode="json"),
            "prompts": prompts.sha256,
            "seeds": choice.seeds,
            "dtype": choice.dtype,
            "version": 2,
        }
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        path = cache_folder("calibrations") / f"{key}.safetensors"
        latents = path.with_suffix(".latents.safetensors")
        calibrated = _kept(path, latents if choice.latents else None)
        if calibrated is not None:
            say(f"calibration taken from the cache: {path}")
            return calibrated, latents if choice.latents else None
        request = CalibrateRequest(
            checkpoint=checkpoint.path,
            prompts=choice.prompts,
            output=path,
            config=config,
            prompts_limit=choice.prompts_limit,
            seeds=choice.seeds,
            dtype=choice.dtype,
            save_latents=latents,
            resume=True,  # both: a leftover that cannot be gone on with, as after an update of PyTorch, is nobody's
            force=True,
        )
        outcome = calibrate_open(request, checkpoint, prompts, ranks, progress, say, sha256)
        assert outcome is not None  # noqa: S101 - there is one process
        return outcome.calibrated, latents if choice.latents else None


def _kept(path: Path, latents: Path | None) -> Calibrated | None:
    """What the cache holds; where ``latents`` are wanted, only together with those of the same run.

    What is damaged or does not belong together is removed, and None says that all of it is to be made again.
    """
    if not path.is_file():
        return None
    try:
        calibrated = read_calibration(path)
    except CheckpointError:
        path.unlink()
        return None
    if latents is None or _are_of(latents, calibrated):
        return calibrated
    latents.unlink(missing_ok=True)
    return None


def _are_of(latents: Path, calibrated: Calibrated) -> bool:
    try:
        held = read_latents(latents)
    except CheckpointError:
        return False
    clips = calibrated.provenance.prompts * len(calibrated.provenance.seeds)
    return held.provenance == calibrated.provenance and len(held.values) == clips


def _planned(
    choice: CalibrationChoice,
    config: CompileConfig,
    checkpoint: Checkpoint,
    prompts: int,
    ranks: Ranks,
    say: Callable[[str], None],
) -> Planned:
    """Raises HvdcError where a GPU cannot hold it."""
    geometry = checkpoint.geometry
    steps, video = len(schedule_of(config, geometry)), video_of(config, geometry)
    total = steps * prompts * len(choice.seeds)
    for note in check_memory(geometry, video, total, choice.dtype, ranks):
        say(note)
    duration_s = cpu_duration_s(geometry, video, total) if ranks.device.type == "cpu" else None
    return Planned(prompts, len(choice.seeds), steps, duration_s)


def require_same_model(calibrated: Calibrated, checkpoint: Checkpoint, steps: tuple[Step, ...], where: str) -> None:
    """Sizes and schedule, which are known at once. The build compares the tensors' identity when it has read them."""
    due = manifest_steps(steps)
    require_same_run(calibrated.provenance, checkpoint.geometry, due, "the calibration is", where)


def _require_same_clip(calibrated: Calibrated, video: Video, allow: bool, where: str) -> None:
    held = calibrated.provenance.video
    if held != video and not allow:
        raise UsageError(
            "the calibration was run at another size",
            where=where,
            expected=f"{video.frames} frames of {video.width} × {video.height}",
            found=f"{held.frames} frames of {held.width} × {held.height}",
            fix="calibrate at the size that is compiled, or --allow-geometry to use it all the same (it is recorded)",
        )
