"""A tiny model with random values, and every way in which people write such a model down."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from exporters.checkpoint import Checkpoint
from exporters.model import ATTENTION_LINEARS, Geometry, base_tensors, canonical_tensors
from exporters.names import Layout, spell

GEOMETRY = Geometry(
    layers=2, width=128, ffn_width=192, heads=1, text_width=32, in_channels=16, out_channels=16, patch=(1, 2, 2),
    freq_dim=64, rank=4, alpha_over_rank=2.0,
)  # fmt: skip
ALPHA = GEOMETRY.rank * GEOMETRY.alpha_over_rank

Values = dict[str, np.ndarray]


def values(geometry: Geometry = GEOMETRY, seed: int = 0) -> Values:
    """Canonical name -> float32 array, magnitudes of a trained model."""
    rng = np.random.default_rng(seed)
    return {n: (rng.standard_normal(s) * 0.05).astype(np.float32) for n, s in canonical_tensors(geometry).items()}


def base_of(model: Mapping[str, np.ndarray]) -> Values:
    return {n: v for n, v in model.items() if "lora" not in n}


def factors_of(model: Mapping[str, np.ndarray]) -> Values:
    return {n: v for n, v in model.items() if ".lora_" in n}


def own_of(model: Mapping[str, np.ndarray]) -> Values:
    """The detail expert's embedding block and head."""
    return {n: v for n, v in model.items() if "_lora." in n}


def spelled(model: Mapping[str, np.ndarray], layout: Layout) -> Values:
    return {spell(n, layout): v for n, v in model.items()}


def merged_of(model: Values, ratio: float = GEOMETRY.alpha_over_rank) -> Values:
    """The detail expert as a plain checkpoint: factors merged into the weights, own tensors under the base's names."""
    out = base_of(model)
    for name in factors_of(model):
        if name.endswith(".lora_A.weight"):
            stem = name.removesuffix(".lora_A.weight")
            delta = model[f"{stem}.lora_B.weight"].astype(np.float64) @ model[name].astype(np.float64)
            out[f"{stem}.weight"] = (model[f"{stem}.weight"] + ratio * delta).astype(np.float32)
    for name, value in own_of(model).items():
        out[name.replace("_lora.", ".", 1)] = value
    return out


def write(path: Path, model: Mapping[str, np.ndarray], dtype: torch.dtype = torch.float32, **metadata: str) -> Path:
    """One safetensors file, without a suffix that could give it away."""
    tensors = {n: torch.from_numpy(np.array(v, copy=True)).to(dtype).contiguous() for n, v in model.items()}
    save_file(tensors, path, metadata=metadata or None)
    return path


def write_shards(folder: Path, model: Values, count: int = 3) -> Path:
    """A sharded directory with its index, as diffusers writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for shard in range(count):
        file = f"diffusion_pytorch_model-{shard + 1:05d}-of-{count:05d}.safetensors"
        names = list(model)[shard::count]
        write(folder / file, {n: model[n] for n in names})
        weight_map.update(dict.fromkeys(names, file))
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def torch_state(model: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {n: torch.from_numpy(np.array(v, copy=True)) for n, v in model.items()}


def kohya(model: Values, names: Layout = "wan", dots: bool = False) -> Values:
    """The detail expert as kohya's tools write it: ``lora_unet_blocks_0_self_attn_q.lora_down.weight`` and alphas."""
    out: Values = dict(own_of(model))
    for name, value in factors_of(model).items():
        stem, _, part = name.removesuffix(".weight").rpartition(".")
        key = spell(f"{stem}.weight", names).removesuffix(".weight").replace(".base_layer", "")
        key = key if dots else "lora_unet_" + key.replace(".", "_")
        out[f"{key}.{'lora_down' if part == 'lora_A' else 'lora_up'}.weight"] = value
        out[f"{key}.alpha"] = np.float32(ALPHA)
    return out


def linears(geometry: Geometry = GEOMETRY) -> list[str]:
    return [f"blocks.{b}.{linear}" for b in range(geometry.layers) for linear in ATTENTION_LINEARS]


def assert_holds(checkpoint: Checkpoint, model: Mapping[str, np.ndarray], geometry: Geometry = GEOMETRY) -> None:
    """Geometry, names, order and every bit of every tensor."""
    assert checkpoint.geometry == geometry
    assert list(checkpoint.tensors) == list(canonical_tensors(geometry))
    for name, shape in canonical_tensors(geometry).items():
        tensor = checkpoint.tensors[name]
        got = tensor.read()
        assert tensor.name == name
        assert got.dtype == np.float32
        assert got.shape == shape == tensor.shape
        np.testing.assert_array_equal(got, model[name], err_msg=name)


def one_expert(geometry: Geometry = GEOMETRY) -> Geometry:
    return replace(geometry, rank=0, alpha_over_rank=0.0)


def without(model: Mapping[str, np.ndarray], names: Iterable[str]) -> Values:
    drop = set(names)
    return {n: v for n, v in model.items() if n not in drop}


BASE_COUNT = len(base_tensors(GEOMETRY))


def write_safetensors(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    """A file of a header, whatever it is, and data; ``length``: what it says of the header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path
