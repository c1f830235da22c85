"""The NPU executor's blocks and whole trajectories with fast sums against quant/paths/npu.py, and what an engine is.

Both round to FP16 some twenty times in a block. Where sums are added in another order, a rounding falls to the other
side now and then, and each next rounding makes more of that. So with fast sums a wrong gate, norm, head, position or
expert (1e-2 and more) is seen here; that nothing else is wrong, test_npu_exact.py shows, where no bit may differ.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.moving_shapes.generate import MODEL
from examples.moving_shapes.shapes import load_prompts
from exporters.checkpoint import open_checkpoint
from exporters.schedule import make_schedule
from hvdc.artifact.manifest import TensorEntry
from hvdc.pipeline.sources import CheckpointSource
from quant.paths import host
from quant.paths.arithmetic import Arithmetic, At
from quant.paths.block import run_block, text_operands
from quant.paths.trajectory import Trajectory, fp32, npu
from quant.paths.weights import Weights
from tests.artifacts import read_manifest, write_manifest
from tests.commands import compiled
from tests.device_runtime.blocks import EXPERTS, Blocks, distance, weights_of
from tests.device_runtime.kernels import usable_levels
from tests.quant.models import one_thread

BLOCK = 8e-4
"""Largest difference with fast sums, relative to what the block changes. Measured: up to 4.2e-4."""

AS_GOOD = 0.10
"""How much further from fp32, or nearer, whole clips with fast sums are than with exact ones."""

LATENT = (5, 16, 16)
CLIPS = ((17, 4), (61, 5))
"""(prompt, seed). On the last, noise as large as a block's difference, added after every block, ends anywhere from 8e-4
to 7e-3 of the latent."""


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("example") / "moving_shapes.hvdc"
    return compiled(MODEL / "transformer", output, "--frames", 17, "--height", 128, "--width", 128)


@dataclass(frozen=True)
class Case:
    """A block execution's surroundings: hidden state, text, positions."""

    weights: Weights
    grid: host.Grid
    hidden: Tensor
    text: dict[str, Tensor]

    def block(self, arithmetic: Arithmetic, step: int, block: int, hidden: Tensor | None = None) -> Tensor:
        """By the oracle."""
        at = At(step, block, self.weights.steps[step].expert)
        operands = text_operands(arithmetic, at, self.text[at.expert])
        rotations = host.rope_rotations(self.weights, self.grid)
        return run_block(arithmetic, at, self.hidden if hidden is None else hidden, operands, rotations)

    def texts(self, blocks: Blocks) -> tuple[object, ...]:
        """Actions that give the engine both experts' text."""
        actions: list[object] = []
        for expert, text in self.text.items():
            actions += ["projected", EXPERTS.index(expert), blocks.put(f"text-{expert}", text)]
        return tuple(actions)


def case(artifact: Path, grid: host.Grid) -> Case:
    """A hidden state as the patch embedding of noise makes it; a prompt of noise."""
    weights = weights_of(artifact)
    tokens = torch.randn(
        grid[0] * grid[1] * grid[2], len(weights.values("proj_out.bias")), generator=torch.manual_seed(4)
    )
    embeds = torch.randn(weights.shape.text_tokens, weights.shape.text_width, generator=torch.manual_seed(5))
    text = {expert: host.project_text(weights, expert, embeds) for expert in EXPERTS}
    return Case(weights, grid, host.embed_tokens(weights, tokens), text)


def on(programs: dict[str, Path], artifact: Path, folder: Path, grid: host.Grid, *options: object) -> Blocks:
    options = options or ("--threads", 2)
    return Blocks(programs["hvdc_blocks"], artifact, folder, ("--grid", ",".join(map(str, grid)), *options))


STEP = {"semantic": 0, "detail": 5}


@pytest.mark.parametrize("expert", EXPERTS)
@pytest.mark.parametrize(
    ("model", "grid"),
    [
        ("example", (5, 8, 8)),
        ("tiny_artifact", (1, 1, 1)),
        ("tiny_artifact", (1, 7, 8)),  # M mod 32 = 24, as of the real video
        ("tiny_artifact", (1, 5, 8)),  # 8
        ("tiny_artifact", (1, 31, 34)),  # more than 512 keys, and than 1024 rows
        ("ragged_artifact", (1, 5, 7)),
        ("ragged_artifact", (2, 4, 8)),
    ],
)
def test_a_block_is_the_oracles(
    programs: dict[str, Path],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    model: str,
    grid: host.Grid,
    expert: str,
) -> None:
    artifact = request.getfixturevalue(model)
    c, blocks, step = case(artifact, grid), on(programs, artifact, tmp_path, grid), STEP[expert]
    for block in range(c.weights.shape.layers):
        due = c.block(npu(c.weights, exact=True).rest, step, block)
        hidden = blocks.put("h", c.hidden)
        blocks.run(*c.texts(blocks), "hidden", hidden, "run", step, block, 1, "save", "hidden", blocks.folder / "y")
        y, change = blocks.get("y", *due.shape), (due - c.hidden).norm()
        assert float((y - due).norm() / change) < BLOCK
        other = c.block(fp32(c.weights).rest, 5 - step, block)
        assert float((y - other).norm() / change) > 10 * BLOCK, "the other expert would not be seen"


