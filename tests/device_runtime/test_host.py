"""What the CPU does around the blocks, against quant/paths/host.py on the same artifact; and the worker pool."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from device_runtime.build import SOURCE
from exporters.model import Geometry
from quant.paths import host
from quant.paths.weights import Weights
from tests.artifacts import make_artifact
from tests.commands import compiled
from tests.device_runtime.blocks import EXPERTS, Blocks, distance, weights_of
from tests.device_runtime.kernels import LEVELS, Kernels, usable_levels
from tests.exporters.models import GEOMETRY, values, write

ROUNDING = 2e-6
"""‖found − due‖ / ‖due‖ of two FP32 computations that add up in different orders."""
STEPS = 6

PATCHES: dict[str, Geometry] = {
    "usual": replace(GEOMETRY, text_width=40),
    "ragged": replace(GEOMETRY, width=140, text_width=40, in_channels=6, out_channels=6),
    "high": replace(GEOMETRY, in_channels=3, out_channels=3, patch=(1, 4, 2)),
    "deep": replace(GEOMETRY, patch=(5, 1, 2)),
}
"""Models with other patches and channel counts: every axis has a size of its own somewhere."""


@pytest.fixture(scope="module", params=PATCHES)
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """17 frames of 64 x 64 pixels: latents of 5 frames of 8 x 8."""
    folder = tmp_path_factory.mktemp(request.param)
    checkpoint = write(folder / "model", values(PATCHES[request.param]))
    return compiled(checkpoint, folder / "model.hvdc", "--lora-alpha", 8)


@pytest.fixture
def blocks(programs: dict[str, Path], artifact: Path, tmp_path: Path) -> Blocks:
    return Blocks(programs["hvdc_blocks"], artifact, tmp_path)


@pytest.fixture(scope="module")
def weights(artifact: Path) -> Weights:
    return weights_of(artifact)


def noise(weights: Weights, latent: host.Grid = (5, 8, 8)) -> torch.Tensor:
    return host.initial_noise(3, weights.shape.in_channels, latent)


def test_tokens_from_a_latent_and_back(blocks: Blocks, weights: Weights) -> None:
    latent = noise(weights)
    blocks.run(
        "latent", blocks.put("in", latent), "save", "tokens", blocks.folder / "t", "save", "latent", blocks.folder / "l"
    )
    tokens = host.to_tokens(latent, weights.shape)
    assert torch.equal(blocks.get("t", *tokens.shape), tokens)
    assert torch.equal(blocks.get("l", *latent.shape), latent)


def test_patch_embedding(blocks: Blocks, weights: Weights) -> None:
    tokens = host.to_tokens(noise(weights), weights.shape)
    blocks.run("tokens", blocks.put("t", tokens), "embed", "save", "hidden", blocks.folder / "h")
    due = host.embed_tokens(weights, tokens)
    assert distance(blocks.get("h", *due.shape), due) < ROUNDING


@pytest.mark.parametrize("expert", EXPERTS)
def test_text_projection_with_each_experts_own_weights(blocks: Blocks, weights: Weights, expert: str) -> None:
    embeds = torch.randn(weights.shape.text_tokens, weights.shape.text_width, generator=torch.manual_seed(1))
    blocks.run("project", EXPERTS.index(expert), blocks.put("e", embeds), blocks.folder / "text")
    due = host.project_text(weights, expert, embeds)
    assert distance(blocks.get("text", *due.shape), due) < ROUNDING
    other = host.project_text(weights, EXPERTS[1 - EXPERTS.index(expert)], embeds)
    assert distance(other, due) > 1000 * ROUNDING, "the other expert's weights would be seen"


@pytest.mark.parametrize("step", [0, STEPS - 1])
def test_head_and_euler_step(blocks: Blocks, weights: Weights, step: int) -> None:
    tokens = host.to_tokens(noise(weights), weights.shape)
    hidden = torch.randn(len(tokens), weights.shape.width, generator=torch.manual_seed(2)) * 3 + 1
    due = host.velocity(weights, step, weights.steps[step].expert, hidden)
    blocks.run(
        "hidden", blocks.put("h", hidden), "tokens", blocks.put("t", tokens), "velocity", step,
        "euler", step, "save", "velocity", blocks.folder / "v", "save", "tokens", blocks.folder / "x",
    )  # fmt: skip
    found = blocks.get("v", *due.shape)
    assert distance(found, due) < ROUNDING
    assert torch.equal(blocks.get("x", *due.shape), tokens + found * weights.steps[step].step_size)


@pytest.mark.parametrize("grid", [(5, 4, 4), (1, 1, 1), (3, 2, 7)])
def test_rotations_come_from_fp64_angles(blocks: Blocks, weights: Weights, grid: host.Grid) -> None:
    blocks = replace(blocks, options=("--grid", ",".join(map(str, grid))))
    blocks.run("rotations", blocks.folder / "r")
    due = torch.view_as_real(host.rope_rotations(weights, grid))
    found = blocks.get("r", *due.shape)
    assert (found - due).abs().max() <= 2**-23, "two libraries' cosines may differ in the last place"


def test_a_grid_may_be_another_than_the_artifacts(blocks: Blocks, weights: Weights) -> None:
    pt, ph, pw = weights.shape.patch
    latent = noise(weights, (2 * pt, 3 * ph, 5 * pw))
    blocks = replace(blocks, options=("--grid", "2,3,5"))
    blocks.run("latent", blocks.put("in", latent), "save", "tokens", blocks.folder / "t")
    assert torch.equal(blocks.get("t", 30, -1), host.to_tokens(latent, weights.shape))


def test_threads_do_not_change_a_bit(blocks: Blocks, weights: Weights) -> None:
    """300 tokens are two pieces of work."""
    embeds = torch.randn(weights.shape.text_tokens, weights.shape.text_width, generator=torch.manual_seed(1))
    tokens = torch.randn(300, len(weights.values("proj_out.bias")))
    found = set()
    for threads in (1, 2, 5):
        few = replace(blocks, options=("--threads", threads, "--grid", "3,10,10"))
        few.run(
            "project", 1, few.put("e", embeds), few.folder / "text", "tokens", few.put("t", tokens), "embed",
            "save", "hidden", few.folder / "h", "euler", 5, "save", "tokens", few.folder / "x",
        )  # fmt: skip
        found.add(b"".join((few.folder / name).read_bytes() for name in ("text", "h", "x")))
    assert len(found) == 1


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (("embed", "hurry"), '"hurry" is no action'),
        (("run", "1", "2"), '"run" is no action, or lacks arguments'),
        (("run", "x", "0", "1"), '"x" is not a number'),
        (("engine", "cpu"), 'there is no engine "cpu"'),
        (("velocity", "6"), "6 steps, and none of number 6"),
        (("hidden", "/nowhere/h"), "cannot be opened"),
        (("save", "hidden", "/nowhere/h"), "cannot be written"),
        (("save", "everything", "/dev/null"), 'what is "everything"?'),
        (("tokens", "/dev/null"), "does not hold exactly"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(
    programs: dict[str, Path], tiny_artifact: Path, tmp_path: Path, actions: tuple[str, ...], words: str
) -> None:
    assert words in Blocks(programs["hvdc_blocks"], tiny_artifact, tmp_path).refused(*actions)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--grid", "0,1,1"), "is empty"),
        (("--grid", "70000,1,1"), "above 2^24 tokens"),
        (("--grid", "60000,60000,60000"), "above 2^24 tokens"),
        (("--grid", "1,1"), "what is --grid 1,1?"),
        (("--threads", "257"), "more than the limit of 256"),
        (("--cpu", "best"), 'no kernels for "best"'),
    ],
)
def test_options_that_make_no_sense(
    programs: dict[str, Path], tiny_artifact: Path, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    assert words in Blocks(programs["hvdc_blocks"], tiny_artifact, tmp_path, options).refused("embed")


def test_an_artifact_that_lacks_a_tensor_is_refused_by_its_name(programs: dict[str, Path], tmp_path: Path) -> None:
    """The reader's own test artifacts have a patch embedding and no text projection."""
    blocks = Blocks(programs["hvdc_blocks"], make_artifact(tmp_path / "a.hvdc"), tmp_path)
    assert "no tensor condition_embedder.text_embedder.linear_1.weight" in blocks.refused()
    assert "hvdc_blocks: " in replace(blocks, artifact=tmp_path / "absent").refused()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (31, 32, 33), (32, 5, 256), (33, 31, 257), (70, 32, 600)])
