"""Small autoencoders of Wan's kind with random values, and every way in which they are written down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from exporters.decoder.checkpoint import DecoderCheckpoint
from exporters.decoder.geometry import DecoderGeometry, tensor_shapes
from exporters.decoder.names import official_names
from exporters.decoder.weights import DecoderWeights
from exporters.tensor import Float32Array, Tensor

GEOMETRY = DecoderGeometry(
    base_dim=8, z_dim=4, dim_mult=(1, 2, 4, 4), num_res_blocks=1, temporal_upsample=(True, True, False)
)
MEAN, STD = (0.5, -0.25, 0.0, 1.0), (1.5, 0.75, 2.0, 1.0)
FULL = DecoderGeometry()

State = dict[str, torch.Tensor]


def config(geometry: DecoderGeometry = GEOMETRY, **changes: object) -> dict[str, Any]:
    """config.json of the small autoencoder."""
    return {
        "_class_name": "AutoencoderKLWan",
        "base_dim": geometry.base_dim,
        "z_dim": geometry.z_dim,
        "dim_mult": list(geometry.dim_mult),
        "num_res_blocks": geometry.num_res_blocks,
        "temperal_downsample": list(reversed(geometry.temporal_upsample)),
        "latents_mean": [*MEAN, *[0.0] * geometry.z_dim][: geometry.z_dim],
        "latents_std": [*STD, *[1.0] * geometry.z_dim][: geometry.z_dim],
    } | changes


@cache
def autoencoder(geometry: DecoderGeometry = GEOMETRY) -> Any:
    """diffusers' model in float32 with random weights, gains and biases; frames mostly within [-1, 1]."""
    from diffusers import AutoencoderKLWan

    settings = {k: v for k, v in config(geometry).items() if not k.startswith("_")}
    model = AutoencoderKLWan(**settings).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for name, value in model.state_dict().items():
        noise = torch.randn(value.shape, generator=generator)
        fan_in = value[0].numel() if value.ndim > 1 else 1
        if name.endswith("gamma"):
            value.copy_(1.0 + 0.2 * noise)
        else:
            value.copy_(noise * (0.1 if name.endswith("bias") else fan_in**-0.5))
    model.decoder.conv_out.weight.mul_(0.5)
    return model


def state(geometry: DecoderGeometry = GEOMETRY) -> State:
    """Its tensors under diffusers' names; the caller's own."""
    return {name: value.clone() for name, value in autoencoder(geometry).state_dict().items()}


def decoder_state(geometry: DecoderGeometry = GEOMETRY) -> State:
    return {name: value for name, value in state(geometry).items() if name in tensor_shapes(geometry)}


def official(geometry: DecoderGeometry = GEOMETRY) -> State:
    """The same tensors under official Wan's names; of the encoder only the outermost, for it is not read."""
    values = decoder_state(geometry)
    names = official_names(values, geometry.num_res_blocks + 1)
    encoder = {"encoder.conv1.weight": torch.zeros(8, 3, 3, 3, 3), "conv1.bias": torch.zeros(8)}
    return {names[name]: value for name, value in values.items()} | encoder


def write_folder(folder: Path, values: Mapping[str, torch.Tensor], settings: Mapping[str, object]) -> Path:
    """An autoencoder's folder as diffusers writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    return write_file(folder / "diffusion_pytorch_model.safetensors", values).parent


def write_file(path: Path, values: Mapping[str, torch.Tensor]) -> Path:
    save_file({name: value.contiguous() for name, value in values.items()}, path)
    return path


def in_memory(geometry: DecoderGeometry = GEOMETRY) -> DecoderCheckpoint:
    """The opened decoder without a file."""
    values = {name: value.numpy() for name, value in decoder_state(geometry).items()}
    tensors = {name: _tensor(name, values[name]) for name in tensor_shapes(geometry)}
    settings = config(geometry)
    weights = DecoderWeights(tensors, tuple(settings["latents_mean"]), tuple(settings["latents_std"]))
    return DecoderCheckpoint(Path("memory"), geometry, weights, "diffusers", "made up")


def without_values(geometry: DecoderGeometry = FULL) -> DecoderCheckpoint:
    """An opened decoder whose tensors have shapes but must not be read."""

    def refuse(start: int, stop: int) -> Float32Array:
        raise AssertionError("a weight was read")

    shapes = tensor_shapes(geometry)
    tensors = {name: Tensor(name, shape, "F32", name, refuse) for name, shape in shapes.items()}
    ones = (1.0,) * geometry.z_dim
    return DecoderCheckpoint(Path("nowhere"), geometry, DecoderWeights(tensors, ones, ones), "diffusers", "made up")


def _tensor(name: str, value: np.ndarray) -> Tensor:
    return Tensor(name, value.shape, "F32", name, lambda start, stop: value[start:stop])


def latent(frames: int, rows: int, columns: int, geometry: DecoderGeometry = GEOMETRY, seed: int = 1) -> Float32Array:
    """A normalised latent, float32 [z, T, H, W]."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((geometry.z_dim, frames, rows, columns)).astype(np.float32)


def denormalised(z: Float32Array, weights: DecoderWeights) -> torch.Tensor:
    """What diffusers' decoder takes: ``z · std + mean``, [1, z, T, H, W]."""
    shape = (1, -1, 1, 1, 1)
    mean, std = torch.tensor(weights.mean).reshape(shape), torch.tensor(weights.std).reshape(shape)
    return torch.from_numpy(z)[None] * std + mean


def decoded(model: Any, z: Float32Array, weights: DecoderWeights) -> Float32Array:
    """diffusers' frames, [T', 8H, 8W, 3] in [-1, 1]; tiled if the model is set to."""
    with torch.no_grad():
        sample = model.decode(denormalised(z, weights), return_dict=False)[0]
    return sample[0].permute(1, 2, 3, 0).numpy()


OTHERS = {
    "one_residual_block_more": replace(GEOMETRY, num_res_blocks=2),
    "time_last": replace(GEOMETRY, temporal_upsample=(False, False, True)),
    "never_in_time": replace(GEOMETRY, temporal_upsample=(False, False, False)),
    "always_in_time": replace(GEOMETRY, temporal_upsample=(True, True, True)),
    "two_stages": replace(GEOMETRY, dim_mult=(1, 2), temporal_upsample=(True,)),
    "equal_widths": replace(GEOMETRY, dim_mult=(1, 1, 1, 1)),
    "one_stage": replace(GEOMETRY, dim_mult=(2,), temporal_upsample=()),
}
"""Geometries that Wan 2.1 has not, each of which takes another way through the code."""
