"""Mode hetero-tensor: each linear's columns shared by both engines, in one process and in two, against the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from quant.gemms import LINEARS, gemm_inputs
from quant.paths.arithmetic import Arithmetic, At
from quant.paths.block import run_block, text_operands
from quant.paths.gpu import Quantized
from quant.paths.host import Grid, rope_rotations
from quant.paths.npu import NpuArithmetic
from quant.paths.tensor import TensorArithmetic, gpu_columns
from tests.device_runtime.blocks import EXPERTS, Blocks, distance
from tests.device_runtime.gpu import Array, Gpu, Refused, gpu_environment, padded
from tests.device_runtime.gpu_blocks import ODD_MODELS, Oracle, make_artifact, oracle_of

Start = Callable[..., Gpu]

GRID: Grid = (2, 5, 4)
"""40 tokens."""


@pytest.fixture(scope="module", params=ODD_MODELS, ids=str)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    path = make_artifact(tmp_path_factory.mktemp("made"), ODD_MODELS[request.param])
    with oracle_of(path) as opened:
        yield opened


# --- slices by the GPU's engine ------------------------------------------------------------------------------------


def operand(oracle: Oracle, linear: str, rows: int) -> tuple[str, Array]:
    """What enters a linear: its name, and FP16 ``[rows, channels]``."""
    [entering] = [x for x in gemm_inputs(oracle.arithmetic.weights.shape) if linear in x.linears]
    rng = np.random.default_rng(rows)
    return entering.name, rng.standard_normal((rows, entering.channels)).astype(np.float16)


def due(oracle: Oracle, at: At, linear: str, name: str, x: Array) -> Array:
    codes: Quantized = oracle.arithmetic.operand(at, name, torch.from_numpy(x))
    return oracle.arithmetic.linear(at, linear, codes).numpy()


@pytest.mark.parametrize("rows", [8, 40, 72])
def test_a_slice_of_every_linear(oracle: Oracle, rows: int, start_gpu: Start) -> None:
    """To the bit: codes, sums and scales are the oracle's. 72 rows are done in parts of 32."""
    with start_gpu(dot="plain", max_rows=32) as gpu:
        gpu.ask("open", oracle.path, *GRID)
        for expert, step in oracle.steps().items():
            for number, linear in enumerate(LINEARS):
                name, x = operand(oracle, linear, rows)
                expected = due(oracle, At(step, 1, expert), linear, name, x)
                tiles = -(-expected.shape[1] // 32)
                for part in {1, tiles // 2, tiles}:
                    words = ("slice", step, 1, number, rows, part, padded(x))
                    found = gpu.array(np.float32, (rows, 32 * part), *words)
                    columns = min(32 * part, expected.shape[1])
                    np.testing.assert_array_equal(found[:, :columns], expected[:, :columns], err_msg=f"{linear} {part}")
                    assert not found[:, columns:].any()


def test_the_pair_is_staged_for_each_block(oracle: Oracle, start_gpu: Start) -> None:
    """Also after blocks of the engine's own, which stage another."""
    with start_gpu(dot="plain") as gpu:
        gpu.ask("open", oracle.path, *GRID)
        gpu.ask("text", 0, oracle.text("semantic").numpy())
        for block, own in ((0, None), (1, None), (0, None), (0, 1), (0, 0), (1, 0)):
            if own is not None:
                gpu.ask("run", 0, own, 1, oracle.hidden(GRID), "/dev/null")
            for linear in ("ffn.net.2", "ffn.net.0.proj"):
                name, x = operand(oracle, linear, 8)
                expected = due(oracle, At(0, block, "semantic"), linear, name, x)
                found = gpu.array(np.float32, (8, 64), "slice", 0, block, LINEARS.index(linear), 8, 2, padded(x))
                np.testing.assert_array_equal(found, expected[:, :64])


def test_slices_that_no_artifact_has(oracle: Oracle, start_gpu: Start) -> None:
    x = padded(operand(oracle, "attn1.to_q", 8)[1])
    with start_gpu(dot="plain") as gpu:
        gpu.ask("open", oracle.path, *GRID)
        for step, block, linear, tiles in ((9, 0, 0, 1), (0, 2, 0, 1), (0, 0, 10, 1), (0, 0, 0, 0), (0, 0, 0, 7)):
            with pytest.raises(Refused, match="are none of this artifact"):
                gpu.ask("slice", step, block, linear, 8, tiles, x, "/dev/null")


# --- blocks by both engines in one process -------------------------------------------------------------------------

SEEN = 2e-3
"""Relative to what a block changes: what a share that is ignored, or one tile off, makes at least."""


@dataclass(frozen=True)
class Shared:
    """``hvdc_blocks`` with a partner."""

    blocks: Blocks
    oracle: Oracle
    grid: Grid

    def texts(self) -> tuple[object, ...]:
        actions: list[object] = []
        for expert in self.oracle.steps():
            actions += ["projected", EXPERTS.index(expert), self.blocks.put(f"text-{expert}", self.oracle.text(expert))]
        return tuple(actions)

    def with_share(self, share: object) -> Blocks:
        return replace(self.blocks, options=(*self.blocks.options, "--gpu-share", share))

    def run(self, share: float, block: int, hidden: Tensor) -> dict[int, Tensor]:
        """Step -> the block's output at it, for a step of each expert."""
        blocks, actions = self.with_share(share), [*self.texts()]
        for step in self.oracle.steps().values():
            actions += ["hidden", self.blocks.put("before", hidden), "run", step, block, 1]
            actions += ["save", "hidden", blocks.folder / f"after-{step}"]
        blocks.run(*actions)
        return {step: blocks.get(f"after-{step}", *hidden.shape) for step in self.oracle.steps().values()}

    @torch.no_grad()
    def due(self, arithmetic: Arithmetic, step: int, block: int, hidden: Tensor) -> Tensor:
        weights = self.oracle.arithmetic.weights
        at = At(step, block, weights.steps[step].expert)
        text = text_operands(arithmetic, at, self.oracle.text(at.expert))
        return run_block(arithmetic, at, hidden, text, rope_rotations(weights, self.grid))


@pytest.fixture
def shared(oracle: Oracle, programs: dict[str, Path], gpu_caches: Path, start_gpu: Start, tmp_path: Path) -> Shared:
    """Skipped where there is no OpenCL device."""
    options = ("--threads", 2, "--grid", ",".join(map(str, GRID)), "--kernel-cache", gpu_caches / "ours")
    environment = gpu_environment(gpu_caches)
    return Shared(Blocks(programs["hvdc_blocks"], oracle.path, tmp_path, options, environment), oracle, GRID)


def shares(columns: int) -> tuple[float, ...]:
    """At, below and above the middle between two edges of the first tile, and at an edge."""
    tiles = -(-columns // 32)
    return (0.49 / tiles, 0.5 / tiles, 1.0 / tiles, 0.51, 0.999, 1.0)


def test_blocks_of_both_experts(shared: Shared) -> None:
    """With exact sums: to the bit."""
    exact = replace(shared.blocks, options=(*shared.blocks.options, "--npu-sums", "exact"))
    shared = replace(shared, blocks=exact)
    weights, scales = shared.oracle.arithmetic.weights, shared.oracle.arithmetic.scales
    hidden = torch.from_numpy(shared.oracle.hidden(GRID))
    for share in shares(weights.shape.width):
        for step, found in shared.run(share, 1, hidden).items():
            alone = shared.due(NpuArithmetic(weights, exact=True), step, 1, hidden)
            expected = shared.due(TensorArithmetic(weights, scales, share, exact=True), step, 1, hidden)
            assert torch.equal(found, expected)
            assert gpu_columns(weights.shape.width, share) == 0 or distance(found - hidden, alone - hidden) > SEEN


def test_a_share_below_half_a_tile_is_the_npu_alone(shared: Shared) -> None:
    """To the bit. The largest linear has the most tiles."""
    weights = shared.oracle.arithmetic.weights
    hidden = torch.from_numpy(shared.oracle.hidden(GRID))
    share = 0.49 / -(-max(weights.shape.width, weights.shape.ffn_width) // 32)
    blocks = shared.blocks
    found = shared.run(share, 1, hidden)
    for step in found:
        given = ("hidden", blocks.put("before", hidden), "run", step, 1, 1)
        blocks.run(*shared.texts(), *given, "save", "hidden", blocks.folder / "alone")
        assert torch.equal(found[step], blocks.get("alone", *hidden.shape))


def test_results_do_not_depend_on_the_number_of_threads(shared: Shared) -> None:
    hidden = torch.from_numpy(shared.oracle.hidden(GRID))
    first = shared.run(0.5, 0, hidden)
    for threads in (1, 3):
        other = replace(shared, blocks=replace(shared.blocks, options=(*shared.blocks.options, "--threads", threads)))
        assert all(torch.equal(found, first[step]) for step, found in other.run(0.5, 0, hidden).items())


def test_a_partner_that_fails_fails_the_call(shared: Shared) -> None:
    blocks = shared.with_share("inf")
    assert "the partner is gone" in blocks.refused(*shared.texts())
