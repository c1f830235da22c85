"""`hvdc_runner` on the trained example model against the Python paths: whole videos, in each mode.

What the CPU computes and the GPU's norms are sums that are rounded once, so that mode gpu gives the path's bits but for
a code in many millions, and modes gpu, hetero and npu stay within a tenth of the path's own error against fp32. In mode
hetero-tensor the GPU quantises what the NPU's engine rounded in another order: there noise that differs by a millionth
moves the Python path itself by half of what it is away from fp32, no implementation can be nearer than that, and the
test asks for no more. Blocks on the same input, where bounds are narrow, are compared in test_gpu_blocks.py,
test_npu_blocks.py and test_tensor.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from examples.moving_shapes.generate import MODEL
from exporters.checkpoint import open_checkpoint
from exporters.prompts import read_prompts
from exporters.schedule import make_schedule
from hvdc.artifact.reader import open_artifact
from hvdc.pipeline.sources import ArtifactSource, CheckpointSource
from hvdc.pipeline.stream_file import StreamVideo
from quant.paths.host import initial_noise, to_tokens
from quant.paths.trajectory import NumericPath, Trajectory, fp32, gpu, hetero, hetero_tensor, npu
from quant.paths.weights import Weights
from tests.commands import hvdc
from tests.device_runtime.blocks import distance
from tests.device_runtime.runs import Runner, stream_of, tokens, why_no_gpu

LATENT = (5, 16, 16)
CLIP = ("--frames", 17, "--height", 128, "--width", 128)
VIDEOS = (StreamVideo(200, 2), StreamVideo(17, 4), StreamVideo(333, 6), StreamVideo(180, 14))
PROMPTS = MODEL / "prompts.safetensors"
CUT = 7
"""Inside the second step of four blocks."""
SHARE = 0.4
"""Of the GPU in mode hetero-tensor."""

PERTURBATION = 1e-6
NEAR = 1.25
"""In mode hetero-tensor: distance to the path, relative to that of the perturbed path to itself; it is one draw."""
AS_GOOD = 0.15
"""How much further from fp32, or nearer, than the path is."""
STEADY = 0.1
"""Distance to the path relative to the path's own error, on these videos, on which the NPU's path is steady."""


@dataclass(frozen=True)
class Example:
    """Python's side: fp32 and the paths, as tokens ``[videos, M, values]``."""

    runner: Runner
    weights: Weights
    embeds: Tensor
    exact: Tensor

    def latents(self, path: NumericPath, perturbation: float = 0.0, count: int = len(VIDEOS)) -> Tensor:
        """Of the first ``count`` videos."""
        found = []
        for video, embeds in zip(VIDEOS[:count], self.embeds[:count], strict=True):
            noise = initial_noise(video.seed, 16, LATENT)
            generator = torch.Generator().manual_seed(1)
            noise = noise * (1.0 + perturbation * torch.randn(noise.shape, generator=generator))
            found.append(to_tokens(Trajectory(path, embeds, LATENT).generate(noise), self.weights.shape))
        return torch.stack(found)


@pytest.fixture(scope="module")
def example(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    folder = tmp_path_factory.mktemp("example")
    artifact, statistics = folder / "example.hvdc", folder / "c.safetensors"
    given = ("--prompts", PROMPTS, "--prompts-limit", 1, *CLIP, "-q")
    assert hvdc("calibrate", MODEL / "transformer", *given, "-o", statistics).status == 0
    done = hvdc("compile", MODEL / "transformer", "--calibration", statistics, *CLIP, "-q", "-o", artifact)
    assert done.status == 0, done.err
    stream = stream_of(folder / "stream", artifact, PROMPTS, VIDEOS)
    (folder / "kernels").mkdir()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with (
        open_artifact(artifact) as opened,
        open_checkpoint(MODEL / "transformer") as checkpoint,
        read_prompts(PROMPTS) as prompts,
    ):
        embeds = torch.stack([torch.from_numpy(prompts.embeds[video.prompt]) for video in VIDEOS])
        runner = Runner(programs["hvdc_runner"], artifact, stream, folder / "kernels")
        held = Example(runner, Weights(ArtifactSource(opened)), embeds, torch.empty(0))
        reference = Weights(CheckpointSource(checkpoint, make_schedule()))
        yield Example(runner, held.weights, embeds, held.latents(fp32(reference)))
    torch.set_num_threads(threads)


def made(example: Example, output: Path, mode: str, *more: object) -> Tensor:
    example.runner.finished(output, mode, *more)
    return torch.stack([torch.from_numpy(tokens(output, video)) for video in range(len(VIDEOS))])


def test_mode_npu(example: Example, tmp_path: Path) -> None:
    found, due = made(example, tmp_path / "out", "npu"), example.latents(npu(example.weights))
    own = distance(due, example.exact)
    print(f"mode npu: {distance(found, due) / own:.2f} of the path's own error")
    assert distance(found, due) < STEADY * own
    assert abs(distance(found, example.exact) / own - 1) < STEADY


@pytest.mark.parametrize("mode", ["npu", "hetero"])
def test_memory_that_is_not_there(example: Example, mode: str, tmp_path: Path) -> None:
    """The artifact's regions and adapters take 4.2 MiB."""
    done = example.runner.run(tmp_path / "out", mode, "--memory-mib", 4)
    assert done.status == 1
    assert done.report["error"]["kind"] == "memory"
    assert "4362240" in done.said.replace(",", "") or "4.2 MiB" in done.said
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")
@pytest.mark.parametrize("mode", ["gpu", "hetero", "hetero-tensor"])
def test_modes_with_the_gpu(example: Example, mode: str, tmp_path: Path) -> None:
    source = example.weights.source
    assert isinstance(source, ArtifactSource)
    scales = source.scales
    assert scales is not None
    path, more = {
        "gpu": (gpu(example.weights, scales), ()),
        "hetero": (hetero(example.weights, scales, CUT), ("--cut", CUT)),
        "hetero-tensor": (hetero_tensor(example.weights, scales, SHARE), ("--gpu-share", SHARE)),
    }[mode]
    found = made(example, tmp_path / "out", mode, *more)
    count = 2 if mode == "hetero-tensor" else len(VIDEOS)  # Python computes every linear on both engines
    found, exact = found[:count], example.exact[:count]
    due, moved = example.latents(path, count=count), example.latents(path, PERTURBATION, count)
    own = distance(due, exact)
    print(
        f"mode {mode}: {distance(found, due) / own:.2f} of the path's own error; moved {distance(moved, due) / own:.2f}"
    )
    assert distance(found, due) < (NEAR * distance(moved, due) if mode == "hetero-tensor" else STEADY * own)
    assert abs(distance(found, exact) / distance(due, exact) - 1) < AS_GOOD
