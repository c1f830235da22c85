"""``calibration.safetensors``: the statistics of a calibration, and what they belong to.

The file keeps statistics, not scales, so that every mode of scales can be made of it without running the model again.
Its one metadata entry, ``calibration``, is the JSON of `Provenance`; the tensors are those of `Statistics.arrays`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from exporters import model
from exporters.errors import CheckpointError
from hvdc.artifact.calibration import CalibrationDType, Seed
from hvdc.artifact.fields import Model, Sha256, Size
from hvdc.artifact.manifest import Geometry, Step, Video
from hvdc.files import write_durably
from quant.calibration.statistics import Statistics, from_arrays

KEY = "calibration"
_MAKE = "hvdc calibrate CHECKPOINT --prompts EMBEDS.safetensors -o calibration.safetensors"


class Provenance(Model):
    """What a calibration belongs to, and how it was made."""

    format: Literal["hvdc-calibration"] = "hvdc-calibration"
    version: Literal[1] = 1
    tensors_sha256: Sha256
    """Identity of the canonical tensors, as in an artifact's manifest."""
    geometry: Geometry
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    video: Video
    prompts: Size
    prompts_sha256: Sha256
    """Identity of the prompts that were run, texts and embeddings."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]
    dtype: CalibrationDType
    statistics_sha256: Sha256


@dataclass(frozen=True)
class Calibrated:
    """Statistics with what they belong to."""

    provenance: Provenance
    statistics: Statistics


def write_calibration(path: Path, calibrated: Calibrated) -> None:
    """Write the file: the same statistics give the same bytes. Raises HvdcError."""
    write_durably(path, pack(calibrated.statistics.arrays(), calibrated.provenance.model_dump(mode="json")))


def pack(arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, Any]) -> bytes:
    """A safetensors file with one metadata entry: with more, their order would differ from run to run."""
    contiguous = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
    return save_arrays(contiguous, {KEY: json.dumps(metadata, sort_keys=True)})


def unpack(data: bytes) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """The inverse of `pack`. Raises ValueError."""
    try:
        arrays = load_arrays(data)
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][KEY])
    except KeyError as error:
        raise ValueError(f"its metadata has no entry {error}") from error
    except (SafetensorError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    if not isinstance(metadata, dict):
        raise ValueError("its metadata is no JSON object")
    return arrays, metadata


def read_calibration(path: Path) -> Calibrated:
    """Read and check a file. Raises CheckpointError."""

    def refuse(what: str, found: str = "") -> CheckpointError:
        return CheckpointError(what, where=str(path), found=found, fix=f"make one with: {_MAKE}")

    try:
        data = path.read_bytes()
    except OSError as error:
        raise refuse("the calibration file cannot be read", error.strerror or str(error)) from error
    try:
        arrays, metadata = unpack(data)
    except ValueError as error:
        raise refuse("this is not a calibration file", str(error)) from error
    version = metadata.get("version")
    if metadata.get("format") == "hvdc-calibration" and isinstance(version, int) and version > 1:
        raise CheckpointError(
            "the calibration file was written by a newer hvdc",
            where=str(path),
            expected="version 1",
            found=f"version {version}",
            fix="update hvdc, or calibrate again",
        )
    try:
        provenance = Provenance.model_validate_json(json.dumps(metadata))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise refuse("this is not a calibration file", f"{place}: {first['msg']}") from error
    try:
        statistics = from_arrays(geometry_of(provenance), len(provenance.steps), arrays)
        _check_numbers(statistics)
        if statistics.sha256() != provenance.statistics_sha256:
            raise ValueError("its statistics have another SHA-256 than it says")
    except (ValueError, MemoryError) as error:  # the geometry says how large the arrays should be
        raise refuse("the calibration file is damaged", str(error)) from error
    return Calibrated(provenance, statistics)


def geometry_of(provenance: Provenance) -> model.Geometry:
    """The model's geometry."""
    fields = model.Geometry.__dataclass_fields__
    return model.Geometry(**{k: v for k, v in provenance.geometry.__dict__.items() if k in fields})


def require_same_run(
    provenance: Provenance, geometry: model.Geometry, steps: tuple[Step, ...], what: str, where: str
) -> None:
    """Sizes and schedule, which are known before any weight is read. ``what``: "the calibration is", of a message.

    Raises CheckpointError.
    """
    held = geometry_of(provenance)
    for name, value in geometry.__dict__.items():
        if getattr(held, name) != value:
            raise CheckpointError(
                f"{what} of another model",
                where=f"{where}: {name}",
                expected=f"{value} (this checkpoint)",
                found=str(getattr(held, name)),
                fix="calibrate this checkpoint, with the same adapter",
            )
    if provenance.steps != steps:
        shown = [", ".join(f"{s.timestep:g} {s.expert}" for s in some) for some in (steps, provenance.steps)]
        raise CheckpointError(
            f"{what} of another schedule",
            where=where,
            expected=shown[0],
            found=shown[1],
            fix="calibrate with the timesteps and the expert boundary that are compiled",
        )


def _check_numbers(statistics: Statistics) -> None:
    for name, array in statistics.arrays().items():
        if not np.isfinite(array).all() or (np.asarray(array) < 0).any():
            raise ValueError(f"{name} holds a value that is negative or not finite")
