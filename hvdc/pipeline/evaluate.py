"""What each engine's arithmetic costs: paths against FP32 over prompts and seeds, on hidden states, latents, frames."""

from __future__ import annotations

import itertools
import statistics as stats
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from exporters.prompts import Prompts, read_prompts
from exporters.schedule import Step
from hvdc.artifact.manifest import Video
from hvdc.config import CalibrationMode, CompileConfig
from hvdc.errors import HvdcError, UsageError
from hvdc.pipeline.build import manifest_steps
from hvdc.pipeline.calibrate import tensors_sha256
from hvdc.pipeline.calibration_file import Calibrated, read_calibration
from hvdc.pipeline.cost import LONG_RUN_S, cpu_duration_s, in_words
from hvdc.pipeline.decode import Decoder
from hvdc.pipeline.evaluated_paths import Judged, Wanted, check_wanted, judged_paths
from hvdc.pipeline.frame_scores import Frames, Scores, load_task, require_libraries
from hvdc.pipeline.prepare import open_configured, schedule_of, video_of
from hvdc.pipeline.ranks import Ranks
from hvdc.pipeline.sources import CheckpointSource
from hvdc.progress import Progress
from quant.paths.host import initial_noise
from quant.paths.trajectory import NumericPath, Trajectory, fp32
from quant.paths.weights import Weights
from quant.quality import Curve, NonFinitePathError, compare
from quant.scales import Scales as ActivationTable

REFERENCE = "fp32"


@dataclass(frozen=True)
class EvaluateRequest:
    """What a person asked for. ``modes`` and ``smooth`` empty: what the configuration says."""

    checkpoint: Path
    prompts: Path
    calibration: Path | None = None
    artifact: Path | None = None
    adapter: Path | None = None
    config: CompileConfig = field(default_factory=CompileConfig)
    modes: tuple[CalibrationMode, ...] = ()
    cuts: tuple[int, ...] = ()
    gpu_shares: tuple[float, ...] = ()
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
    judged: Judged | None
    """None for the reference, which has no curve either."""
    curve: Curve | None
    scores: Mapping[str, float]
    """``psnr_db``, ``ssim``, ``lpips`` and ``task NAME``, those that were measured."""

    @property
    def latent_error(self) -> float | None:
        """Median of ‖z − z_ref‖ / ‖z_ref‖."""
        if self.curve is None or not self.curve.latent_error:
            return None
        return stats.median(self.curve.latent_error)

    @property
    def task(self) -> dict[str, float]:
        """The task's numbers."""
        return {name.removeprefix("task "): v for name, v in self.scores.items() if name.startswith("task ")}


@dataclass(frozen=True)
class Evaluation:
    """All rows, the reference first."""

    rows: tuple[Row, ...]
    clips: int
    video: Video
    layers: int
    steps: tuple[Step, ...]
    calibrated: Calibrated | None
    scales: Mapping[str, ActivationTable]
    identity: Mapping[str, Any]
    """What was compared: hashes of tensors, prompts, statistics; seeds."""
    notes: tuple[str, ...]


Sink = Callable[[str, str, int, Frames], None]
"""Called with path, prompt, number of the seed and decoded frames."""


def evaluate(
    request: EvaluateRequest, ranks: Ranks, progress: Progress, say: Callable[[str], None], sink: Sink | None = None
) -> Evaluation:
    """Run every path on every prompt and seed. Raises UsageError, CheckpointError, ArtifactError, HvdcError.

    A path that computes NaN or Inf is marked and the others go on.
    """
    if ranks.world > 1:
        raise UsageError("an evaluation is one process, and torchrun started several", fix="start hvdc evaluate alone")
    task = None if request.task is None else load_task(request.task)
    if request.vae is not None:
        require_libraries()
    elif task is not None or sink is not None:
        raise UsageError("frames are needed for this, and no decoder was given", fix="add --vae DIR")
    if request.modes and request.calibration is None:
        raise UsageError("there are no statistics to make scales of", where="--scale-mode", fix="add --calibration")
    config = request.config
    wanted = Wanted(
        modes=tuple(dict.fromkeys(request.modes or (config.scale_mode,))),
        cuts=request.cuts,
        gpu_shares=request.gpu_shares,
        smooth=tuple(dict.fromkeys(request.smooth or (() if config.smooth is None else (config.smooth,)))),
        percentile=config.percentile,
        artifact=request.artifact,
    )
    with ExitStack() as stack:
        stack.callback(progress.finish)
        checkpoint = stack.enter_context(open_configured(request.checkpoint, request.adapter, config))
        g = checkpoint.geometry
        tokens, width, limit = g.text_tokens, g.text_width, request.prompts_limit
        prompts = stack.enter_context(read_prompts(request.prompts, text_tokens=tokens, text_width=width, limit=limit))
        steps, video = schedule_of(config, g), video_of(config, g)
        check_wanted(wanted, len(steps) * g.layers, calibrated=request.calibration is not None)
        calibrated = None if request.calibration is None else read_calibration(request.calibration)
        decoder = None if request.vae is None else Decoder(request.vae, ranks.device)
        sha256 = tensors_sha256(checkpoint, progress)
        reference = fp32(Weights(CheckpointSource(checkpoint, steps), ranks.device))
        paths = judged_paths(wanted, checkpoint, steps, calibrated, reference.rest.weights, sha256, video, stack)
        clips = list(itertools.product(range(len(prompts)), range(len(request.seeds))))
        if ranks.device.type == "cpu":
            duration_s = cpu_duration_s(g, video, len(steps) * len(clips) * (len(paths) + 1))
            if duration_s > LONG_RUN_S:
                say(f"on this CPU it takes {in_words(duration_s)} or more; fewer paths, prompts or frames take less")
        scores = None if decoder is None else Scores(REFERENCE, task, ranks.device)
        curves: dict[str, Curve] = {}
        each = len(steps) * g.layers * (len(paths) + 1)
        progress.start("evaluating", len(clips) * each, len(clips), unit="blocks")
        for prompt, number in clips:
            seed = request.seeds[number]
            where = f"prompt {prompt}: {prompts.texts[prompt]!r}, seed {seed}"
            noise = initial_noise(seed, g.in_channels, video.latent)
            latents = _latents(reference, paths, prompts, prompt, noise, video, curves, progress, where)
            if decoder is not None and scores is not None:
                _decode(decoder, latents, prompts.texts[prompt], number, scores, sink)
            progress.item_done(f"prompt {prompt + 1}/{len(prompts)}, seed {seed}")
        identity = {
            "tensors_sha256": sha256,
            "prompts_sha256": prompts.sha256,
            "seeds": list(request.seeds),
            "statistics_sha256": None if calibrated is None else calibrated.provenance.statistics_sha256,
            "artifact": None if request.artifact is None else str(request.artifact),
            "steps": [step.model_dump(mode="json") for step in manifest_steps(steps)],
        }
    means = {name: {} if scores is None else scores.means(name) for name in (REFERENCE, *(p.name for p in paths))}
    rows = [Row(REFERENCE, None, None, means[REFERENCE])]
    rows += [Row(p.name, p, curves[p.name], means[p.name]) for p in paths]
    notes = (*wanted.notes, *(() if scores is None else scores.notes()))
    return Evaluation(tuple(rows), len(clips), video, g.layers, steps, calibrated, wanted.scales, identity, notes)


