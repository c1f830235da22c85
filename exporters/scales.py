"""fp8 checkpoints keep one scale beside each weight; here the two become one tensor again.

Two spellings are in use: ``X.scale_weight`` with a marker tensor ``scaled_fp8``, and ``X.weight_scale``.
The value is ``fp8 * scale`` in float32. Activation scales of an fp8 runtime (``scale_input``,
``input_scale``) mean nothing here: hvdc calibrates its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from exporters.dtypes import DECODABLE, FP8
from exporters.errors import CheckpointError
from exporters.files import shorten
from exporters.tensor import Float32Array, Tensor

WEIGHT_SCALE_SUFFIXES = (".scale_weight", ".weight_scale")
_NOT_WEIGHTS = {
    ".scale_input": "activation scale of an fp8 runtime; hvdc calibrates its own",
    ".input_scale": "activation scale of an fp8 runtime; hvdc calibrates its own",
    ".comfy_quant": "marker of the fp8 format; the dtypes and scales say the same",
}


@dataclass(frozen=True)
class Ignored:
    """A tensor of the input that is not used, and why that loses nothing."""

    name: str
    reason: str


def apply_scales(tensors: Mapping[str, Tensor], where: str) -> tuple[dict[str, Tensor], list[Ignored]]:
    """``(tensors, ignored)``: weights with their scales multiplied in, and markers taken out.

    A file without any scale is taken at face value: a plain cast to fp8.

    Raises:
        CheckpointError: a scale without its weight, an fp8 tensor without a scale beside ones that have it,
            a scale that is not one positive finite number.
    """
    out: dict[str, Tensor] = {}
    scales: dict[str, Tensor] = {}
    ignored: list[Ignored] = []
    for key, tensor in tensors.items():
        suffix = next((s for s in WEIGHT_SCALE_SUFFIXES if key.endswith(s)), None)
        reason = next((why for end, why in _NOT_WEIGHTS.items() if key.endswith(end)), None)
        if key == "scaled_fp8" or key.endswith(".scaled_fp8"):
            reason = _NOT_WEIGHTS[".comfy_quant"]
        if suffix:
            weight = f"{key.removesuffix(suffix)}.weight"
            if weight in scales:
                raise _error(where, f"tensor {weight!r} has two scales", f"{scales[weight].name!r} and {key!r}")
            scales[weight] = tensor
        elif reason:
            ignored.append(Ignored(key, reason))
        else:
            out[key] = tensor
    orphans = [scales[w].name for w in scales if w not in out]
    if orphans:
        raise _error(where, f"{len(orphans)} scales have no weight beside them", shorten(orphans))
    if scales:
        bare = [k for k, t in out.items() if t.stored_dtype in FP8 and k not in scales]
        if bare:
            raise _error(where, f"{len(bare)} fp8 tensors have no scale although others have one", shorten(bare))
    for weight, scale in scales.items():
        out[weight], note = _scaled(out[weight], scale, where)
        if note:
            ignored.append(note)
    return out, ignored


def _error(where: str, what: str, found: str) -> CheckpointError:
    return CheckpointError(
        what,
        where=where,
        expected="one scale tensor of one number beside every fp8 weight, or none at all",
        found=found,
        fix="give an unquantised (bf16 or fp32) checkpoint, or an fp8 file with all of its scales",
    )


def _scaled(weight: Tensor, scale: Tensor, where: str) -> tuple[Tensor, Ignored | None]:
    if np.prod(scale.shape, dtype=np.int64) != 1 or scale.stored_dtype not in DECODABLE:
        raise _error(
            where,
            f"the scale {scale.name!r} is not one number",
            f"{scale.stored_dtype} of shape {scale.shape}",
        )
    value = np.float32(scale.read().reshape(()))
    if not np.isfinite(value) or value <= 0:
        raise _error(where, f"the scale {scale.name!r} is not a positive finite number", str(value))
    if weight.stored_dtype not in FP8:
        if value != 1:
            raise _error(
                where,
                f"{weight.name!r} has a scale although it isn't stored in fp8, so it is unclear if it was applied",
                f"{weight.stored_dtype} with scale {value}",
            )
        return weight, Ignored(scale.name, "scale 1 of a weight that isn't fp8")

    def read(start: int, stop: int, inner: Tensor = weight, factor: np.float32 = value) -> Float32Array:
        rows = inner.rows(start, stop) * factor
        return rows.astype(np.float32, copy=False)

    return replace(weight, reader=read), None
