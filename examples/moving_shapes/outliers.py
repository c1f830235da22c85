"""The outlier variant: the same function as the trained model, with the activation outliers of a large one.

A toy's activations are tame. Published measurements of large diffusion transformers show a few channels 20 to 60 times
the median. This script gives such channels to the trained model without changing what it computes: a channel of an
activation is multiplied by f where it is made, and the columns that read it are divided by f.

- the modulated inputs of self-attention and of the up projection: rows of `time_proj` and `scale_shift_table` (of both
  experts) against columns of the linears behind; `time_proj` serves all blocks, so these channels are the same in all;
- gain and bias of `norm2` against the columns of `attn2.to_q`;
- gain of `norm_q` against that of `norm_k`, pairs of channels together where RoPE turns them;
- rows, bias and B rows of `to_v` against the columns of `to_out`.

The adapters' A read the same inputs and are divided too. (Rows of the up projection cannot be scaled: GELU is in
between.) Channels are those whose magnitude depends most on the step, so that the outliers differ from step to step.

    python -m examples.moving_shapes.outliers --out build/moving_shapes_outliers
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from examples.moving_shapes.generate import MODEL
from exporters.checkpoint import Checkpoint, open_checkpoint
from exporters.model import EMBEDDER
from exporters.names import spell
from exporters.prompts import read_prompts
from exporters.schedule import make_schedule
from hvdc.pipeline.sources import CheckpointSource
from quant.calibration.watch import StatisticsWatcher
from quant.paths.fp32 import FloatArithmetic
from quant.paths.host import initial_noise
from quant.paths.trajectory import NumericPath, Trajectory
from quant.paths.weights import Weights
from quant.smooth import Rescaling, Site, sites

LATENT = (5, 16, 16)
CHANNELS = 3
"""Outlier channels of each site; for queries and keys, pairs."""

RATIO = (20.0, 60.0)
"""Their magnitude over the median channel's."""

PROMPTS = 4
Values = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def make_outliers(checkpoint: Checkpoint, maxima: dict[str, Values], seed: int = 0) -> dict[str, Values]:
    """Canonical tensors of the variant, float32. ``maxima``: GEMM input -> ``[steps, layers, channels]``."""
    g, rng = checkpoint.geometry, np.random.default_rng(seed)
    factors = {site.name: _factors(site, maxima, rng) for site in sites(g)}
    # Dividing activations by 1 / f is multiplying them by f.
    rescaling = Rescaling(g, {name: (1.0 / f).astype(np.float32) for name, f in factors.items()})
    tensors = {name: rescaling.tensor(name, t.read()).copy() for name, t in checkpoint.tensors.items()}
    for site in sites(g):
        if site.adaln is not None:
            _through_the_time_embedding(tensors, g.layers, g.width, site.adaln, factors[site.name][0])
    return tensors


def _factors(site: Site, maxima: dict[str, Values], rng: np.random.Generator) -> Values:
    """``[layers, channels]``: 1, but for the outlier channels."""
    # [inputs, steps, layers, channels]: magnitudes over the median channel's of the same step
    seen = np.stack([maxima[name] for name in site.divided])
    ratios = seen / np.maximum(np.median(seen, axis=-1, keepdims=True), 1e-6)
    if site.adaln is not None:  # one embedding serves all blocks: the one where a channel is largest counts
        ratios = ratios.max(axis=2, keepdims=True).repeat(ratios.shape[2], axis=2)
    layers, channels = ratios.shape[2:]
    out = np.ones((layers, channels), np.float32)
    wanted = rng.uniform(*RATIO, (layers, CHANNELS))
    for layer in range(layers):
        peak, least = ratios[:, :, layer].max(axis=(0, 1)), ratios[0, :, layer].min(axis=0)
        by_step = np.where(peak < 0.5, 0.0, peak / np.maximum(least, 1e-6))  # not what is nearly silent
        for i, channel in enumerate(np.argsort(-by_step, kind="stable")[:CHANNELS]):
            pair = slice(channel // 2 * 2, channel // 2 * 2 + 2) if site.paired else channel
            out[layer, pair] = wanted[0 if site.adaln is not None else layer, i] / peak[channel]
    return out


def _through_the_time_embedding(tensors: dict[str, Values], layers: int, width: int, row: int, f: Values) -> None:
    """Multiply shift and 1 + scale of a modulation by f: (1 + table + p) · f = 1 + ((1 + table) · f − 1) + p · f."""
    for block in range(layers):
        table = tensors[f"blocks.{block}.scale_shift_table"]
        table[0, row] *= f
        table[0, row + 1] = (1.0 + table[0, row + 1]) * f - 1.0
    for expert in EMBEDDER.values():
        for part in (row, row + 1):
            span = slice(part * width, (part + 1) * width)
            tensors[f"{expert}.time_proj.weight"][span] *= f[:, None]
            tensors[f"{expert}.time_proj.bias"][span] *= f


def measure(checkpoint: Checkpoint, prompts: Path) -> dict[str, Values]:
    """The largest magnitudes of a few trajectories."""
    weights = Weights(CheckpointSource(checkpoint, make_schedule()))
    watcher = StatisticsWatcher(weights)
    path = NumericPath("measure", FloatArithmetic(weights, watcher=watcher))
    with read_prompts(prompts, limit=PROMPTS) as held:
        for seed, embeds in enumerate(held.embeds):
            noise = initial_noise(seed, checkpoint.geometry.in_channels, LATENT)
            Trajectory(path, torch.from_numpy(embeds.copy()), LATENT).generate(noise)
    return dict(watcher.statistics().channel_absmax)


def write_variant(out: Path, model: Path = MODEL) -> Path:
    """Write the variant's transformer folder below ``out``, float32; returns that folder."""
    with open_checkpoint(model / "transformer") as checkpoint:
        tensors = make_outliers(checkpoint, measure(checkpoint, model / "prompts.safetensors"))
    folder = out / "transformer"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(model / "transformer" / "config.json", folder / "config.json")
    named = {spell(name, "dcm"): np.ascontiguousarray(values) for name, values in tensors.items()}
    save_file(named, folder / "diffusion_pytorch_model.safetensors", {"made": json.dumps("outlier variant")})
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/moving_shapes_outliers"))
    print(f"wrote {write_variant(parser.parse_args().out)}")


if __name__ == "__main__":
    main()
