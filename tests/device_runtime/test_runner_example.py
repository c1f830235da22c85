"""`hvdc_runner` on the trained example model against the Python paths: whole videos, in each mode and at every cut.

With exact sums every operation of the NPU's engine is the Python path's to the bit; so are, but for a sum in many
millions that lies next to a half, the norms and what the CPU computes, in FP64 and rounded once. The bound is a tenth
of the path's own error against fp32, on videos that nobody chose. With fast sums the NPU's engine rounds elsewhere,
which grows over a video; what can be asked of it is to be as near to fp32 as the path is.

The program is the optimised one, as it ships: what a sanitizer sees, it sees in the short streams of
runner/test_modes.py, test_runner_tensor.py and test_gpu_blocks.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
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
from quant.scales import Scales
from tests.commands import hvdc
from tests.device_runtime.blocks import distance
from tests.device_runtime.runs import Runner, stream_of, tokens, why_no_gpu

LATENT = (5, 16, 16)
CLIP = ("--frames", 17, "--height", 128, "--width", 128)
VIDEOS = (StreamVideo(0, 0), StreamVideo(61, 5))
"""Not chosen for being steady: on the second, what a block rounds differently grows to up to 7e-3 of the latent."""
PROMPTS = MODEL / "prompts.safetensors"
CUT = 7
"""Inside the second step of four blocks."""
SHARE = 0.4
"""Of the GPU in mode hetero-tensor."""

NEAR = 0.1
"""Distance to the path relative to the path's own error, with exact sums. Measured: 0."""
AS_GOOD = 0.25
"""How much further from fp32, or nearer, than the path is, with fast sums. Measured: 0.16."""


@dataclass(frozen=True)
class Example:
    """Python's side: fp32 and the paths, as tokens ``[videos, M, values]``."""

    runner: Runner
    weights: Weights
    embeds: Tensor
    exact: Tensor

    def latents(self, path: NumericPath) -> Tensor:
        found = []
        for video, embeds in zip(VIDEOS, self.embeds, strict=True):
            noise = initial_noise(video.seed, 16, LATENT)
            found.append(to_tokens(Trajectory(path, embeds, LATENT).generate(noise), self.weights.shape))
        return torch.stack(found)

    @property
    def scales(self) -> Scales:
        source = self.weights.source
        assert isinstance(source, ArtifactSource)
        assert source.scales is not None
        return source.scales

    def path(self, mode: str) -> tuple[NumericPath, tuple[object, ...]]:
        """With the options that make the program compute it."""
        if mode == "npu":
            return npu(self.weights, exact=True), ()
        if mode == "gpu":
            return gpu(self.weights, self.scales), ()
        if mode == "hetero":
            return hetero(self.weights, self.scales, CUT, exact=True), ("--cut", CUT)
        return hetero_tensor(self.weights, self.scales, SHARE, exact=True), ("--gpu-share", SHARE)


