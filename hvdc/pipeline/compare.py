"""Compare two artifacts: structure, then bytes, then de-tiled numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hvdc.artifact.manifest import Manifest
from hvdc.artifact.reader import Artifact

CHUNK_BYTES = 4 << 20

LONGEST_VALUE = 80
"""Characters of a value that a sentence shows."""


@dataclass(frozen=True)
class TensorDifference:
    """One tensor whose stored bytes differ. The numbers compare dequantised values."""

    name: str
    changed: int
    """Elements that differ."""
    elements: int
    max_abs: float
    sqnr_db: float
    """Of B with A as the signal: −inf for a zero signal, NaN where a value is NaN."""


@dataclass(frozen=True)
class Difference:
    """What differs between A and B, each part empty where they agree."""

    tools: list[str] = field(default_factory=list)
    """Versions of the tools that wrote them: said, but no difference of the artifacts."""
    structure: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    tensors: list[TensorDifference] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.structure or self.files or self.tensors)


def diff(a: Artifact, b: Artifact) -> Difference:
    """Compare manifests field by field, files byte by byte, and tensors of files that differ by value.

    Recorded hashes decide only where they differ: an artifact whose data were damaged later still has the old ones.
    Raises ArtifactError for a file that cannot be read.
    """
    tools = list(_fields("tools", a.manifest.tools, b.manifest.tools))
    structure = list(manifest_differences(a.manifest, b.manifest, leave_out={"tools"}))
    others = {f.path: i for i, f in enumerate(b.manifest.files)}
    files = [f.path for i, f in enumerate(a.manifest.files) if f.path in others and _differ(a, i, b, others[f.path])]
    tensors = []
    for file in a.manifest.files:
        if file.path not in files:
            continue
        for entry in file.tensors:
            if entry.name in b and (found := _tensor(a, b, entry.name)) is not None:
                tensors.append(found)
    return Difference(tools, structure, files, tensors)


def _differ(a: Artifact, i: int, b: Artifact, j: int) -> bool:
    left, right = a.manifest.files[i], b.manifest.files[j]
    if (left.bytes, left.sha256) != (right.bytes, right.sha256):
        return True
    sizes = ((at, min(CHUNK_BYTES, left.bytes - at)) for at in range(0, left.bytes, CHUNK_BYTES))
    return any(not np.array_equal(a.read(i, *piece), b.read(j, *piece)) for piece in sizes)


_HASHES = ("sha256", "model_sha256", "tensors_sha256")


def manifest_differences(a: Manifest, b: Manifest, leave_out: set[str]) -> Iterator[str]:
    """A sentence for each field of two manifests that differs, hashes and the named top-level fields aside."""
    yield from _fields("", a.model_dump(mode="json", exclude=leave_out), b.model_dump(mode="json", exclude=leave_out))


def _fields(place: str, a: Any, b: Any) -> Iterator[str]:
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
        common = [[name for name in side if name in left and name in right] for side in names]
        if common[0] != common[1]:
            yield f"{place}: in another order"
    elif (a is None or b is None) and isinstance(a or b, dict):
        yield f"{place}: only in {'B' if a is None else 'A'}"
    elif a != b:
        yield f"{place}: {_short(a)} → {_short(b)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _tensor(a: Artifact, b: Artifact, name: str) -> TensorDifference | None:
    """None where stored bytes agree, or where the shapes differ (then the structure says so)."""
    left, right = a.entry(name), b.entry(name)
    if left.shape != right.shape:
        return None
    same_form = (left.dtype, left.tile_order, left.padded_shape) == (right.dtype, right.tile_order, right.padded_shape)
    if same_form and np.array_equal(a.raw(name), b.raw(name)) and _same_scale(a, b, name):
        return None
    x, y = a.dequantized(name).astype(np.float64), b.dequantized(name).astype(np.float64)
    with np.errstate(all="ignore"):  # a damaged scale may be anything
        error = np.abs(x - y)
        signal, noise = float(np.square(x).sum()), float(np.square(error).sum())
        ratio = np.inf if noise == 0 else -np.inf if signal == 0 else 10 * np.log10(signal / noise)
    return TensorDifference(name, int((x != y).sum()), x.size, float(error.max()), float(ratio))


def _same_scale(a: Artifact, b: Artifact, name: str) -> bool:
    if a.entry(name).scale is None or b.entry(name).scale is None:
        return a.entry(name).scale == b.entry(name).scale
    return np.array_equal(a.scale(name), b.scale(name))
