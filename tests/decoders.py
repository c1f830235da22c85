"""A small autoencoder with a transformer's sixteen channels, latents for it, and artifacts that hold its decoder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from exporters.decoder.geometry import DecoderGeometry, tensor_shapes
from hvdc.artifact.decoder import Decoder
from hvdc.artifact.reader import open_artifact
from tests.commands import Result, hvdc

VAE = DecoderGeometry(
    base_dim=8, z_dim=16, dim_mult=(1, 1, 1, 1), num_res_blocks=1, temporal_upsample=(True, True, False)
)
"""The strides of Wan 2.1, × 8 in space and × 4 in time, with as few channels and blocks as can be."""

FRAMES, ROWS, COLUMNS = 2, 6, 8
"""Latent frames, rows and columns."""
CLIP = ("--frames", 5, "--height", 48, "--width", 64)
SETTINGS = (*CLIP, "--lora-alpha", 8, "--set", "text_tokens=6")
"""For the model of `tests.calibrations`."""
WIDE = ("--set", "decoder_budget=0.9")
"""16 bits nearly everywhere, for weights of noise amplify every rounding."""
QUICK = ("--set", "decoder_optimization=1")
"""Compiled fast."""
TILED = "4x6"
"""A tile of which a latent has two by two."""

Float32Array = np.ndarray


def write_vae(folder: Path, geometry: DecoderGeometry = VAE, seed: int = 0) -> Path:
    """A folder as diffusers writes it, of random weights; of the encoder there is nothing."""
    rng = np.random.default_rng(seed)
    values = {}
    for name, shape in tensor_shapes(geometry).items():
        noise = rng.standard_normal(shape)
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        if name.endswith("gamma"):
            value = 1.0 + 0.2 * noise
        else:
            value = noise * (0.1 if name.endswith("bias") else fan_in**-0.5)
        values[name] = np.ascontiguousarray(value * (0.5 if "conv_out" in name else 1.0), np.float32)
    folder.mkdir(parents=True)
    save_file(values, folder / "diffusion_pytorch_model.safetensors")
    config = {
        "_class_name": "AutoencoderKLWan",
        "base_dim": geometry.base_dim,
        "z_dim": geometry.z_dim,
        "dim_mult": list(geometry.dim_mult),
        "num_res_blocks": geometry.num_res_blocks,
        "temperal_downsample": list(reversed(geometry.temporal_upsample)),
        "latents_mean": [0.25] * geometry.z_dim,
        "latents_std": [1.5] * geometry.z_dim,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def random_latents(
    clips: int = 3, frames: int = FRAMES, rows: int = ROWS, columns: int = COLUMNS, channels: int = VAE.z_dim
) -> Float32Array:
    return np.random.default_rng(0).standard_normal((clips, channels, frames, rows, columns)).astype(np.float32)


def write_latents(path: Path, values: Float32Array) -> Path:
    save_file({"latents": values}, path)
    return path


def compile_decoder(checkpoint: Path, output: Path, *more: object, backend: str | None = "onnx") -> Result:
    """``hvdc compile`` with the small clip's settings; whatever it says is meant for people."""
    quick = () if backend == "onnx" else QUICK
    compiler = () if backend is None else ("--decoder-backend", backend, *WIDE, *quick)
    done = hvdc("compile", checkpoint, "-o", output, *SETTINGS, *compiler, *more)
    assert "Traceback" not in done.err
    assert "unexpected" not in done.err
    return done


def compiled_decoder(checkpoint: Path, output: Path, *more: object, backend: str = "onnx") -> Path:
    """`compile_decoder`, which must succeed; returns ``output``."""
    done = compile_decoder(checkpoint, output, *more, "-q", backend=backend)
    assert done.status == 0, done.err
    return output


def entry_of(artifact: Path) -> Decoder:
    with open_artifact(artifact) as opened:
        entry = opened.manifest.decoder
    assert entry is not None
    return entry


def cached(folder: Path) -> list[Path]:
    """All in a cache but the locks, which stay."""
    return sorted(path for path in folder.iterdir() if path.suffix != ".lock")
