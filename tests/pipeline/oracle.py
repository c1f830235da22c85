"""What an artifact must hold, worked out by plain loops from docs and nothing else: no quantiser, no packer, no reader.

Slow on purpose, and independent of `quant` and `layouts` on purpose.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SMALLEST_SCALE = 2.0**-126


@dataclass(frozen=True)
class Stored:
    """A tensor as the manifest describes it, and its bytes."""

    entry: dict[str, Any]
    file: dict[str, Any]
    data: bytes

    def floats(self) -> list[float]:
        return list(struct.unpack(f"<{len(self.data) // 4}f", self.data))


def stored_tensors(artifact: Path) -> dict[str, Stored]:
    """Every tensor of an artifact by name, cut out of its file with nothing but the manifest's offsets."""
    found = {}
    for file in json.loads((artifact / "manifest.json").read_text("ascii"))["files"]:
        data = (artifact / file["path"]).read_bytes()
        for entry in file["tensors"]:
            start = entry["offset"]
            found[entry["name"]] = Stored(entry, file, data[start : start + entry["bytes"]])
    return found


def quantised(weight: np.ndarray) -> tuple[list[list[int]], list[float]]:
    """``(q [n][k], s [n])`` by the definition in the numerics: FP32 division, round half even, clip to ±127."""
    rows, scales = [], []
    for row in weight:
        largest = max(abs(float(v)) for v in row)
        scale = np.float32(largest) / np.float32(127)
        if scale < SMALLEST_SCALE:
            rows.append([0] * len(row))
            scales.append(1.0)
            continue
        line = []
        for value in row:
            ratio = np.float32(value) / scale
            line.append(max(-127, min(127, round(float(ratio)))))  # Python's round is half to even
        rows.append(line)
        scales.append(float(scale))
    return rows, scales


def tiled(q: list[list[int]]) -> bytes:
    """``hmx-int8-k4``: tiles [n_tile][k_tile] of 32 × 32, byte of (k, n) at 128·(k/4) + 4·n + (k mod 4)."""
    n_count, k_count = len(q), len(q[0])
    n_tiles, k_tiles = -(-n_count // 32), -(-k_count // 32)
    out = bytearray(n_tiles * k_tiles * 1024)
    for n in range(n_count):
        for k in range(k_count):
            tile = (n // 32) * k_tiles + k // 32
            row, col = k % 32, n % 32
            out[1024 * tile + 128 * (row // 4) + 4 * col + row % 4] = q[n][k] & 0xFF
    return bytes(out)


def padded_floats(values: list[float], count: int, filler: float) -> bytes:
    return struct.pack(f"<{count}f", *values, *[filler] * (count - len(values)))
