"""What each engine's arithmetic costs: paths against FP32 over prompts and seeds, on hidden states, latents and
frames."""

from __future__ import annotations

import importlib
import itertools
import math
import statistics as stats
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from exporters.checkpoint import Checkpoint
from exporters.prompts import Prompts, read_prompts
from exporters.schedule import Step
from hvdc.artifact.manifest import Video
from hvdc.artifact.reader import open_artifact
from hvdc.config import CalibrationMode, CompileConfig
from hvdc.errors import HvdcError, UsageError
from hvdc.pipeline.activations import require_same_model, smoothing_of
from hvdc.pipeline.calibration_file import Calibrated, read_calibration
from hvdc.pipeline.decode import Decoder
from hvdc.pipeline.prepare import open_configured, schedule_of, video_of
from hvdc.pipeline.progress import Progress
from hvdc.pipeline.ranks import Ranks
from hvdc.pipeline.sources import ArtifactSource, CheckpointSource
from quant import frames as frame_metrics
from quant.calibration.modes import NEEDS_HISTOGRAM, activation_scales
from quant.paths.host import initial_noise
from quant.paths.trajectory import NumericPath, Trajectory, fp32, gpu, hetero, npu
from quant.paths.weights import Weights
from quant.quality import Curve, compare
from quant.scales import Scales
from quant.smooth import Rescaling, rescaled_statistics

REFERENCE = "fp32"
Frames = npt.NDArray[np.float32]
Task = Callable[[Frames, str], Mapping[str, float]]


@dataclass(frozen=True)
class EvaluateRequest:
    """What a person asked for."""

    checkpoint: Path
    prompts: Path
    calibration: Path | None = None
    artifact: Path | None = None
    adapter: Path | None = None
    config: CompileConfig = field(default_factory=CompileConfig)
    modes: tuple[CalibrationMode, ...] = ("per-step",)
    cuts: tuple[int, ...] = ()
    smooth: tuple[float, ...] = ()
    prompts_limit: int | None = None
    seeds: tuple[int, ...] = (0,)
    vae: Path | None = None
    task: str | None = None
    """A module with ``check(frames [T, H, W, 3] in 0 … 1, prompt) -> {name: number}``."""


@dataclass(frozen=True)
class Row:
    """One path's result. dB values are of energies summed over all clips; frame metrics are means over clips."""

    path: str
    curve: Curve | None
    """None for the reference itself."""
    psnr_db: float | None = None
    ssim: float | None = None
    lpips: float | None = None
    task: Mapping[str, float] = field(default_factory=dict)

    @property
    def latent_error(self) -> float | None:
        """Median of ‖z − z_ref‖ / ‖z_ref‖."""
        return None if self.curve is None else stats.median(self.curve.latent_error)


@dataclass(frozen=True)
class Evaluation:
    """All rows, the reference first."""

    rows: tuple[Row, ...]
    clips: int
    video: Video
    layers: int
    steps: tuple[Step, ...]
    calibrated: Calibrated | None
    scales: Mapping[str, Scales]
    notes: tuple[str, ...]


Sink = Callable[[str, str, int, Frames], None]
"""Called with path, prompt, number of the seed and decoded frames."""


