"""Compare two artifacts: structure, then bytes, then de-tiled numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hvdc.artifact.reader import Artifact


@dataclass(frozen=True)
class TensorDifference:
    """One tensor whose stored bytes differ. The numbers compare dequantised values."""

    name: str
    changed: int
    """Elements that differ."""
    elements: int
    max_abs: float
    sqnr_db: float
    """Of B with A as the signal; NaN-free: −inf for a zero signal."""


@dataclass(frozen=True)
class Difference:
    """What differs between A and B, each part empty where they agree."""

    structure: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    tensors: list[TensorDifference] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.structure or self.files or self.tensors)


def diff(a: Artifact, b: Artifact) -> Difference:
    """Compare manifests field by field, files by hash, and tensors of files that differ by value."""
    structure = list(_fields("", a.manifest.model_dump(mode="json"), b.manifest.model_dump(mode="json")))
    hashes = {f.path: f.sha256 for f in b.manifest.files}
    files = [f.path for f in a.manifest.files if f.path in hashes and hashes[f.path] != f.sha256]
    tensors = []
    for file in a.manifest.files:
        if file.path not in files:
            continue
        for entry in file.tensors:
            if entry.name in b and (found := _tensor(a, b, entry.name)) is not None:
                tensors.append(found)
    return Difference(structure, files, tensors)


_HASHES = ("sha256", "model_sha256", "tensors_sha256")


def _fields(place: str, a: Any, b: Any) -> Any:
    """Sentences for fields that differ; hashes are left to the comparison of bytes."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(k for k in b if k not in a)]:
            if key in _HASHES:
                continue
            where = f"{place}.{key}" if place else key
            if key not in a or key not in b:
                yield f"{where}: only in {'A' if key in a else 'B'}"
            else:
                yield from _fields(where, a[key], b[key])
    elif isinstance(a, list) and isinstance(b, list) and all(isinstance(i, dict) for i in a + b):
        names = [[i.get("name", i.get("path", n)) for n, i in enumerate(side)] for side in (a, b)]
        left, right = dict(zip(names[0], a, strict=True)), dict(zip(names[1], b, strict=True))
        yield from _fields(place, {str(k): v for k, v in left.items()}, {str(k): v for k, v in right.items()})
    elif a != b:
        yield f"{place}: {a} → {b}"


def _tensor(a: Artifact, b: Artifact, name: str) -> TensorDifference | None:
    """None where stored bytes agree, or where the shapes differ (then the structure says so)."""
    left, right = a.entry(name), b.entry(name)
    if left.shape != right.shape:
        return None
    same_form = (left.dtype, left.tile_order, left.padded_shape) == (right.dtype, right.tile_order, right.padded_shape)
    if same_form and np.array_equal(a.raw(name), b.raw(name)) and _same_scale(a, b, name):
        return None
    x, y = a.dequantized(name).astype(np.float64), b.dequantized(name).astype(np.float64)
    error = np.abs(x - y)
    signal, noise = float(np.square(x).sum()), float(np.square(error).sum())
    ratio = np.inf if noise == 0 else -np.inf if signal == 0 else 10 * np.log10(signal / noise)
    return TensorDifference(name, int((x != y).sum()), x.size, float(error.max()), float(ratio))


def _same_scale(a: Artifact, b: Artifact, name: str) -> bool:
    if a.entry(name).scale is None or b.entry(name).scale is None:
        return a.entry(name).scale == b.entry(name).scale
    return np.array_equal(a.scale(name), b.scale(name))
