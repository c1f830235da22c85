"""Latents of finished trajectories: what `hvdc calibrate --save-latents` writes, and what a decoder reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays

from exporters.errors import CheckpointError
from hvdc.pipeline.calibration_file import unpack

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
        data = path.read_bytes()
    except OSError as error:
        raise refuse("the latents cannot be read", found=error.strerror or str(error)) from error
    prompts: tuple[str, ...] = ()
    try:
        arrays, facts = unpack(data)
        prompts = tuple(str(prompt) for prompt in facts.get("prompts", ()))
    except ValueError:  # not our own file: the tensor is what counts
        try:
            arrays = load_arrays(data)
        except (SafetensorError, ValueError) as error:
            raise refuse("this is not a safetensors file", found=str(error)) from error
    if TENSOR not in arrays:
        raise refuse("the file holds no latents", f"a tensor {TENSOR!r}", ", ".join(sorted(arrays)[:8]) or "no tensor")
    values = arrays[TENSOR]
    values = values[None] if values.ndim == 4 else values
    if values.ndim != 5 or 0 in values.shape or values.dtype.kind != "f":
        shape = f"{values.dtype} {list(arrays[TENSOR].shape)}"
        raise refuse("the latents have another shape", "float [clips, channels, frames, rows, columns]", shape)
    if channels is not None and values.shape[1] != channels:
        raise refuse("the latents are of another autoencoder", f"{channels} channels", str(values.shape[1]))
    if not np.isfinite(values).all():
        raise refuse("the latents hold a value that is not finite")
    if len(prompts) != len(values):
        prompts = ()
    return Latents(np.ascontiguousarray(values, np.float32), prompts)