def evaluate(request: EvaluateRequest, ranks: Ranks, progress: Progress, sink: Sink | None = None) -> Evaluation:
    """Run every path on every prompt and seed. Raises UsageError, CheckpointError, HvdcError."""
    task = None if request.task is None else load_task(request.task)
    if request.vae is not None:
        try:
            frame_metrics.require_libraries()
        except frame_metrics.MissingLibraryError as error:
            raise HvdcError(str(error), fix=error.fix) from error
    if request.vae is None and (task is not None or sink is not None):
        raise UsageError("frames are needed for this, and no decoder was given", fix="add --vae DIR")
    with ExitStack() as stack:
        checkpoint = stack.enter_context(open_configured(request.checkpoint, request.adapter, request.config))
        g = checkpoint.geometry
        prompts = stack.enter_context(
            read_prompts(
                request.prompts, text_tokens=g.text_tokens, text_width=g.text_width, limit=request.prompts_limit
            )
        )
        steps, video = schedule_of(request.config, g), video_of(request.config, g)
        calibrated = None if request.calibration is None else read_calibration(request.calibration)
        if calibrated is not None:
            require_same_model(calibrated, checkpoint, steps, str(request.calibration))
        decoder = None if request.vae is None else Decoder(request.vae, ranks.device)
        reference = fp32(Weights(CheckpointSource(checkpoint, steps), ranks.device))
        scales: dict[str, Scales] = {}
        paths = list(_paths(request, checkpoint, calibrated, reference, scales, stack))
        names = [path.name for path in paths]
        if not names:
            raise UsageError("there is nothing to compare", fix="give --calibration or --artifact, or a --mode")
        clips = list(itertools.product(range(len(prompts)), range(len(request.seeds))))
        progress.start("evaluating", len(clips) * (len(paths) + 1), len(clips), unit="trajectories")
        curves: dict[str, Curve] = {}
        measured = _Measured(task, ranks.device)
        for prompt, number in clips:
            seed = request.seeds[number]
            noise = initial_noise(seed, g.in_channels, video.latent)
            latents = _one(reference, paths, prompts, prompt, noise, video, curves)
            progress.advance(len(paths) + 1)
            if decoder is not None:
                _decode(decoder, latents, prompts.texts[prompt], number, measured, sink)
            progress.item_done(f"prompt {prompt + 1}/{len(prompts)}, seed {seed}")
        progress.finish()
    rows = [measured.row(REFERENCE, None), *(measured.row(name, curves[name]) for name in names)]
    return Evaluation(tuple(rows), len(clips), video, g.layers, steps, calibrated, scales, measured.notes())


def _one(
    reference: NumericPath,
    paths: list[NumericPath],
    prompts: Prompts,
    prompt: int,
    noise: torch.Tensor,
    video: Video,
    curves: dict[str, Curve],
) -> dict[str, torch.Tensor]:
    embeds = torch.from_numpy(prompts.embeds[prompt].copy())
    others = {path.name: Trajectory(path, embeds, video.latent) for path in paths}
    latents = compare(Trajectory(reference, embeds, video.latent), others, noise, curves)
    for name, latent in latents.items():
        if not bool(latent.isfinite().all()):
            raise HvdcError(f"the path {name} computed NaN or Inf", where=f"prompt {prompt}: {prompts.texts[prompt]!r}")
    return latents


def _paths(
    request: EvaluateRequest,
    checkpoint: Checkpoint,
    calibrated: Calibrated | None,
    reference: NumericPath,
    scales: dict[str, Scales],
    stack: ExitStack,
) -> Iterator[NumericPath]:
    """npu, then gpu and hetero in every mode; the same again for each strength of smoothing; the artifact's own."""
    weights = reference.rest.weights
    steps, executions = weights.steps, len(weights.steps) * weights.shape.layers
    for cut in request.cuts:
        if not 0 <= cut <= executions:
            raise UsageError(f"a cut at {cut} is impossible", where="--cut", expected=f"0 to {executions}")
    yield npu(weights)
    if calibrated is None and (request.smooth or request.cuts) and request.artifact is None:
        raise UsageError("the GPU's arithmetic needs activation scales", fix="give --calibration")
    if calibrated is not None:
        for mode in request.modes:
            scales[mode] = activation_scales(calibrated.statistics, steps, mode)
            yield from _of_the_gpu(weights, scales[mode], request.cuts, mode)
        for strength in request.smooth:
            factors = Rescaling(checkpoint.geometry, smoothing_of(calibrated, checkpoint, strength))
            smoothed = Weights(CheckpointSource(checkpoint, schedule_of(request.config, checkpoint.geometry), factors),
                               weights.device)  # fmt: skip
            statistics = rescaled_statistics(factors, calibrated.statistics)
            label = f"smooth {strength:g}"
            yield _named(npu(smoothed), label)
            for mode in request.modes:
                if mode not in NEEDS_HISTOGRAM:
                    table = activation_scales(statistics, steps, mode)
                    yield from _of_the_gpu(smoothed, table, request.cuts, f"{mode} {label}")
    if request.artifact is not None:
        artifact = stack.enter_context(open_artifact(request.artifact))
        source = ArtifactSource(artifact)
        if source.shape != checkpoint.geometry:
            raise UsageError("the artifact is of another model than the checkpoint", where=str(request.artifact))
        own = Weights(source, weights.device)
        yield _named(npu(own), "artifact")
        if source.scales is not None:
            yield from _of_the_gpu(own, source.scales, request.cuts, "artifact")


