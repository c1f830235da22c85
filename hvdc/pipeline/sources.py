"""A checkpoint and an artifact as what the numeric paths and the calibration read (`quant.source.TensorSource`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from exporters.adaln import Tables, fold_tables
from exporters.checkpoint import Checkpoint
from exporters.model import Geometry
from exporters.schedule import Step
from exporters.tensor import check_finite
from hvdc.artifact.manifest import Step as ManifestStep
from hvdc.artifact.reader import Artifact
from hvdc.pipeline.activation_scales import stored_scales
from hvdc.pipeline.artifact_plan import ADALN, HEAD_TABLE, ROPE
from hvdc.pipeline.build import rescaled_tables
from quant.scales import Scales
from quant.smooth import Rescaling
from quant.source import Float32Array, Int8Array
from quant.weights import quantize


class CheckpointSource:
    """Canonical tensors and the tables of a schedule; weights are quantised as the compiler does.

    With a ``rescaling`` it is the smoothed model: the same function, other numbers.
    """

    def __init__(self, checkpoint: Checkpoint, steps: Sequence[Step], rescaling: Rescaling | None = None) -> None:
        self.shape: Geometry = checkpoint.geometry
        self.steps = tuple(steps)
        self._tensors = checkpoint.tensors
        self._rescaling = rescaling

    @cached_property
    def tables(self) -> Tables:
        tables = fold_tables(self.shape, self._tensors, self.steps)
        return tables if self._rescaling is None else rescaled_tables(self._rescaling, tables)

    def values(self, name: str) -> Float32Array:
        values = self._plain(name)
        return values * np.float32(self.shape.alpha_over_rank) if _is_b(name) else values

    def quantized(self, name: str) -> tuple[Int8Array, Float32Array]:
        q, scales = quantize(self._plain(name))
        return q, scales * np.float32(self.shape.alpha_over_rank) if _is_b(name) else scales

    def _plain(self, name: str) -> Float32Array:
        values = check_finite(self._tensors[name], self._tensors[name].read())
        return values if self._rescaling is None else self._rescaling.tensor(name, values)


class ArtifactSource:
    """The bytes that ship: de-tiled codes, stored scales and tables. ``scales`` are the artifact's own, if it has
    any."""

    def __init__(self, artifact: Artifact) -> None:
        g = artifact.manifest.geometry
        self.shape = Geometry(**{k: v for k, v in g.__dict__.items() if k in Geometry.__dataclass_fields__})
        self.steps: tuple[ManifestStep, ...] = artifact.manifest.steps
        self._artifact = artifact

    @cached_property
    def tables(self) -> Tables:
        frame, row, column = (self._artifact.tensor(name) for name in ROPE)
        return Tables(
            self._artifact.tensor(ADALN),
            self._artifact.tensor(HEAD_TABLE),
            (frame, row, column),
            self.shape.rope_axis_dims,
        )

    def values(self, name: str) -> Float32Array:
        return self._artifact.dequantized(name)

    def quantized(self, name: str) -> tuple[Int8Array, Float32Array]:
        return self._artifact.tensor(name), self._artifact.scale(name)

    @property
    def scales(self) -> Scales | None:
        """The calibrated activation scales, None for an uncalibrated artifact."""
        held = stored_scales(self._artifact)
        return None if held is None else Scales(held.table, tuple(i.name for i in held.inputs))


def _is_b(name: str) -> bool:
    return name.endswith(".lora_B.weight")
