"""How a fixed-size record of ``index.bin`` is described."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

MAX_DIMS = 5
"""Dimensions of a tensor, and of a port, at most."""

SCALARS = {
    "u8": ("uint8_t", "<u1"),
    "u16": ("uint16_t", "<u2"),
    "u32": ("uint32_t", "<u4"),
    "u64": ("uint64_t", "<u8"),
    "f32": ("float", "<f4"),
    "f64": ("double", "<f8"),
}
"""Scalar type -> (C type, numpy dtype)."""


@dataclass(frozen=True)
class Field:
    """``count`` scalars of ``type`` in a row, with a sentence for the C comment and the document."""

    name: str
    type: str
    doc: str
    count: int = 1

    @property
    def c_type(self) -> str:
        return SCALARS[self.type][0]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(SCALARS[self.type][1])


@dataclass(frozen=True)
class Record:
    """A fixed-size little-endian struct."""

    name: str
    doc: str
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        offset = 0
        for field in self.fields:
            size = field.dtype.itemsize
            if offset % size:
                raise ValueError(f"{self.name}.{field.name} at {offset} is not aligned to {size}")
            offset += size * field.count
        if offset % 8:
            raise ValueError(f"{self.name} is {offset} bytes, not a multiple of 8")

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        return np.dtype([(f.name, f.dtype, (f.count,)) if f.count > 1 else (f.name, f.dtype) for f in self.fields])

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize

    def offset(self, field: str) -> int:
        """Byte offset of a field."""
        at = 0
        for f in self.fields:
            if f.name == field:
                return at
            at += f.dtype.itemsize * f.count
        raise KeyError(field)
