"""Compare an artifact with the checkpoint that it claims to be made from: every weight, copy and table."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exporters.adaln import fold_tables
from exporters.checkpoint import Checkpoint
from exporters.errors import CheckpointError
from exporters.tensor import Float32Array, Tensor, check_finite
from hvdc.artifact.codes import Code
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.manifest import Manifest
from hvdc.artifact.reader import Artifact
from hvdc.artifact.validate import calibration_faults
from hvdc.errors import UsageError
from hvdc.pipeline.activation_scales import stored_scales
from hvdc.pipeline.artifact_plan import Role, TensorPlan
from hvdc.pipeline.build import make_manifest, rescaled_tables, source_sha256, table_arrays
from hvdc.pipeline.compare import manifest_differences
from hvdc.pipeline.decoder_parts import DecoderParts, files_in
from hvdc.pipeline.prepare import Prepared, Request, decide, open_configured, table_sources
from hvdc.pipeline.tensors import pieces, value_hash
from hvdc.pipeline.workspace import Done
from hvdc.progress import Progress
from layouts.grid import unpack_padded
from layouts.order import HMX_INT8_K4
from quant.hashing import ValueHash
from quant.metrics import HALF_STEP, ErrorMeter
from quant.smooth import Rescaling
from quant.weights import column_scales

SPLIT_TOLERANCE = 1e-5
"""Relative difference of scales that another machine's BLAS may make in the factors of a split."""


@dataclass(frozen=True)
class TensorResult:
    """One stored tensor against its source. ``sqnr_db`` and ``max_error_steps`` are None where equality is exact."""

    name: str
    sqnr_db: float | None
    max_error_steps: float | None
    finding: ArtifactError | None


@dataclass(frozen=True)
class Comparison:
    """The result over all tensors."""

    results: tuple[TensorResult, ...]
    findings: tuple[ArtifactError, ...]
    measured: tuple[str, ...] = ()
    """Tensors that calibration measured by running the model: no checkpoint says what they must be."""

    @property
    def weights(self) -> list[TensorResult]:
        return [r for r in self.results if r.sqnr_db is not None]


def open_source(path: Path, adapter: Path | None, manifest: Manifest, *, lora_alpha: float | None) -> Checkpoint:
    """Open what an artifact claims to be made from. Raises CheckpointError, UsageError.

    The files tell alpha and rank themselves, per linear if need be; the recorded alpha only helps out where none does.
    """
    recorded, is_split = manifest.configuration, manifest.source.left_out_energy is not None
    if is_split and adapter is None:
        raise UsageError(
            "the artifact's adapter was split from a merged checkpoint, which is needed to compare",
            where=str(path),
            fix="give it as well: --adapter MERGED",
        )
    config = recorded.model_copy(update={"lora_alpha": lora_alpha, "rank": recorded.rank if is_split else None})
    try:
        return open_configured(path, adapter, config)
    except CheckpointError:
        if lora_alpha is None and recorded.lora_alpha is not None and not is_split:
            with contextlib.suppress(CheckpointError):
                return open_configured(path, adapter, config.model_copy(update={"lora_alpha": recorded.lora_alpha}))
        raise


def compare(artifact: Artifact, checkpoint: Checkpoint, progress: Progress) -> Comparison:
    """Compare every tensor that follows from a checkpoint. Reads both in strips.

    Findings have code DATA_SOURCE, or DATA_CALIBRATION. Raises CheckpointError.
    """
    findings = list(_geometry(artifact, checkpoint)) or calibration_faults(artifact)
    if findings:
        return Comparison((), tuple(findings))
    activations = stored_scales(artifact)
    entry = artifact.manifest.decoder
    decoder = None  # made from another source: as it is
    if entry is not None:
        hashes = {tensor.name: f.sha256 for f in artifact.manifest.files if f.kind == "decoder" for tensor in f.tensors}
        decoder = DecoderParts(entry, files_in(entry, artifact.path / "decoder"), hashes)
    request = Request(None, None, config=artifact.manifest.configuration, activations=activations, decoder=decoder)
    prepared = decide(request, checkpoint)
    findings = list(_manifest(artifact, prepared))
    if findings:
        return Comparison((), tuple(findings))
    plan = prepared.plan
    rescaling = Rescaling(checkpoint.geometry, {} if activations is None else activations.smoothing)
    comparer = _Comparer(artifact, checkpoint, rescaling)
    folded = fold_tables(checkpoint.geometry, checkpoint.tensors, prepared.steps)
    tables = table_arrays(rescaled_tables(rescaling, folded))
    progress.start("comparing", sum(4 * math.prod(t.shape) for t in checkpoint.tensors.values()), len(plan.files))
    for name in table_sources(checkpoint.geometry):
        source = checkpoint.tensors[name]
        comparer.hashes[name] = value_hash(source, pieces(source), progress.advance)
    results = []
    for file in plan.files:
        for tensor in file.tensors:
            if tensor.source is not None:
                one = comparer.weight if tensor.role is Role.WEIGHT else comparer.copy
                results.append(one(tensor, checkpoint.tensors[tensor.source], progress))
            elif tensor.role is Role.TABLE:
                results.append(_same(tensor.name, artifact.tensor(tensor.name), tables[tensor.name]))
        progress.item_done(file.path)
    progress.finish()
    findings = [r.finding for r in results if r.finding is not None]
    found = source_sha256(checkpoint, comparer.hashes)
    expected = artifact.manifest.source.tensors_sha256
    if found != expected:
        findings.insert(
            0,
            ArtifactError(
                Code.DATA_SOURCE,
                what="this is not the checkpoint that the artifact was compiled from",
                where="manifest.json: source.tensors_sha256",
                expected=f"{found} (checkpoint)",
                found=expected,
                fix="give the checkpoint, and the --adapter, that it was compiled from",
            ),
        )
    measured = tuple(activations.tensors()) if activations is not None else ()
    return Comparison(tuple(results), tuple(findings), measured)