def test_fp32_panels_of_any_size(programs: dict[str, Path], level: str, m: int, n: int, k: int) -> None:
    if level not in usable_levels(programs["hvdc_kernels"]):
        pytest.skip(f"this processor does not execute {level}")
    rng = np.random.default_rng(m)
    x, w, bias = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, 32), n))
    with Kernels(programs["hvdc_kernels"], level) as kernels:
        found = kernels.ask("panel", m, n, k, arrays=(x, w, bias), dtype=np.float32).reshape(m, n)
    due = x.astype(np.float64) @ w[:, :n] + bias
    assert np.all(np.abs(found - due) <= 2.0**-22 * (np.abs(x).astype(np.float64) @ np.abs(w[:, :n]) + np.abs(bias)))


@pytest.mark.parametrize(("compiler", "language"), [("cc", "c"), ("c++", "c++")])
@pytest.mark.parametrize("header", ["bind", "cpu", "host", "npu", "pool"])
def test_headers_stand_alone(compiler: str, language: str, header: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    source = tmp_path / "source"
    source.write_text(f'#include "hvdc/{header}.h"\n#include "hvdc/{header}.h"\n')
    folders = [arg for part in ("core", "host", "npu") for arg in ("-I", str(SOURCE / part / "include"))]
    command = [
        compiler,
        "-x",
        language,
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        *folders,
        "-fsyntax-only",
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_pool_does_everything_once(programs: dict[str, Path]) -> None:
    for threads in (1, 2, 7):
        with Kernels(programs["hvdc_kernels"], "generic", threads) as kernels:
            for total, grain in itertools.product((1, 2, 100, 1001), (1, 3, 100, 5000)):
                assert np.all(kernels.ask("pool", total, grain, dtype=np.uint8) == 1)
