"""What `benchmarks.bench_decoder` measures, and how it writes sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exporters.decoder.geometry import DecoderGeometry
from exporters.qnn.options import GIB, Limits
from exporters.tensor import Float32Array

LATENT_FRAMES = 3
LIMITS = Limits(seconds=3600)


@dataclass(frozen=True)
class Plan:
    """What is measured: a decoder and its tile in latent pixels. ``folder`` holds what is made on the way."""

    folder: Path
    geometry: DecoderGeometry
    tile: tuple[int, int]

    def latent(self, seed: int, tile: tuple[int, int] | None = None) -> Float32Array:
        """A normalised latent, float32 [z, T, h, w]."""
        rng = np.random.default_rng(seed)
        shape = (self.geometry.z_dim, LATENT_FRAMES, *(tile or self.tile))
        return rng.standard_normal(shape).astype(np.float32)

    @property
    def vae(self) -> Path:
        return self.folder / "vae"

    @property
    def encodings(self) -> Path:
        return self.folder / "encodings.json"

    def frames(self, name: str) -> Path:
        return self.folder / f"frames-{name}.npy"

    def quantised(self, variant: str) -> Path:
        return self.folder / f"{variant}.onnx"


def gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
