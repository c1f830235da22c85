"""Activation scales as an artifact takes them: the table, what its inputs are, and where it comes from.

Whoever calibrates makes an `ActivationScales`; `Request.activations` carries it into a build.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hvdc.artifact import records
from hvdc.artifact.calibration import (
    Calibration,
    CalibrationDType,
    CalibrationMode,
    Clip,
    Float32Array,
    GemmInput,
    Smoothing,
    factors_fault,
    smoothing_tensor,
    table_fault,
)
from hvdc.artifact.fields import Expert
from hvdc.artifact.manifest import Video
from hvdc.artifact.reader import Artifact
from hvdc.errors import UsageError

STALE = "calibrate again with the checkpoint, the adapter and the configuration that are compiled here"


@dataclass(frozen=True, eq=False)
class ActivationScales:
    """What calibration found. `check` says whether a build can take it."""

    table: Float32Array
    """FP32 ``[steps, layers, inputs]``: scale of each step, block and GEMM input; 0 where the input does not exist."""
    inputs: tuple[GemmInput, ...]
    """The table's last axis."""
    mode: CalibrationMode
    statistics_sha256: str
    """Identity of the statistics that the scales were computed from: 64 hexadecimal digits."""
    prompts: int
    """How many prompts were run, each with each of ``seeds``."""
    seeds: tuple[int, ...]
    video: Clip
    """What the model was run at."""
    dtype: CalibrationDType
    """What the model computed in."""
    percentile: float | None = None
    """With mode "percentile" only: above 0, at most 100."""
    tensors_sha256: str | None = None
    """Identity of the canonical tensors that were run, where it is known: a build of others is refused."""
    smoothing_strength: float | None = None
    """With ``smoothing`` only."""
    smoothing: Mapping[str, Float32Array] = field(default_factory=dict)
    """Site -> FP32 ``[layers, channels]``: what activations were divided by. Empty if nothing was smoothed."""

    def tensors(self) -> dict[str, Float32Array]:
        """What is stored, by name, in the order of the file."""
        factors = {smoothing_tensor(site): values for site, values in self.smoothing.items()}
        return {records.ACTIVATION_SCALES_NAME: self.table, **factors}

    def entry(self, video: Video) -> Calibration:
        """The manifest's entry in an artifact for this video. Raises pydantic.ValidationError for impossible fields."""
        own = Clip(frames=video.frames, height=video.height, width=video.width)
        smoothing = None
        if self.smoothing_strength is not None:
            smoothing = Smoothing(strength=self.smoothing_strength, sites=tuple(self.smoothing))
        return Calibration(
            mode=self.mode,
            percentile=self.percentile,
            statistics_sha256=self.statistics_sha256,
            prompts=self.prompts,
            seeds=self.seeds,
            video=self.video,
            other_geometry=self.video != own,
            dtype=self.dtype,
            inputs=self.inputs,
            smoothing=smoothing,
        )

    def sha256(self) -> str:
        """Identity of everything that is written."""
        facts = {
            "inputs": [i.model_dump(mode="json") for i in self.inputs],
            "from": [self.mode, self.percentile, self.statistics_sha256, self.prompts, self.seeds, self.dtype],
            "video": self.video.model_dump(mode="json"),
            "strength": self.smoothing_strength,
            "tensors": {
                name: [values.shape, hashlib.sha256(_stored(values).data).hexdigest()]
                for name, values in self.tensors().items()
            },
        }
        return hashlib.sha256(json.dumps(facts).encode("ascii")).hexdigest()

    def check(self, steps: Sequence[Expert], layers: int, experts: Sequence[Expert]) -> None:
        """Whether the scales fit a model of so many blocks and these experts, run in these steps. Raises UsageError."""
        self._check_fields(experts)
        due = (len(steps), layers, len(self.inputs))
        _require(self.table.dtype == np.float32, "the table of activation scales", "float32", self.table.dtype)
        _require(self.table.shape == due, "the table of activation scales", f"{due}: steps, blocks, GEMM inputs",
                 self.table.shape)  # fmt: skip
        fault = table_fault(self.table, self.inputs, steps)
        if fault is not None:
            (step, block, column), expected = fault
            place = f"activation scale of step {step}, block {block}, {self.inputs[column].name}"
            _require(False, place, expected, self.table[step, block, column])
        for site, factors in self.smoothing.items():
            place = f"smoothing factors of {site}"
            fits = factors.dtype == np.float32 and factors.ndim == 2 and len(factors) == layers and factors.size > 0
            _require(fits, place, f"float32 of {layers} blocks and their channels", f"{factors.dtype} {factors.shape}")
            fault = factors_fault(factors)
            if fault is not None:
                _require(False, f"{place} {list(fault[0])}", fault[1], factors[fault[0]])

    def _check_fields(self, experts: Sequence[Expert]) -> None:
        names = [i.name for i in self.inputs]
        strays = [i.name for i in self.inputs if list(i.experts) != [e for e in experts if e in i.experts]]
        _require(
            0 < len(names) <= records.MAX_GEMM_INPUTS, "GEMM inputs", f"1 to {records.MAX_GEMM_INPUTS}", len(names)
        )
        _require(len(set(names)) == len(names), "GEMM inputs", "each name once", ", ".join(names))
        _require(not strays, "GEMM inputs", f"experts of {', '.join(experts)}, in order", ", ".join(strays))
        has_percentile = (self.percentile is not None) == (self.mode == "percentile")
        _require(has_percentile, "percentile", 'a number with mode "percentile", else none', self.percentile)
        has_strength = (self.smoothing_strength is not None) == bool(self.smoothing)
        _require(has_strength, "smoothing", "a strength with factors, else none", self.smoothing_strength)


def stored_scales(artifact: Artifact) -> ActivationScales | None:
    """The scales that an artifact holds; None if it is uncalibrated. Arrays are views of the mapped file."""
    held = artifact.manifest.calibration
    if held is None:
        return None
    sites = held.smoothing.sites if held.smoothing is not None else ()
    return ActivationScales(
        table=artifact.tensor(records.ACTIVATION_SCALES_NAME),
        inputs=held.inputs,
        mode=held.mode,
        statistics_sha256=held.statistics_sha256,
        tensors_sha256=artifact.manifest.source.tensors_sha256,
        prompts=held.prompts,
        seeds=held.seeds,
        video=held.video,
        dtype=held.dtype,
        percentile=held.percentile,
        smoothing_strength=held.smoothing.strength if held.smoothing is not None else None,
        smoothing={site: artifact.tensor(smoothing_tensor(site)) for site in sites},
    )


def _stored(values: Float32Array) -> Float32Array:
    return np.ascontiguousarray(values, "<f4")


def _require(good: bool, where: str, expected: object, found: object) -> None:
    if not good:
        raise UsageError(
            "the activation scales do not fit what is compiled",
            where=where,
            expected=str(expected),
            found=str(found),
            fix=STALE,
        )