def compiled(folder: Path, clip: tuple[object, ...]) -> Path:
    """The example's artifact for a clip, calibrated."""
    artifact, statistics = folder / "example.hvdc", folder / "c.safetensors"
    given = ("--prompts", PROMPTS, "--prompts-limit", 1, *clip, "-q")
    assert hvdc("calibrate", MODEL / "transformer", *given, "-o", statistics).status == 0
    done = hvdc("compile", MODEL / "transformer", "--calibration", statistics, *clip, "-q", "-o", artifact)
    assert done.status == 0, done.err
    return artifact


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def example(optimised: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    folder = tmp_path_factory.mktemp("example")
    artifact = compiled(folder, CLIP)
    stream = stream_of(folder / "stream", artifact, PROMPTS, VIDEOS)
    (folder / "kernels").mkdir()
    with (
        open_artifact(artifact) as opened,
        open_checkpoint(MODEL / "transformer") as checkpoint,
        read_prompts(PROMPTS) as prompts,
    ):
        embeds = torch.stack([torch.from_numpy(prompts.embeds[video.prompt]) for video in VIDEOS])
        runner = Runner(optimised["hvdc_runner"], artifact, stream, folder / "kernels")
        held = Example(runner, Weights(ArtifactSource(opened)), embeds, torch.empty(0))
        reference = Weights(CheckpointSource(checkpoint, make_schedule()))
        yield Example(runner, held.weights, embeds, held.latents(fp32(reference)))


def made(example: Example, output: Path, mode: str, *more: object) -> Tensor:
    example.runner.finished(output, mode, *more)
    return torch.stack([torch.from_numpy(tokens(output, video)) for video in range(len(VIDEOS))])


WITH_GPU = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")
MODES = ["npu", *(pytest.param(mode, marks=WITH_GPU) for mode in ("gpu", "hetero", "hetero-tensor"))]


@pytest.mark.parametrize("mode", MODES)
def test_videos(example: Example, mode: str, tmp_path: Path) -> None:
    path, more = example.path(mode)
    due = example.latents(path)
    found, fast = (made(example, tmp_path / sums, mode, *more, "--npu-sums", sums) for sums in ("exact", "fast"))
    own, differ = distance(due, example.exact), float((found != due).float().mean())
    print(
        f"mode {mode}: {distance(found, due) / own:.2g} of the path's own error, {differ:.2g} of the values; "
        f"fast {distance(fast, due) / own:.2g}, from fp32 {distance(fast, example.exact) / own:.2f}"
    )
    assert distance(found, due) < NEAR * own
    assert abs(distance(fast, example.exact) / own - 1) < AS_GOOD


@WITH_GPU
def test_every_cut(optimised: dict[str, Path], tmp_path: Path) -> None:
    """One small video; what the GPU computes before a cut is the beginning of what it computes before the next. And a
    stream whose cuts a policy chooses."""
    latent, video = (2, 8, 8), VIDEOS[1]
    artifact = compiled(tmp_path, ("--frames", 5, "--height", 64, "--width", 64))
    stream = stream_of(tmp_path / "stream", artifact, PROMPTS, (video,))
    (tmp_path / "kernels").mkdir()
    runner = Runner(optimised["hvdc_runner"], artifact, stream, tmp_path / "kernels")
    with (
        open_artifact(artifact) as opened,
        open_checkpoint(MODEL / "transformer") as checkpoint,
        read_prompts(PROMPTS) as prompts,
    ):
        source = ArtifactSource(opened)
        assert source.scales is not None
        weights, embeds = Weights(source), torch.from_numpy(prompts.embeds[video.prompt])
        noise = initial_noise(video.seed, 16, latent)
        reference = Trajectory(fp32(Weights(CheckpointSource(checkpoint, make_schedule()))), embeds, latent)
        exact = reference.run(reference.start(noise)).latent
        prefix, rest = (
            Trajectory(path, embeds, latent) for path in (gpu(weights, source.scales), npu(weights, exact=True))
        )
        state, shares = prefix.start(noise), []
        for cut in range(prefix.executions + 1):
            state = prefix.run(state, 1) if cut else state
            due = rest.run(state).latent
            more = ("--cut", cut, "--npu-sums", "exact")
            runner.finished(tmp_path / f"out-{cut}", "hetero", *more)
            found = torch.from_numpy(tokens(tmp_path / f"out-{cut}", 0))
            shares.append(distance(found, due) / distance(due, exact))
    print(f"every cut: {max(shares):.2g} of the path's own error")
    assert max(shares) < NEAR, shares
    several = Runner(
        runner.program, artifact, stream_of(tmp_path / "several", artifact, PROMPTS, (video,) * 8), runner.kernels
    )
    rates = ("--gpu-block-s", 0.0001, "--npu-block-s", 0.0001)  # far too small: what is observed decides
    done = several.finished(tmp_path / "policy", "hetero", "--policy", "adaptive", *rates, "--npu-sums", "exact")
    cuts = [held["cut"] for held in done.report["videos"]]
    assert len(set(cuts)) > 1
    for i, cut in enumerate(cuts):
        assert np.array_equal(tokens(tmp_path / "policy", i), tokens(tmp_path / f"out-{cut}", 0)), (i, cut)


@pytest.mark.parametrize("mode", ["npu", "hetero"])
def test_memory_that_is_not_there(example: Example, mode: str, tmp_path: Path) -> None:
    """The artifact's regions and adapters take 4.2 MiB."""
    done = example.runner.run(tmp_path / "out", mode, "--memory-mib", 4)
    assert done.status == 1
    assert done.report["error"]["kind"] == "memory"
    assert "4362240" in done.said.replace(",", "") or "4.2 MiB" in done.said
    assert list((tmp_path / "out").iterdir()) == []
