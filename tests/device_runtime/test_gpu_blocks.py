"""Whole blocks of the GPU's engine against the oracle, and what must not change them: limits, chunks, sharing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from quant.paths.host import Grid, embed_tokens, initial_noise, project_text, to_latent, to_tokens, velocity
from quant.paths.trajectory import Trajectory, fp32
from quant.paths.trajectory import gpu as path_of_gpu
from tests.artifacts import Spec
from tests.artifacts import make_artifact as uncalibrated
from tests.calibrations import SHAPE
from tests.commands import ROOT, hvdc
from tests.device_runtime.gpu import Gpu, Refused
from tests.device_runtime.gpu_blocks import (
    EXPERTS,
    ODD_MODELS,
    USUAL,
    Oracle,
    distance,
    make_artifact,
    open_engine,
    oracle_of,
    run,
)

Start = Callable[..., Gpu]
EXAMPLE = ROOT / "examples" / "moving_shapes" / "model"

MODELS = {
    **ODD_MODELS,
}
GRIDS: list[Grid] = [(1, 2, 4), (2, 3, 4), (1, 4, 8), (5, 2, 4), (2, 6, 6)]
"""8, 24, 32, 40 and 72 tokens."""
GRID: Grid = (2, 5, 4)


@pytest.fixture(scope="module", params=MODELS, ids=str)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    path = make_artifact(tmp_path_factory.mktemp("made"), MODELS[request.param])
    with oracle_of(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    """Two experts, heads of 128."""
    with oracle_of(make_artifact(tmp_path_factory.mktemp("small"), replace(SHAPE, width=256, heads=2))) as opened:
        yield opened


def test_blocks_of_both_experts(oracle: Oracle, start_gpu: Start) -> None:
    distances = []
    with start_gpu(dot="plain") as gpu:
        for grid in GRIDS:
            open_engine(gpu, oracle, grid)
            hidden = oracle.hidden(grid)
            for step in oracle.steps().values():
                for block in (0, 1):
                    expected = oracle.run(step, block, hidden, grid)
                    distances.append(distance(run(gpu, step, block, hidden), expected, hidden))
    assert np.median(distances) <= USUAL


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    """The trained example model, for its own clip: 320 tokens."""
    tmp_path = tmp_path_factory.mktemp("example")
    clip = ("--frames", 17, "--height", 128, "--width", 128)
    prompts = ("--prompts", EXAMPLE / "prompts.safetensors", "--prompts-limit", 1)
    path = tmp_path / "example.hvdc"
    calibrated = tmp_path / "c.safetensors"
    for command in (
        ("calibrate", EXAMPLE / "transformer", *prompts, *clip, "-o", calibrated),
        ("compile", EXAMPLE / "transformer", "--calibration", calibrated, *clip, "-o", path),
    ):
        done = hvdc(*command)
        assert done.status == 0, done.err
    with oracle_of(path) as opened:
        yield opened


def test_blocks_of_the_trained_example_model(example: Oracle, start_gpu: Start) -> None:
    grid: Grid = (5, 8, 8)
    with start_gpu(dot="plain") as gpu:
        open_engine(gpu, example, (0, 0, 0))
        hidden = example.hidden(grid)
        for expert, block in (("semantic", 0), ("detail", 3)):
            step = example.steps()[expert]
            distance(run(gpu, step, block, hidden), example.run(step, block, hidden, grid), hidden)


@torch.no_grad()
def test_whole_runs_of_the_trained_example_model(example: Oracle, start_gpu: Start) -> None:
    """The difference to the path in Python is at most a tenth of that path's own error against FP32, in the median of
    some prompts: one code that falls on the other side of a half makes the rest of a run another one, as far from the
    path as the path from FP32. Such codes are seldom, since norms have exact sums: most runs are the path's to the
    bit."""
    weights, scales = example.arithmetic.weights, example.arithmetic.scales
    embeds = load_file(EXAMPLE / "prompts.safetensors")["prompt_embeds"]
    shares = []
    with start_gpu(dot="plain") as gpu:
        gpu.ask("open", example.path, 0, 0, 0)
        for seed, prompt in enumerate(embeds[:90:30]):
            text, noise = torch.from_numpy(prompt.astype(np.float32)), initial_noise(seed, 16, (5, 16, 16))
            path = Trajectory(path_of_gpu(weights, scales), text, (5, 16, 16)).generate(noise)
            exact = Trajectory(fp32(weights), text, (5, 16, 16)).generate(noise)
            for expert, number in EXPERTS.items():
                gpu.ask("text", number, project_text(weights, expert, text).numpy())
            latent = to_tokens(noise, weights.shape)
            for step, about in enumerate(weights.steps):
                hidden = run(gpu, step, 0, embed_tokens(weights, latent).numpy(), count=weights.shape.layers)
                latent = latent + velocity(weights, step, about.expert, torch.from_numpy(hidden)) * about.step_size
            found = to_latent(latent, (5, 8, 8), weights.shape)
            shares.append(float((found - path).norm() / (path - exact).norm()))
    assert np.median(shares) <= 0.1
    assert max(shares) <= 1


def test_blocks_in_a_row_are_those_one_by_one(small: Oracle, start_gpu: Start) -> None:
    """FP16 between blocks widens and narrows without loss."""
    hidden = small.hidden(GRID)
    with start_gpu(dot="plain") as gpu:
        open_engine(gpu, small, GRID)
        first = run(gpu, 0, 0, hidden)
        np.testing.assert_array_equal(run(gpu, 0, 0, hidden, count=2), run(gpu, 0, 1, first))
        np.testing.assert_array_equal(run(gpu, 0, 1, hidden, count=0), hidden)


def test_a_model_with_one_expert(start_gpu: Start, tmp_path: Path) -> None:
    path = make_artifact(tmp_path, replace(SHAPE, rank=0, alpha_over_rank=0.0))
    with oracle_of(path) as oracle, start_gpu(dot="plain") as gpu:
        open_engine(gpu, oracle, GRID)
        hidden = oracle.hidden(GRID)
        distance(run(gpu, 3, 1, hidden), oracle.run(3, 1, hidden, GRID), hidden)
        with pytest.raises(Refused, match="expert 1 of an artifact with 1"):
            gpu.ask("text", 1, oracle.text("semantic").numpy())


@pytest.mark.parametrize(
    "options",
    [{"max_rows": 32}, {"max_buffer": 1 << 17}, {"shared": 1, "probe": 1}, {"import": "copy"}, {"dot": "any"}],
    ids=["32 rows at once", "small buffers", "shared memory", "copied weights", "dot form chosen"],
)
def test_how_it_is_computed_changes_no_bit(options: dict[str, object], small: Oracle, start_gpu: Start) -> None:
    grid: Grid = (3, 7, 8)  # 168 tokens: more than one chunk of 32, and more query rows than small buffers hold
    hidden = small.hidden(grid)
    results, described, memory = [], [], []
    for more in ({}, options):
        with start_gpu(**{"dot": "plain", **more}) as gpu:
            open_engine(gpu, small, grid)
            described.append(gpu.described())
            memory.append(int(gpu.ask("memory")))
            results.append([run(gpu, step, 1, hidden) for step in small.steps().values()])
    for plain, other in zip(*results, strict=True):
        np.testing.assert_array_equal(plain, other)
    usual, found = described
    if "max_buffer" in options:
        assert int(found["attention_rows"]) < int(usual["attention_rows"]) == 168
        assert int(found["largest"]) <= 1 << 17 < int(usual["largest"])
    if "max_rows" in options:
        assert memory[1] < memory[0]
    if options.get("import") == "copy":
        assert (found["import"], found["imported"]) == ("copy", "0")
        assert memory[1] == memory[0] + int(usual["imported"])
    else:
        assert found["import"] == usual["import"] == "host-pointer"
        assert int(found["imported"]) > 0


def test_the_unsigned_dot_form_computes_the_same_block(small: Oracle, start_gpu: Start) -> None:
    """Emulated where the driver lacks it: its zero points are taken back in every product, also those of attention."""
    hidden = small.hidden(GRID)
    results = []
    for form in ("plain", "qcom"):
        with start_gpu(**{"dot": form} | ({} if form == "plain" else {"emulate": 1, "cache": ""})) as gpu:
            open_engine(gpu, small, GRID)
            assert gpu.described()["dot"] == form
            results.append([run(gpu, step, 0, hidden) for step in small.steps().values()])
    plain, unsigned = results
    np.testing.assert_array_equal(plain, unsigned)


def test_kernels_as_a_gpu_runs_them(small: Oracle, start_gpu: Start) -> None:
    """Several work-items share a row, with barriers between, and a GEMM's groups have two dimensions."""
    hidden = small.hidden(GRID)
    with start_gpu(dot="plain", as_gpu=1, gemm_shape=1, cache="") as gpu:
        open_engine(gpu, small, GRID)
        for step in small.steps().values():
            distance(run(gpu, step, 1, hidden), small.run(step, 1, hidden, GRID), hidden)