def clip(prompt: int, seed: int) -> tuple[Tensor, Tensor]:
    """Embeddings and initial noise."""
    _, embeddings = load_prompts(MODEL / "prompts.safetensors")
    return embeddings[prompt].float(), host.initial_noise(seed, 16, LATENT)


def test_trajectories_of_the_example(optimised: dict[str, Path], example: Path, tmp_path: Path) -> None:
    """Every function of the runtime: tokens, embedding, text, 24 blocks, six heads, and back to a latent. With exact
    sums they are the oracle's to the bit."""
    weights = weights_of(example)
    found: dict[str, list[Tensor]] = {"fast": [], "exact": []}
    exact = []
    with open_checkpoint(MODEL / "transformer") as checkpoint:
        reference = Weights(CheckpointSource(checkpoint, make_schedule()))
        for embeds, noise in (clip(*of) for of in CLIPS):
            exact.append(Trajectory(fp32(reference), embeds, LATENT).generate(noise))
            for sums, latents in found.items():
                blocks = Blocks(optimised["hvdc_blocks"], example, tmp_path, ("--threads", 2, "--npu-sums", sums))
                text = blocks.put("e", embeds)
                actions: list[object] = ["text", 0, text, "text", 1, text, "latent", blocks.put("z", noise)]
                for step in range(len(weights.steps)):
                    actions += ["embed", "run", step, 0, weights.shape.layers, "euler", step]
                blocks.run(*actions, "save", "latent", blocks.folder / "out")
                latents.append(blocks.get("out", *noise.shape))
        embeds, noise = clip(*CLIPS[-1])
        assert torch.equal(found["exact"][-1], Trajectory(npu(weights, exact=True), embeds, LATENT).generate(noise))
    fast, due, reached = (torch.stack(latents) for latents in (found["fast"], found["exact"], exact))
    assert abs(distance(fast, reached) / distance(due, reached) - 1) < AS_GOOD


def test_a_split_inside_a_step_changes_nothing(programs: dict[str, Path], example: Path, tmp_path: Path) -> None:
    """Two engines, one after the other: only hidden state and running latent cross, as files."""
    blocks = Blocks(programs["hvdc_blocks"], example, tmp_path)
    embeds, noise = clip(*CLIPS[0])
    text = blocks.put("e", embeds)
    start: list[object] = ["text", 0, text, "text", 1, text]
    first: list[object] = ["latent", blocks.put("z", noise), "embed", "run", 2, 0, 4, "euler", 2, "embed"]
    rest: list[object] = ["euler", 3, "embed", "run", 4, 0, 4, "save", "hidden"]
    blocks.run(*start, *first, "run", 3, 0, 4, *rest, tmp_path / "whole")
    blocks.run(*start, *first, "run", 3, 0, 3, "save", "hidden", tmp_path / "h", "save", "tokens", tmp_path / "x")
    blocks.run(
        *start, "hidden", tmp_path / "h", "tokens", tmp_path / "x", "run", 3, 3, 1, *rest, tmp_path / "resumed"
    )  # fmt: skip
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "resumed").read_bytes()


@pytest.mark.parametrize("sums", ["fast", "exact"])
def test_threads_levels_and_optimisation_do_not_change_a_bit(
    programs: dict[str, Path], optimised: dict[str, Path], tiny_artifact: Path, sums: str, tmp_path: Path
) -> None:
    """What ships is optimised, without sanitizers: compilers then fuse what they may, and sometimes what they may
    not."""
    grid = (3, 6, 8)
    c, found = case(tiny_artifact, grid), {}
    levels = usable_levels(programs["hvdc_kernels"])
    for build, made in (("sanitized", programs), ("optimised", optimised)):
        for threads, level in ((1, levels[-1]), (5, levels[-1]), *((2, level) for level in levels)):
            options = ("--threads", threads, "--cpu", level, "--npu-sums", sums)
            blocks = on(made, tiny_artifact, tmp_path, grid, *options)
            hidden = blocks.put("h", c.hidden)
            ran = ("run", 0, 0, 2, "run", 5, 0, 2)
            blocks.run(*c.texts(blocks), "hidden", hidden, *ran, "save", "hidden", tmp_path / "y")
            found[build, threads, level] = (tmp_path / "y").read_bytes()
    assert len(set(found.values())) == 1, [key for key, y in found.items() if y != found["optimised", 2, "generic"]]


def test_weights_may_lie_in_memory_that_another_filled(
    programs: dict[str, Path], ragged_artifact: Path, tmp_path: Path
) -> None:
    """Copies have exactly their files' sizes: AddressSanitizer sees every read beyond them."""
    grid, found = (1, 5, 8), set()
    c = case(ragged_artifact, grid)
    for where in ("mapped", "copied"):
        blocks = on(programs, ragged_artifact, tmp_path, grid, "--weights", where)
        hidden = blocks.put("h", c.hidden)
        ran = ("run", 0, 0, 2, "run", 5, 0, 2, "euler", 5)
        blocks.run(*c.texts(blocks), "hidden", hidden, *ran, "save", "tokens", tmp_path / "x")
        found.add((tmp_path / "x").read_bytes())
    assert len(found) == 1