def _of_the_gpu(weights: Weights, scales: Scales, cuts: tuple[int, ...], label: str) -> Iterator[NumericPath]:
    for path in (*(hetero(weights, scales, cut) for cut in cuts), gpu(weights, scales)):
        yield _named(path, label)


def _named(path: NumericPath, label: str) -> NumericPath:
    return NumericPath(f"{path.name} {label}", path.rest, path.prefix, path.cut)


def _decode(
    decoder: Decoder,
    latents: dict[str, torch.Tensor],
    prompt: str,
    number: int,
    measured: _Measured,
    sink: Sink | None,
) -> None:
    reference = decoder.decode(latents[REFERENCE])
    for name, latent in latents.items():
        frames = reference if name == REFERENCE else decoder.decode(latent)
        measured.add(name, frames, reference, prompt)
        if sink is not None:
            sink(name, prompt, number, frames)


class _Measured:
    """Frame metrics of each path, clip by clip."""

    def __init__(self, task: Task | None, device: torch.device) -> None:
        self._task = task
        self._lpips = frame_metrics.load_lpips(device)
        self._values: dict[str, dict[str, list[float]]] = {}

    def add(self, name: str, frames: Frames, reference: Frames, prompt: str) -> None:
        values = self._values.setdefault(name, {})

        def put(metric: str, value: float) -> None:
            values.setdefault(metric, []).append(value)

        if name != REFERENCE:
            put("psnr_db", frame_metrics.psnr_db(frames, reference))
            put("ssim", frame_metrics.ssim(frames, reference))
            if self._lpips.metric is not None and min(frames.shape[1:3]) >= frame_metrics.LPIPS_SMALLEST:
                put("lpips", self._lpips.metric(frames, reference))
        if self._task is not None:
            for metric, value in self._task(frames, prompt).items():
                put(f"task {metric}", float(value))

    def row(self, name: str, curve: Curve | None) -> Row:
        values = {metric: _mean(v) for metric, v in self._values.get(name, {}).items()}
        task = {m.removeprefix("task "): v for m, v in values.items() if m.startswith("task ")}
        return Row(name, curve, values.get("psnr_db"), values.get("ssim"), values.get("lpips"), task)

    def notes(self) -> tuple[str, ...]:
        return () if not self._values or self._lpips.metric is not None else (f"no LPIPS: {self._lpips.reason}",)


def _mean(values: list[float]) -> float:
    """NaN stays NaN; clips that are equal to the reference have an infinite PSNR and are left out of its mean."""
    kept = [v for v in values if v != math.inf]
    return sum(kept) / len(kept) if kept else math.inf


def load_task(name: str) -> Task:
    """The function ``check`` of a module, found from the current directory too. Raises UsageError."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        task = importlib.import_module(name).check
    except (ImportError, AttributeError) as error:
        raise UsageError(
            "the task cannot be loaded",
            where=f"--task {name}",
            expected="a module with a function check(frames, prompt)",
            found=str(error),
        ) from error
    out: Task = task
    return out


def facts(evaluation: Evaluation) -> dict[str, Any]:
    """As JSON."""
    rows = []
    for row in evaluation.rows:
        curve = row.curve
        rows.append(
            {
                "path": row.path,
                "latent_sqnr_db": None if curve is None else curve.latent_sqnr_db,
                "latent_error": row.latent_error,
                "sqnr_db": None if curve is None else curve.sqnr_db,
                "cosine": None if curve is None else curve.mean_cosine,
                "psnr_db": row.psnr_db,
                "ssim": row.ssim,
                "lpips": row.lpips,
                "task": dict(row.task),
            }
        )
    video = evaluation.video.model_dump(mode="json")
    return {"clips": evaluation.clips, "video": video, "rows": rows, "notes": list(evaluation.notes)}
