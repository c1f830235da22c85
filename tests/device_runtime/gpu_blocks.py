"""Blocks by the oracle and by the GPU's engine, on the same artifact and the same input."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from exporters.model import Geometry
from exporters.prompts import write_prompts
from hvdc.artifact.reader import open_artifact
from hvdc.pipeline.sources import ArtifactSource
from quant.gemms import DETAIL, SEMANTIC
from quant.paths.arithmetic import At
from quant.paths.block import TextOperands, run_block, text_operands
from quant.paths.gpu import GpuArithmetic
from quant.paths.host import Grid, project_text, rope_rotations
from quant.paths.weights import Weights
from tests import calibrations
from tests.calibrations import SHAPE
from tests.commands import hvdc
from tests.device_runtime.gpu import Array, Gpu
from tests.exporters.models import values, write

BOUND = 2e-2
"""Of what the block changes. All codes and sums are the oracle's but where FP32 sums of the norms, in another order
than torch's, put a value on the other side of a half: then one code of 127 differs, and if it is of a key or a value, a
little of every row. One FP16 unit in one of the inputs does the same: 1.4e-2 at most, and usually 1e-4, of 60 drawn
ones in each of the tests' models."""
USUAL = 1e-3
"""The median over some blocks and sizes."""

EXPERTS = {SEMANTIC: 0, DETAIL: 1}

ODD_MODELS = {
    "heads of 48, no norm2": replace(
        SHAPE, width=192, heads=4, ffn_width=200, rank=5, text_tokens=40, cross_attn_norm=False
    ),
    "nothing a multiple of 32": replace(SHAPE, width=140, heads=1, ffn_width=200, rank=5),
}
"""Sizes that fill no tile."""


def make_artifact(folder: Path, geometry: Geometry) -> Path:
    """A calibrated artifact of random values."""
    checkpoint = write(folder / "model", values(geometry))
    rng = np.random.default_rng(0)
    embedded = rng.standard_normal((geometry.text_tokens, geometry.text_width)).astype(np.float32)
    embeds = folder / "embeds.safetensors"
    write_prompts(embeds, ["a prompt"], [embedded])
    settings = [*calibrations.CLIP, "--set", f"heads={geometry.heads}", "--set", f"text_tokens={geometry.text_tokens}"]
    if geometry.rank:
        settings += ["--lora-alpha", str(round(geometry.rank * geometry.alpha_over_rank))]
    calibrated = calibrations.calibrated(checkpoint, embeds, folder / "c.safetensors", settings=settings)
    output = folder / "made.hvdc"
    done = hvdc("compile", checkpoint, "-o", output, *settings, "-q", "--calibration", calibrated)
    assert done.status == 0, done.err
    return output


@dataclass(frozen=True)
class Oracle:
    """The GPU path in Python on an artifact."""

    path: Path
    arithmetic: GpuArithmetic
    embeds: Tensor

    def steps(self) -> dict[str, int]:
        """Expert -> its last step."""
        return {step.expert: i for i, step in enumerate(self.arithmetic.weights.steps)}

    def text(self, expert: str) -> Tensor:
        return project_text(self.arithmetic.weights, expert, self.embeds)

    def hidden(self, grid: Grid, seed: int = 0) -> Array:
        """As between blocks: some channels much larger than the others; FP16 values in FP32."""
        rng = np.random.default_rng(seed)
        width = self.arithmetic.weights.shape.width
        x = rng.standard_normal((math.prod(grid), width)) * rng.lognormal(0, 0.7, width)
        return x.astype(np.float16).astype(np.float32)

    @torch.no_grad()
    def run(self, step: int, block: int, hidden: Array, grid: Grid) -> Array:
        at = At(step, block, self.arithmetic.weights.steps[step].expert)
        text: TextOperands = text_operands(self.arithmetic, at, self.text(at.expert))
        rotations = rope_rotations(self.arithmetic.weights, grid)
        return run_block(self.arithmetic, at, torch.from_numpy(hidden).half(), text, rotations).float().numpy()


@contextmanager
def oracle_of(path: Path) -> Iterator[Oracle]:
    """The artifact is open as long as the oracle is used."""
    with open_artifact(path) as artifact:
        source = ArtifactSource(artifact)
        assert source.scales is not None
        shape = source.shape
        embeds = np.random.default_rng(3).standard_normal((shape.text_tokens, shape.text_width)).astype(np.float32)
        yield Oracle(path, GpuArithmetic(Weights(source), source.scales), torch.from_numpy(embeds))


def open_engine(gpu: Gpu, oracle: Oracle, grid: Grid) -> None:
    """An engine on an artifact, with the text of each expert."""
    gpu.ask("open", oracle.path, *grid)
    for expert in oracle.steps():
        gpu.ask("text", EXPERTS[expert], oracle.text(expert).numpy())


def run(gpu: Gpu, step: int, block: int, hidden: Array, count: int = 1) -> Array:
    """Blocks by the engine."""
    return gpu.array(np.float32, hidden.shape, "run", step, block, count, hidden)


def distance(found: Array, expected: Array, before: Array) -> float:
    """‖found − expected‖ of what the block changes, within `BOUND`."""
    assert np.isfinite(found).all()
    share = float(np.linalg.norm(found - expected) / np.linalg.norm(expected - before))
    assert share <= BOUND
    return share
