"""Latents of finished trajectories: what `hvdc calibrate --save-latents` and `hvdc run` write, and a decoder reads.

Any safetensors file with a tensor ``latents`` will do. That of `hvdc calibrate` has one metadata entry,
``calibration``: JSON with prompt and seed of each clip, the SHA-256 of the latents, and the `Provenance` of the
calibration that they come from. Without it nobody would notice latents of another model: only their values differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from exporters.dtypes import DECODABLE
from exporters.errors import CheckpointError
from exporters.model import Geometry
from exporters.safetensors_file import SafetensorsFile
from hvdc.artifact.manifest import Step, Video
from hvdc.files import write_durably
from hvdc.pipeline.calibration_file import KEY, Provenance, pack, require_same_run

Float32Array = npt.NDArray[np.float32]

FORMAT = "hvdc-latents"
TENSOR = "latents"
_MAKE = "make them with: hvdc calibrate … --save-latents latents.safetensors"


@dataclass(frozen=True)
class Latents:
    """``values`` float32 ``[clips, channels, frames, rows, columns]``, normalised, as the transformer leaves them.
    ``prompts``: that of each clip, empty where the file does not say. ``provenance``: of the calibration that they come
    from, None where the file does not say."""

    values: Float32Array
    prompts: tuple[str, ...]
    provenance: Provenance | None


def write_latents(
    path: Path, values: Float32Array, prompts: Sequence[str], seeds: Sequence[int], provenance: Provenance | None
) -> None:
    """``values`` as in `Latents`; prompt and seed of each clip; None where no calibration made them. The same give the
    same bytes. Raises HvdcError."""
    facts = {
        "format": FORMAT,
        "prompts": list(prompts),
        "seeds": list(seeds),
        "latents_sha256": latents_sha256(values),
        "calibration": None if provenance is None else provenance.model_dump(mode="json"),
    }
    write_durably(path, pack({TENSOR: values}, facts))


def read_latents(path: Path, channels: int | None = None) -> Latents:
    """The tensor ``latents`` of a safetensors file, of four dimensions (one clip) or five, any float dtype.

    Raises:
        CheckpointError: no such file, no such tensor, another number of ``channels``, a value that is not finite, or
            other values than `write_latents` was given.
    """

    def refuse(what: str, expected: str = "", found: str = "") -> CheckpointError:
        return CheckpointError(what, where=str(path), expected=expected, found=found, fix=_MAKE)

    file = _open(path)
    try:
        if TENSOR not in file.tensors:
            names = ", ".join(sorted(file.tensors)[:8]) or "no tensor"
            raise refuse("the file holds no latents", f"a tensor {TENSOR!r}", names)
        tensor = file.tensors[TENSOR]
        if len(tensor.shape) not in (4, 5) or 0 in tensor.shape or tensor.stored_dtype not in DECODABLE:
            shape = f"{tensor.stored_dtype} {list(tensor.shape)}"
            raise refuse("the latents have another shape", "float [clips, channels, frames, rows, columns]", shape)
        found = tensor.shape[-4]
        if channels is not None and found != channels:
            raise refuse("the latents are of another autoencoder", f"{channels} channels", str(found))
        values = tensor.read()
    finally:
        file.close()
    values = values[None] if values.ndim == 4 else values
    if not np.isfinite(values).all():
        raise refuse("the latents hold a value that is not finite")
    facts = _facts(file.metadata)
    due, digest = facts.get("latents_sha256"), latents_sha256(values)
    if due not in (None, digest):
        raise refuse("the latents are not those that the file was written with", f"SHA-256 {str(due)[:64]}", digest)
    prompts = _prompts(facts)
    return Latents(values, prompts if len(prompts) == len(values) else (), _provenance(facts))


def read_provenance(path: Path) -> Provenance | None:
    """`Latents.provenance`, without reading the latents. Raises CheckpointError."""
    file = _open(path)
    file.close()
    return _provenance(_facts(file.metadata))


def latents_sha256(values: Float32Array) -> str:
    """Identity of latents."""
    digest = hashlib.sha256(json.dumps(values.shape).encode())
    digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def require_own_latents(
    provenance: Provenance | None, geometry: Geometry, steps: tuple[Step, ...], video: Video, where: str
) -> tuple[str, ...]:
    """Whether latents are of a model and a schedule, as far as that is known before any weight is read.

    ``steps`` as in a manifest. Returns notes for a person: of a file that does not say what it is of, and of clips of
    another size, which serve as well because a decoder is quantised by crops. Raises CheckpointError.
    """
    if provenance is None:
        return (f"{where} does not say which model these latents are of; hvdc calibrate --save-latents would",)
    require_same_run(provenance, geometry, steps, "the latents are", where)
    held = provenance.video
    if (held.frames, held.height, held.width) == (video.frames, video.height, video.width):
        return ()
    return (
        f"the decoder is quantised by latents of another size: {held.frames} frames of {held.width} × {held.height} "
        f"instead of {video.frames} of {video.width} × {video.height}",
    )


def require_own_weights(provenance: Provenance | None, tensors_sha256: str, where: str) -> None:
    """The rest of `require_own_latents`, when the checkpoint's tensors are read. Raises CheckpointError."""
    if provenance is None or provenance.tensors_sha256 == tensors_sha256:
        return
    raise CheckpointError(
        "the latents are of another checkpoint: sizes agree, weights do not",
        where=where,
        expected=f"tensors_sha256 {tensors_sha256} (this checkpoint)",
        found=provenance.tensors_sha256,
        fix="make them of this checkpoint, with the same adapter: hvdc calibrate … --save-latents",
    )


def _open(path: Path) -> SafetensorsFile:
    try:
        return SafetensorsFile(path)
    except CheckpointError as error:
        what = f"the latents cannot be read: {error.what}"
        raise CheckpointError(what, where=str(path), expected=error.expected, found=error.found, fix=_MAKE) from error


def _facts(metadata: dict[str, str]) -> dict[str, Any]:
    """What `write_latents` wrote; of another file none, for the tensor is what counts."""
    try:
        held = json.loads(metadata.get(KEY, "{}"))
    except (ValueError, RecursionError):
        return {}
    return held if isinstance(held, dict) else {}


def _prompts(facts: dict[str, Any]) -> tuple[str, ...]:
    prompts = facts.get("prompts")
    return tuple(map(str, prompts)) if isinstance(prompts, list) else ()


def _provenance(facts: dict[str, Any]) -> Provenance | None:
    try:
        return Provenance.model_validate_json(json.dumps(facts.get("calibration")))
    except (ValidationError, RecursionError):
        return None
