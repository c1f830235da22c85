"""Which numeric paths an evaluation compares, from what a person gave, and whether that belongs together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from exporters.checkpoint import Checkpoint
from exporters.errors import CheckpointError
from exporters.schedule import Step
from hvdc.artifact.manifest import Video
from hvdc.artifact.reader import open_artifact
from hvdc.artifact.validate import calibration_faults
from hvdc.config import CalibrationMode
from hvdc.errors import UsageError
from hvdc.pipeline.activations import require_same_model, smoothing_of
from hvdc.pipeline.build import manifest_steps
from hvdc.pipeline.calibration_file import Calibrated
from hvdc.pipeline.sources import ArtifactSource, CheckpointSource
from quant.calibration.modes import DEFAULT_PERCENTILE, NEEDS_HISTOGRAM, activation_scales
from quant.paths.trajectory import NumericPath, gpu, hetero, hetero_tensor, npu
from quant.paths.weights import Weights
from quant.scales import Scales
from quant.smooth import Rescaling, rescaled_statistics


@dataclass(frozen=True)
class Judged:
    """A path and what it is made of. ``scales``: the scale mode, or None where there are no activation scales."""

    path: NumericPath
    engine: str
    scales: str | None = None
    cut: int | None = None
    smooth: float | None = None
    artifact: bool = False
    gpu_share: float | None = None

    @property
    def name(self) -> str:
        return self.path.name


@dataclass
class Wanted:
    """What a person asked to compare. ``gpu_shares``: of hetero-tensor. ``modes`` empty and ``percentile`` None: the
    defaults of the configuration."""

    modes: tuple[CalibrationMode, ...]
    cuts: tuple[int, ...]
    smooth: tuple[float, ...]
    percentile: float | None
    artifact: Path | None
    gpu_shares: tuple[float, ...] = ()
    notes: list[str] = field(default_factory=list)
    """Sentences for the person about what was left out."""
    scales: dict[str, Scales] = field(default_factory=dict)
    """Mode -> scales of the model as it is, once the paths were made."""


def check_wanted(wanted: Wanted, executions: int, *, calibrated: bool) -> None:
    """What can be refused before anything is read. Raises UsageError."""
    for cut in wanted.cuts:
        if not 0 <= cut <= executions:
            raise UsageError(f"a cut at {cut} is impossible", where="--cut", expected=f"0 to {executions}")
    for share in wanted.gpu_shares:
        if not 0 <= share <= 1:
            raise UsageError(f"a share of {share:g} is impossible", where="--gpu-share", expected="0 to 1")
    for strength in wanted.smooth:
        if not 0 <= strength <= 1:
            raise UsageError("the strength of smoothing is out of range", where="--smooth", expected="0 to 1",
                             found=f"{strength:g}")  # fmt: skip
    on_the_gpu = wanted.cuts or wanted.gpu_shares
    if not calibrated and (wanted.smooth or (on_the_gpu and wanted.artifact is None)):
        raise UsageError("the GPU's arithmetic needs activation scales", fix="give --calibration")


def judged_paths(
    wanted: Wanted,
    checkpoint: Checkpoint,
    steps: tuple[Step, ...],
    calibrated: Calibrated | None,
    weights: Weights,
    sha256: str,
    video: Video,
    stack: ExitStack,
) -> list[Judged]:
    """npu, then gpu, hetero and hetero-tensor in every mode; the same for each strength of smoothing; then the
    artifact's own.

    ``weights``: the checkpoint's. ``sha256``: its tensors' identity. Raises UsageError, CheckpointError, ArtifactError.
    """
    found = [Judged(npu(weights), "npu")]
    if calibrated is not None:
        _require_own(calibrated.provenance.tensors_sha256, sha256, "the calibration")
        require_same_model(calibrated, checkpoint, steps, "--calibration")
        if calibrated.provenance.video != video:
            held = calibrated.provenance.video
            wanted.notes.append(f"the calibration was run at another size: {held.frames} × {held.width}×{held.height}")
        percentile = wanted.percentile or DEFAULT_PERCENTILE
        for mode in wanted.modes:
            scales = activation_scales(calibrated.statistics, weights.steps, mode, percentile)
            wanted.scales[mode] = scales
            found += _on_the_gpu(weights, scales, wanted, mode)
        for strength in wanted.smooth:
            found += _smoothed(wanted, checkpoint, steps, calibrated, weights, strength)
    if wanted.artifact is not None:
        found += _of_the_artifact(wanted, wanted.artifact, checkpoint, steps, weights, sha256, video, stack)
    return found


def _smoothed(
    wanted: Wanted,
    checkpoint: Checkpoint,
    steps: Sequence[Step],
    calibrated: Calibrated,
    weights: Weights,
    strength: float,
) -> Iterator[Judged]:
    rescaling = Rescaling(checkpoint.geometry, smoothing_of(calibrated, checkpoint, strength))
    smoothed = Weights(CheckpointSource(checkpoint, steps, rescaling), weights.device)
    statistics = rescaled_statistics(rescaling, calibrated.statistics)
    label = f"smooth {strength:g}"
    yield Judged(_named(npu(smoothed), label), "npu", smooth=strength)
    for mode in wanted.modes:
        if mode in NEEDS_HISTOGRAM:
            note = f"{mode} is not joined with smoothing: its histograms are of activations that were not smoothed"
            wanted.notes += [note] if note not in wanted.notes else []
            continue
        table = activation_scales(statistics, weights.steps, mode)
        yield from _on_the_gpu(smoothed, table, wanted, mode, smooth=strength)


def _of_the_artifact(
    wanted: Wanted,
    path: Path,
    checkpoint: Checkpoint,
    steps: Sequence[Step],
    weights: Weights,
    sha256: str,
    video: Video,
    stack: ExitStack,
) -> Iterator[Judged]:
    artifact = stack.enter_context(open_artifact(path))
    manifest = artifact.manifest
    _require_own(manifest.source.tensors_sha256, sha256, f"the artifact {path}")
    if manifest.steps != manifest_steps(steps):
        raise CheckpointError(
            "the artifact was compiled for another schedule",
            where=str(path),
            expected=", ".join(f"{s.timestep:g} {s.expert}" for s in steps),
            found=", ".join(f"{s.timestep:g} {s.expert}" for s in manifest.steps),
            fix="give the timesteps and the expert boundary that it was compiled with: --set timesteps=…",
        )
    faults = calibration_faults(artifact)
    if faults:
        raise faults[0]
    if manifest.video != video:
        held = manifest.video
        wanted.notes.append(f"the artifact is made for another size: {held.frames} × {held.width}×{held.height}")
    source = ArtifactSource(artifact)
    own = Weights(source, weights.device)
    yield Judged(_named(npu(own), "artifact"), "npu", artifact=True)
    if source.scales is None:
        wanted.notes.append("the artifact is uncalibrated: it has no rows for the GPU")
        return
    yield from _on_the_gpu(own, source.scales, wanted, "artifact", artifact=True)


def _on_the_gpu(
    weights: Weights,
    scales: Scales,
    wanted: Wanted,
    label: str,
    *,
    smooth: float | None = None,
    artifact: bool = False,
) -> Iterator[Judged]:
    full = label if smooth is None else f"{label} smooth {smooth:g}"
    for cut in wanted.cuts:
        yield Judged(_named(hetero(weights, scales, cut), full), "hetero", label, cut, smooth, artifact)
    for share in wanted.gpu_shares:
        path = _named(hetero_tensor(weights, scales, share), full)
        yield Judged(path, "hetero-tensor", label, None, smooth, artifact, share)
    yield Judged(_named(gpu(weights, scales), full), "gpu", label, None, smooth, artifact)


def _named(path: NumericPath, label: str) -> NumericPath:
    return NumericPath(f"{path.name} {label}", path.rest, path.prefix, path.cut)


def _require_own(held: str, sha256: str, what: str) -> None:
    """Numbers of other weights look like numbers. Raises CheckpointError."""
    if held != sha256:
        raise CheckpointError(
            f"{what} belongs to another checkpoint: the weights are not the same",
            expected=f"tensors_sha256 {sha256} (this checkpoint)",
            found=held,
            fix="give the checkpoint, and the --adapter, that it was made from",
        )