_GEOMETRY_FIX = {
    "rank": "give the adapter that it was compiled with: --adapter",
    "alpha_over_rank": "if it was compiled with --lora-alpha, give the same here",
}


def _geometry(artifact: Artifact, checkpoint: Checkpoint) -> Iterator[ArtifactError]:
    """The first size that differs; most others would follow from it."""
    recorded = artifact.manifest.geometry
    for name, value in checkpoint.geometry.__dict__.items():
        if getattr(recorded, name) != value:
            yield ArtifactError(
                Code.DATA_SOURCE,
                where=f"geometry.{name}",
                expected=f"{value} (checkpoint)",
                found=str(getattr(recorded, name)),
                fix=_GEOMETRY_FIX.get(name, ""),
            )
            return


def _manifest(artifact: Artifact, prepared: Prepared) -> Iterator[ArtifactError]:
    """Everything that the manifest says must be what this compiler writes for the recorded configuration: steps, sizes,
    files, tensors. Hashes of data files are checked by reading them."""
    held = artifact.manifest
    hashes = {file.path: file.sha256 for file in held.files}
    done = [Done(f.path, f.region.bytes, hashes.get(f.path, "0" * 64), {}, {}) for f in prepared.plan.files]
    due = make_manifest(prepared, done, held.source.tensors_sha256)
    for difference in manifest_differences(due, held, leave_out={"tools", "source"}):
        yield ArtifactError(Code.DATA_SOURCE, where=f"manifest.json: {difference}", expected="as compiled from it")


class _Comparer:
    def __init__(self, artifact: Artifact, checkpoint: Checkpoint, rescaling: Rescaling) -> None:
        self.rescaling = rescaling
        self.artifact = artifact
        self.checkpoint = checkpoint
        self.hashes: dict[str, str] = {}

    def weight(self, plan: TensorPlan, source: Tensor, progress: Progress) -> TensorResult:
        """``|W − q · s| ≤ s / 2`` for each value, W times alpha / r where the compiler folded that in."""
        stored = self.artifact.stored(plan.name)
        scales = self.artifact.scale(plan.name)
        due = np.empty_like(scales)
        factor = np.float32(self.checkpoint.geometry.alpha_over_rank if plan.times_alpha else 1.0)
        meter, digest = ErrorMeter(), ValueHash()
        padded_k, tile_rows = plan.padded_shape[1], HMX_INT8_K4.col_count
        for start, rows in pieces(source, multiple=tile_rows):
            digest.update(check_finite(source, rows, start))
            rows = self.rescaling.tensor(source.name, rows, start)
            due[start : start + rows.shape[0]] = column_scales(rows)
            tiles = -(-rows.shape[0] // tile_rows)
            packed = stored[start * padded_k : (start + tiles * tile_rows) * padded_k]
            q = unpack_padded(HMX_INT8_K4, packed, tiles, padded_k // HMX_INT8_K4.row_count)
            meter.update(
                rows * factor, q[: rows.shape[0], : rows.shape[1]], scales[start : start + rows.shape[0]], start
            )
            progress.advance(rows.nbytes)
        self.hashes[source.name] = digest.hexdigest()
        finding = self._scale_finding(plan.name, scales, due * factor)
        if finding is None and not meter.max_error_steps <= HALF_STEP:
            finding = ArtifactError(
                Code.DATA_SOURCE,
                where=f"{plan.name} {list(meter.worst)}",
                expected="an error of at most half a step",
                found=f"{meter.max_error_steps:.3f} steps",
            )
        return TensorResult(plan.name, meter.sqnr_db, meter.max_error_steps, finding)

    def _scale_finding(self, name: str, scales: Float32Array, due: Float32Array) -> ArtifactError | None:
        """Scales are a function of the source: equal to the bit, but for factors from an SVD, which runs on BLAS."""
        tolerance = 0.0 if self.artifact.manifest.source.left_out_energy is None else SPLIT_TOLERANCE
        wrong = ~(np.abs(scales - due) <= tolerance * due)
        if not wrong.any():
            return None
        column = int(wrong.argmax())
        where = f"{name}_scale [{column}]"
        return ArtifactError(Code.DATA_SOURCE, where=where, expected=str(due[column]), found=str(scales[column]))

    def copy(self, plan: TensorPlan, source: Tensor, progress: Progress) -> TensorResult:
        """Bit-equal FP32."""
        held = self.artifact.tensor(plan.name)
        digest, result = ValueHash(), TensorResult(plan.name, None, None, None)
        for start, rows in pieces(source):
            digest.update(rows)
            due = self.rescaling.tensor(source.name, rows, start)
            same = _same(plan.name, held[start : start + rows.shape[0]], due, start)
            result = result if result.finding else same
            progress.advance(rows.nbytes)
        self.hashes[source.name] = digest.hexdigest()
        return result


def _same(name: str, held: np.ndarray, expected: np.ndarray, first_row: int = 0) -> TensorResult:
    """Equal to the bit: 0.0 is not -0.0."""
    if held.tobytes() == expected.tobytes():
        return TensorResult(name, None, None, None)
    bits = f"u{expected.itemsize}"
    different = np.ascontiguousarray(held).view(bits) != np.ascontiguousarray(expected).view(bits)
    at = [int(i) for i in np.argwhere(different)[0]]
    place = [first_row + at[0], *at[1:]]
    finding = ArtifactError(
        Code.DATA_SOURCE, where=f"{name} {place}", expected=str(expected[tuple(at)]), found=str(held[tuple(at)])
    )
    return TensorResult(name, None, None, finding)