def _latents(
    reference: NumericPath,
    paths: list[Judged],
    prompts: Prompts,
    prompt: int,
    noise: torch.Tensor,
    video: Video,
    curves: dict[str, Curve],
    progress: Progress,
    where: str,
) -> dict[str, torch.Tensor]:
    """Final latents of one clip. Raises HvdcError where the reference is not finite, or memory runs out."""
    embeds = torch.from_numpy(prompts.embeds[prompt].copy())
    runs = {p.name: Trajectory(p.path, embeds, video.latent) for p in paths}
    layers = reference.rest.weights.shape.layers
    try:
        return compare(Trajectory(reference, embeds, video.latent), runs, noise, curves, progress.advance)
    except NonFinitePathError as error:
        step, block = divmod(error.position, layers)
        raise HvdcError(
            f"the model itself computed NaN or Inf in FP32: step {step}, block {block}",
            where=where,
            fix="check that checkpoint and prompts belong together",
        ) from error
    except torch.OutOfMemoryError as error:
        raise HvdcError(
            "the device's memory is too small for this clip and so many paths",
            where=f"{video.frames} frames of {video.width} × {video.height}, {len(paths) + 1} paths",
            fix="judge fewer paths at a time, or a smaller clip: --frames, --height, --width",
        ) from error


def _decode(
    decoder: Decoder,
    latents: dict[str, torch.Tensor],
    prompt: str,
    number: int,
    scores: Scores,
    sink: Sink | None,
) -> None:
    reference = decoder.decode(latents[REFERENCE])
    for name, latent in latents.items():
        frames = reference if name == REFERENCE else decoder.decode(latent)
        scores.add(name, frames, reference, prompt)
        if sink is not None:
            sink(name, prompt, number, frames)


def facts(evaluation: Evaluation) -> dict[str, Any]:
    """As JSON; a failed path has the place where it failed, and no figures."""
    return {
        **evaluation.identity,
        "clips": evaluation.clips,
        "video": evaluation.video.model_dump(mode="json"),
        "layers": evaluation.layers,
        "rows": [_row_facts(row, evaluation.layers) for row in evaluation.rows],
        "notes": list(evaluation.notes),
    }


def _row_facts(row: Row, layers: int) -> dict[str, Any]:
    curve, judged = row.curve, row.judged
    good = curve if curve is not None and curve.failed is None else None
    step, block = divmod(curve.failed, layers) if curve is not None and curve.failed is not None else (None, None)
    return {
        "path": row.path,
        "engine": REFERENCE if judged is None else judged.engine,
        "scale_mode": None if judged is None else judged.scales,
        "cut": None if judged is None else judged.cut,
        "gpu_share": None if judged is None else judged.gpu_share,
        "smooth": None if judged is None else judged.smooth,
        "artifact": judged is not None and judged.artifact,
        "failed": None if step is None else {"step": step, "block": block},
        "latent_sqnr_db": None if good is None else good.latent_sqnr_db,
        "latent_error": None if good is None else row.latent_error,
        "sqnr_db": None if good is None else good.sqnr_db,
        "cosine": None if good is None else good.mean_cosine,
        **{name: row.scores.get(name) for name in ("psnr_db", "ssim", "lpips")},
        "task": row.task,
    }
