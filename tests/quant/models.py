"""Small models in memory for the numeric paths, and diffusers' model of each of their experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from exporters.checkpoint import Checkpoint
from exporters.model import TINY, Geometry
from exporters.report import Report
from exporters.schedule import Step, make_schedule
from exporters.synth import synthetic_tensors
from exporters.tensor import from_array
from hvdc.pipeline.sources import CheckpointSource
from quant.calibration.statistics import Statistics
from quant.calibration.watch import StatisticsWatcher, run_watched
from quant.paths.fp32 import FloatArithmetic, Watcher
from quant.paths.trajectory import NumericPath, Trajectory
from quant.paths.weights import Weights
from quant.smooth import Rescaling
from tests.exporters.models import Values, base_of, merged_of, torch_state

if TYPE_CHECKING:  # it takes seconds, which only the process that runs these tests has to spend
    from diffusers import WanTransformer3DModel

LATENT = (2, 6, 8)
"""24 tokens: not a multiple of 32."""
ONE_EXPERT = replace(TINY, rank=0, alpha_over_rank=0.0)


@contextmanager
def one_thread() -> Iterator[None]:
    """Products as small as here are slower on several cores, and much slower where others use them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def tensors_of(geometry: Geometry = TINY, seed: int = 0) -> Values:
    """Canonical name -> float32 array."""
    return {name: tensor.read() for name, tensor in synthetic_tensors(geometry, seed=seed).items()}


def schedule_for(geometry: Geometry = TINY) -> tuple[Step, ...]:
    return make_schedule(experts=geometry.experts)


def weights_of(
    tensors: Mapping[str, np.ndarray], geometry: Geometry = TINY, rescaling: Rescaling | None = None
) -> Weights:
    """A model of these tensors, ready for any path."""
    report = Report(layout="dcm", container="memory", stored_dtypes={}, prefixes=(), experts={})
    held = {name: from_array(name, value) for name, value in tensors.items()}
    checkpoint = Checkpoint(Path("memory"), geometry, held, report)
    return Weights(CheckpointSource(checkpoint, schedule_for(geometry), rescaling))


def prompt(seed: int = 1, geometry: Geometry = TINY) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(geometry.text_tokens, geometry.text_width, generator=generator)


def drawn(seed: int = 2, latent: tuple[int, int, int] = LATENT) -> Tensor:
    return torch.randn(TINY.in_channels, *latent, generator=torch.Generator().manual_seed(seed))


def generated(path: NumericPath, embeds: Tensor, noise: Tensor) -> Tensor:
    """The final latent of a whole trajectory."""
    latent: tuple[int, int, int] = tuple(noise.shape[1:])  # type: ignore[assignment]
    return Trajectory(path, embeds, latent).generate(noise)


def watched(weights: Weights, watcher: Watcher, embeds: Tensor, noise: Tensor) -> Tensor:
    """A trajectory in FP32 that a watcher sees."""
    latent: tuple[int, int, int] = tuple(noise.shape[1:])  # type: ignore[assignment]
    run = Trajectory(NumericPath("watched", FloatArithmetic(weights, watcher=watcher)), embeds, latent)
    seen = watcher.after_block if isinstance(watcher, StatisticsWatcher) else None
    return run.finish(run.run(run.start(noise), seen=seen))


def calibrated(weights: Weights, embeds: Tensor, noise: Tensor) -> Statistics:
    return run_watched(weights, embeds, noise)[0]


def published(tensors: Values, geometry: Geometry, expert: str) -> WanTransformer3DModel:
    """diffusers' model of one expert: the detail expert has its adapters merged."""
    from diffusers import WanTransformer3DModel

    model = WanTransformer3DModel(
        patch_size=geometry.patch, num_attention_heads=geometry.heads, attention_head_dim=geometry.head_dim,
        in_channels=geometry.in_channels, out_channels=geometry.out_channels, text_dim=geometry.text_width,
        freq_dim=geometry.freq_dim, ffn_dim=geometry.ffn_width, num_layers=geometry.layers,
        cross_attn_norm=geometry.cross_attn_norm, eps=geometry.eps,
    )  # fmt: skip
    state = base_of(tensors) if expert == "semantic" else merged_of(tensors, geometry.alpha_over_rank)
    model.load_state_dict(torch_state(state), strict=True)
    return model.eval()


def difference(found: Tensor | np.ndarray, expected: Tensor | np.ndarray) -> float:
    """‖found − expected‖ / ‖expected‖."""
    f, e = (np.asarray(x, np.float64) for x in (found, expected))
    return float(np.linalg.norm(f - e) / np.linalg.norm(e))