def test_memory_is_exactly_what_is_declared(small: Oracle, start_gpu: Start) -> None:
    """Every buffer by its size; the weights are not among them but for one feed-forward pair."""
    shape = small.arithmetic.weights.shape
    width, ffn, rank, layers, heads, text = shape.width, shape.ffn_width, 32, shape.layers, shape.heads, 32
    tokens, stored = 168, 192
    with start_gpu(dot="khr", emulate=1, cache="") as gpu:
        gpu.ask("open", small.path, 3, 7, 8)
        found = int(gpu.ask("memory"))
        widest, slack = max(width, ffn), stored + 16
        scratch = slack * (widest + width + rank) + stored * 4 * (widest + rank)
        attention = heads * 168 * stored * (2 + 1) + 16 * stored + heads * 168 * 4
        kept = 2 * tokens * width + 2 * stored * width + 2 * tokens * 64 * 4 + 6 * width * 4
        texts, pair, host = 2 * layers * 2 * text * width, 2 * width * ffn, stored * width * 4
        assert found == scratch + attention + kept + texts + pair + host
        gpu.ask("text", 0, small.text("semantic").numpy())
        gpu.ask("run", 0, 0, 2, small.hidden((3, 7, 8)))
        assert int(gpu.ask("memory")) == found


@pytest.mark.parametrize("grid", [(1, 2, 2), (3, 7, 8), (8, 16, 16)], ids=str)
@pytest.mark.parametrize("more", [{}, {"max_rows": 32}, {"max_buffer": 1 << 20}, {"import": "copy"}], ids=str)
def test_memory_is_known_before_a_device_is_opened(
    more: dict[str, object], grid: Grid, small: Oracle, start_gpu: Start
) -> None:
    """As on a GPU: this form needs no scratch for the GEMM, which plain C on a CPU does. That one makes its other
    buffers smaller where the scratch would be larger than a buffer may be, so that less is taken than was said."""
    with start_gpu(dot="khr", emulate=1, cache="", **more) as gpu:
        gpu.ask("open", small.path, *grid)
        assert int(gpu.ask("forecast")) == int(gpu.ask("memory"))
    with start_gpu(dot="plain", **more) as gpu:
        gpu.ask("open", small.path, *grid)
        if "max_buffer" not in more:
            assert int(gpu.ask("forecast")) <= int(gpu.ask("memory"))


