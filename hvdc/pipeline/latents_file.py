"""Latents of finished trajectories: what `hvdc calibrate --save-latents` writes, and what a decoder reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from exporters.dtypes import DECODABLE
from exporters.errors import CheckpointError
from exporters.safetensors_file import SafetensorsFile
from hvdc.pipeline.calibration_file import KEY

Float32Array = npt.NDArray[np.float32]

TENSOR = "latents"
_MAKE = "make them with: hvdc calibrate … --save-latents latents.safetensors"


@dataclass(frozen=True)
class Latents:
    """``values`` float32 ``[clips, channels, frames, rows, columns]``, normalised, as the transformer leaves them.
    ``prompts``: that of each clip, empty where the file does not say."""

    values: Float32Array
    prompts: tuple[str, ...]


def read_latents(path: Path, channels: int | None = None) -> Latents:
    """The tensor ``latents`` of a safetensors file, of four dimensions (one clip) or five, any float dtype.

    Raises:
        CheckpointError: no such file, no such tensor, another number of ``channels``, a value that is not finite.
    """

    def refuse(what: str, expected: str = "", found: str = "") -> CheckpointError:
        return CheckpointError(what, where=str(path), expected=expected, found=found, fix=_MAKE)

    try:
        file = SafetensorsFile(path)
    except CheckpointError as error:
        raise refuse(f"the latents cannot be read: {error.what}", error.expected, error.found) from error
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
    prompts = _prompts(file.metadata)
    return Latents(values, prompts if len(prompts) == len(values) else ())


def _prompts(metadata: dict[str, str]) -> tuple[str, ...]:
    """Those that `hvdc calibrate` wrote; of another file none, for the tensor is what counts."""
    try:
        held = json.loads(metadata.get(KEY, "{}"))
    except (ValueError, RecursionError):
        return ()
    prompts = held.get("prompts") if isinstance(held, dict) else None
    return tuple(map(str, prompts)) if isinstance(prompts, list) else ()