def test_a_new_prompt_replaces_the_one_before(programs: dict[str, Path], tiny_artifact: Path, tmp_path: Path) -> None:
    """And setting one expert's text leaves the other's."""
    grid = (1, 5, 8)
    c, blocks = case(tiny_artifact, grid), on(programs, tiny_artifact, tmp_path, grid)
    other = blocks.put("other", torch.randn_like(c.text["detail"]))
    hidden = blocks.put("h", c.hidden)

    def ran(*text: object) -> bytes:
        blocks.run(*text, "hidden", hidden, "run", 0, 0, 2, "save", "hidden", tmp_path / "y")
        return (tmp_path / "y").read_bytes()

    plain = ran(*c.texts(blocks))
    assert ran("projected", 0, other, "projected", 1, other) != plain
    assert ran("projected", 0, other, *c.texts(blocks)) == plain
    assert ran(*c.texts(blocks), "projected", 1, other) == plain


def test_memory_grows_with_the_tokens_not_with_their_square(
    programs: dict[str, Path], tiny_artifact: Path, tmp_path: Path
) -> None:
    def engine_bytes(rows: int, *actions: object) -> int:
        blocks = on(programs, tiny_artifact, tmp_path, (1, rows, 1024), "--threads", 1)
        return int(blocks.run(*actions, "memory").split()[1])

    one, two, three = (engine_bytes(rows) for rows in (1, 2, 3))
    assert three - two == two - one
    c = case(tiny_artifact, (1, 1, 1))
    blocks = on(programs, tiny_artifact, tmp_path, (1, 1, 1))
    shape = c.weights.shape
    text = 2 * shape.layers * shape.text_tokens * shape.width * 2  # keys and values in FP16
    assert engine_bytes(1, *c.texts(blocks)[:3]) - one == text
    assert engine_bytes(1, *c.texts(blocks), *c.texts(blocks)) - one == 2 * text


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (("run", 0, 0, 1), "expert 0 of step 0 has no text yet"),
        (("run", 6, 0, 1), "blocks [0, 1) of step 6 are not in a trajectory of 6 steps of 2 blocks"),
        (("run", 0, 1, 2), "blocks [1, 3) of step 0"),
        (("run", 0, 4294967295, 2), "blocks [4294967295, 4294967297) of step 0"),
        (("projected", 2, "/dev/null"), "does not hold exactly"),
    ],
)
def test_what_an_engine_cannot_do_is_said(
    programs: dict[str, Path], tiny_artifact: Path, tmp_path: Path, actions: tuple[object, ...], words: str
) -> None:
    assert words in Blocks(programs["hvdc_blocks"], tiny_artifact, tmp_path).refused(*actions)


@pytest.mark.parametrize(
    ("tensor", "changes", "words"),
    [
        (
            "blocks.1.attn1.norm_q.weight",
            {"name": "blocks.1.attn1.norm_x.weight"},
            "no tensor blocks.1.attn1.norm_q.weight",
        ),
        ("blocks.0.ffn.net.0.proj.bias", {"shape": (767,)}, "blocks.0.ffn.net.0.proj.bias is not an FP32 vector"),
        ("blocks.0.attn2.to_k.lora_B.weight", {"shape": (256, 15)}, "blocks.0.attn2.to_k.lora_B.weight is not an INT8"),
        ("schedule.rope_freqs_row", {"name": "schedule.rope_freqs_rows"}, "no tensor schedule.rope_freqs_row"),
    ],
)
def test_tensors_of_another_model_are_refused_by_name(
    programs: dict[str, Path], tiny_artifact: Path, tmp_path: Path, tensor: str, changes: dict[str, Any], words: str
) -> None:
    root = Path(shutil.copytree(tiny_artifact, tmp_path / "changed.hvdc"))
    manifest = read_manifest(root)

    def changed(entry: TensorEntry) -> TensorEntry:
        return entry.model_copy(update=changes) if entry.name == tensor else entry

    files = [file.model_copy(update={"tensors": tuple(map(changed, file.tensors))}) for file in manifest.files]
    write_manifest(root, manifest.model_copy(update={"files": tuple(files)}))
    said = Blocks(programs["hvdc_blocks"], root, tmp_path).refused("memory")
    assert words in said


def test_one_experts_artifact_has_no_second_text(
    programs: dict[str, Path], tiny_artifact: Path, tmp_path: Path
) -> None:
    c = case(tiny_artifact, (1, 1, 1))
    blocks = Blocks(programs["hvdc_blocks"], tiny_artifact, tmp_path)
    assert "2 experts, and none of number 2" in blocks.refused("projected", 2, blocks.put("t", c.text["detail"]))