def test_attentions_memory_grows_with_the_tokens_not_with_their_square(small: Oracle, start_gpu: Start) -> None:
    with start_gpu(dot="plain", max_rows=256) as gpu:
        sizes = []
        for frames in (8, 16, 24):
            gpu.ask("open", small.path, frames, 16, 16)
            sizes.append(int(gpu.ask("memory")))
            assert gpu.described()["attention_rows"] == "256"
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0]


def test_a_profile_counts_every_launch_of_a_run(small: Oracle, start_gpu: Start) -> None:
    with start_gpu(dot="plain", profile=1) as gpu:
        open_engine(gpu, small, GRID)
        before: list[tuple[str, float, int]] = []
        after: list[tuple[str, float, int]] = []
        for counts in (before, after):
            words = gpu.ask("profile").split()
            counts += zip(words[::3], map(float, words[1::3]), map(int, words[2::3]), strict=True)
            run(gpu, 0, 0, small.hidden(GRID))
        launches = {name: b - a for (name, _, a), (_, _, b) in zip(before, after, strict=True)}
    assert len(launches) == len(after), "each kernel once"
    assert launches["gemm_linear"] == 8, "a block's linears but the text's two"
    assert launches["softmax"] == launches["gemm_scores"] == launches["gemm_values"] == 2
    assert sum(seconds for _, seconds, _ in after) > 0


def test_a_text_is_kept_until_the_next_one(small: Oracle, start_gpu: Start) -> None:
    hidden, detail = small.hidden(GRID), small.steps()["detail"]
    with start_gpu(dot="plain") as gpu:
        open_engine(gpu, small, GRID)
        before = [run(gpu, step, 0, hidden) for step in (0, detail)]
        gpu.ask("text", 0, 2 * small.text("semantic").numpy())
        after = [run(gpu, step, 0, hidden) for step in (0, detail)]
        assert not np.array_equal(before[0], after[0])
        np.testing.assert_array_equal(before[1], after[1])
        gpu.ask("text", 0, small.text("semantic").numpy())
        np.testing.assert_array_equal(run(gpu, 0, 0, hidden), before[0])


def test_what_is_not_possible_is_refused(small: Oracle, start_gpu: Start, tmp_path: Path) -> None:
    hidden = small.hidden(GRID)
    with start_gpu(dot="plain") as gpu:
        gpu.ask("open", small.path, *GRID)
        for question, sentence in (
            (("run", 0, 0, 1, hidden), "step 0 is of expert 0, which has no text yet"),
            (("run", 9, 0, 1, hidden), "blocks 0 to 1 of step 9, in an artifact of 2 blocks and 6 steps"),
            (("run", 0, 1, 2, hidden), "blocks 1 to 3 of step 0"),
            (("open", small.path, 1, 0, 4), "a grid of 1 x 0 x 4 tokens is not possible"),
            (("open", small.path, 70000, 70000, 1), "a grid of 70000 x 70000 x 1 tokens is not possible"),
            (("open", uncalibrated(tmp_path / "u.hvdc", Spec()), *GRID), "no activation scales, without which the GPU"),
        ):
            with pytest.raises(Refused, match=sentence):
                gpu.ask(*question)
    for options, sentence in (
        ({"max_rows": 33}, "33 rows at once: it must be a multiple of 32"),
        ({"max_buffer": 1 << 14}, r"needs \d+ bytes of memory in one piece, and a buffer has at most 16384"),
        ({"max_buffer": 1 << 17}, r"the hidden state needs a buffer of \d+ bytes, and the limit is 131072"),
    ):
        with start_gpu(dot="plain", **options) as gpu, pytest.raises(Refused, match=sentence):
            gpu.ask("open", small.path, 8, 8, 8)
