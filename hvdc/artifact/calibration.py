"""What calibration adds to an artifact: the manifest's entry, and what its tables must hold.

A table of activation scales is dense, ``[steps, layers, inputs]``, so that an engine indexes it; what its inputs are is
said by names in the manifest, which come from whoever calibrated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hvdc.artifact import records
from hvdc.artifact.fields import Expert, Model, Sha256, Size, TensorName
from hvdc.config import CalibrationMode

CalibrationDType = Literal["fp32", "bf16"]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]

Float32Array = npt.NDArray[np.float32]


class GemmInput(Model):
    """An activation that enters GEMMs. ``experts``: in whose steps it exists; elsewhere its scale is 0.

    ``per`` "expert": it does not depend on the step, so its scale is the same in all steps of an expert.
    """

    name: TensorName
    per: Literal["step", "expert"]
    experts: Annotated[tuple[Expert, ...], Field(min_length=1)]


class Clip(Model):
    """Size of a video."""

    frames: Size
    height: Size
    width: Size


class Smoothing(Model):
    """Weights and activations were scaled against each other at these sites. The factors lie beside the table."""

    strength: Annotated[float, Field(ge=0, le=1)]
    sites: Annotated[tuple[TensorName, ...], Field(min_length=1)]


class Calibration(Model):
    """Where the activation scales come from. The names of ``inputs`` are those of the table's last axis, in order."""

    mode: CalibrationMode
    percentile: Annotated[float, Field(gt=0, le=100)] | None
    statistics_sha256: Sha256
    """Identity of the statistics that the scales were computed from."""
    prompts: Size
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]
    """Each prompt was run with each of them."""
    video: Clip
    """What it was run at."""
    other_geometry: bool
    """That is another size than the artifact's."""
    dtype: CalibrationDType
    """What the model computed in."""
    inputs: Annotated[tuple[GemmInput, ...], Field(min_length=1, max_length=records.MAX_GEMM_INPUTS)]
    smoothing: Smoothing | None


def smoothing_tensor(site: str) -> str:
    """Name of the tensor of a site's smoothing factors."""
    return f"{records.SMOOTHING_PREFIX}{site}"


Fault = tuple[tuple[int, ...], str]
"""Place of a value, and what was expected there."""


def table_fault(table: Float32Array, inputs: Sequence[GemmInput], steps: Sequence[Expert]) -> Fault | None:
    """The first value of a table ``[steps, layers, inputs]`` that cannot be: of ``[step, block, input]``.

    A scale is a normal, positive, finite number; it is +0.0 where the input does not exist; and it is equal over the
    steps of an expert if the input is the expert's.
    """
    exists = np.array([[expert in i.experts for i in inputs] for expert in steps], np.bool_)[:, None, :]
    bits = np.ascontiguousarray(table).view(np.uint32)
    first = [list(steps).index(expert) for expert in steps]
    fixed = np.array([i.per == "expert" for i in inputs], np.bool_)
    wrong = np.where(exists, ~is_scale(table), bits != 0)
    moved = exists & fixed & (bits != bits[first])
    places = np.argwhere(wrong | moved)
    if not len(places):
        return None
    step, block, column = (int(i) for i in places[0])
    if not exists[step, 0, column]:
        return (step, block, column), f"0, for {inputs[column].name} does not exist in this step"
    if wrong[step, block, column]:
        return (step, block, column), "a positive, normal, finite number"
    return (step, block, column), f"{table[first[step], block, column]}, as in step {first[step]}, for it is per expert"


def factors_fault(factors: Float32Array) -> Fault | None:
    """The first smoothing factor that is not a normal, positive, finite number."""
    places = np.argwhere(~is_scale(factors))
    return (tuple(int(i) for i in places[0]), "a positive, normal, finite number") if len(places) else None


def is_scale(values: Float32Array) -> npt.NDArray[np.bool_]:
    """Whether values may be divided by: finite, and at least the smallest normal number."""
    good: npt.NDArray[np.bool_] = (values >= records.SMALLEST_NORMAL) & np.isfinite(values)
    return good
