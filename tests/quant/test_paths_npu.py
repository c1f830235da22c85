"""One block of the NPU path against numerics.md in numpy: FP16 operands to the bit, sums within a rounding to FP16."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from exporters.model import TINY
from quant.gemms import ADAPTED, gemm_inputs
from quant.paths.arithmetic import At
from quant.paths.block import run_block, text_operands
from quant.paths.host import project_text, rope_rotations
from quant.paths.npu import NpuArithmetic, fp16_matmul
from quant.paths.weights import Weights
from tests.exporters.models import Values
from tests.quant import oracle
from tests.quant.blocks import FLOAT_BOUND, GRIDS, PLACES, hidden_state, model_of
from tests.quant.models import difference
from tests.quant.oracle import Array, Npu
from tests.quant.traced import Meeting, TracedNpu

ATTENTION_BOUND = 2.0**-10
"""Of the largest value: probabilities and result are rounded to FP16, 2^-11 each."""


def ulp16(x: Array) -> Array:
    """The distance of neighbouring FP16 numbers at x."""
    return np.spacing(np.abs(x).astype(np.float16)).astype(np.float64)


@torch.no_grad()
def run(arithmetic: NpuArithmetic, at: At, hidden: Tensor, text: Tensor, grid: tuple[int, int, int]) -> Tensor:
    text = project_text(arithmetic.weights, at.expert, text)
    rotations = rope_rotations(arithmetic.weights, grid)
    return run_block(arithmetic, at, hidden, text_operands(arithmetic, at, text), rotations)


class Comparison(Meeting):
    def compared(self, name: str, value: Array, found: Array) -> Array:
        error = np.abs(found.astype(np.float64) - value.astype(np.float64))
        if name.endswith(" fp16"):
            assert found.dtype == np.float16
            np.testing.assert_array_equal(found, value, err_msg=name)
        elif name.endswith(("attn1 output", "attn2 output")):
            assert found.dtype == np.float16
            assert error.max() <= ATTENTION_BOUND * np.abs(value).max() * 4, name
            assert np.quantile(error, 0.99) <= ATTENTION_BOUND * np.abs(value).max(), name
        elif name.endswith((" output", "lora_hidden float")):
            # An FP32 sum may fall on the other side of where FP16 rounds: one step of the sum, rarely; then of each
            # addition after it.
            assert found.dtype == np.float16
            largest = np.maximum(np.abs(value), np.abs(value).max() / 8)
            assert (error <= 2 * ulp16(largest)).all(), name
            assert (error == 0).mean() > 0.98, name
        else:
            bound = FLOAT_BOUND if found.dtype == np.float32 else 2.0**-10
            np.testing.assert_allclose(
                found.astype(np.float64),
                value.astype(np.float64),
                rtol=0,
                atol=bound * np.abs(value).max(),
                err_msg=name,
            )
        return found


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("at", PLACES, ids=lambda at: at.expert)
def test_every_stage_of_a_block(
    at: At, grid: tuple[int, int, int], tensors: Values, weights: Weights, embeds: Tensor
) -> None:
    hidden = hidden_state(math.prod(grid), seed=grid[1])
    arithmetic = TracedNpu(weights)
    found = run(arithmetic, at, hidden, embeds, grid)
    compared = Comparison(arithmetic.trace)
    engine = Npu(model_of(tensors, weights, at, grid), compared, TINY.alpha_over_rank)
    expected = oracle.block(engine, hidden.numpy(), project_text(weights, at.expert, embeds).numpy())
    assert found.dtype == torch.float32, "the residual stream"
    np.testing.assert_array_equal(found.numpy(), expected)
    due = {i.name for i in gemm_inputs(TINY) if at.expert in i.experts}
    assert {f"{name} fp16" for name in due} == {name for name in compared.met if name.endswith("fp16")}


@pytest.mark.parametrize("at", PLACES, ids=lambda at: at.expert)
def test_a_block_on_its_own(at: At, tensors: Values, weights: Weights, embeds: Tensor) -> None:
    """Nothing taken from the path. Values that FP16 rounds to the other side move what follows by one of its steps, in
    a few places in a hundred: in all, less than one rounding of everything."""
    grid, hidden = (2, 3, 4), hidden_state(24)
    found = run(NpuArithmetic(weights), at, hidden, embeds, grid)
    engine = Npu(model_of(tensors, weights, at, grid), oracle.itself, TINY.alpha_over_rank)
    expected = oracle.block(engine, hidden.numpy(), project_text(weights, at.expert, embeds).numpy())
    assert difference(found, expected) < 2.0**-11


@pytest.mark.parametrize("name", ["attn1.to_q.weight", "ffn.net.2.weight", "attn2.to_v.lora_A.weight"])
def test_weights_are_widened_codes(name: str, tensors: Values, weights: Weights) -> None:
    codes, scale = oracle.weight_codes(tensors[f"blocks.1.{name}"])
    found = weights.widened(f"blocks.1.{name}")
    assert found.dtype == torch.float16
    np.testing.assert_array_equal(found, (codes.astype(np.float32) * scale[:, None]).astype(np.float16))


def test_alpha_over_rank_is_in_the_scales_of_b(tensors: Values, weights: Weights) -> None:
    for linear in ADAPTED:
        name = f"blocks.0.{linear}.lora_B.weight"
        codes, scale = oracle.weight_codes(tensors[name])
        scale = scale * np.float32(2)
        np.testing.assert_array_equal(weights.codes(name), codes)
        np.testing.assert_array_equal(weights.scales(name), scale)
        np.testing.assert_array_equal(weights.widened(name), (codes.astype(np.float32) * scale[:, None]).astype("f2"))


def test_a_result_is_rounded_to_fp16_before_the_bias_and_after_it(tensors: Values, weights: Weights) -> None:
    """The sum of one input: acc is exact, so every rounding is visible."""
    x = torch.zeros(TINY.width, TINY.width)
    x.fill_diagonal_(1.234375)
    found = NpuArithmetic(weights).linear(At(0, 0, "semantic"), "attn1.to_q", x.half()).numpy()
    codes, scale = oracle.weight_codes(tensors["blocks.0.attn1.to_q.weight"])
    w16 = (codes.astype(np.float32) * scale[:, None]).astype(np.float16)
    acc = (w16.T.astype(np.float64) * 1.234375).astype(np.float16)
    bias = tensors["blocks.0.attn1.to_q.bias"]
    np.testing.assert_array_equal(found, (acc.astype(np.float32) + bias).astype(np.float16))
    once = (w16.T.astype(np.float64) * 1.234375 + bias).astype(np.float16)
    assert not np.array_equal(found, once), "or else this test could not fail"


def test_long_sums_are_not_rounded_on_the_way() -> None:
    """2048 ones and more ones: an FP16 accumulator stays at 2048."""
    a, b = torch.ones(1, 8960).half(), torch.ones(1, 8960).half()
    assert fp16_matmul(a, b).item() == 8960


def test_values_are_attended_at_every_magnitude_of_scores(weights: Weights) -> None:
    """Scores up to some 15,000, and all alike: the weights are those of exp, and no NaN."""
    run_of = NpuArithmetic(weights).attention
    rng = np.random.default_rng(0)
    for size in (0.0, 1e-3, 1.0, 4.0, 16.0):
        q, k = ((rng.standard_normal((n, TINY.width)) * size).astype(np.float16) for n in (24, 300))
        v = rng.standard_normal((300, TINY.width)).astype(np.float16)
        engine = Npu(None, oracle.itself, 1.0)  # type: ignore[arg-type]
        expected = engine.attention("attn1", q, k, v)
        found = run_of(PLACES[0], "attn1", *map(torch.from_numpy, (q, k, v))).numpy()
        assert np.isfinite(found).all()
        assert np.abs(found - expected).max() <= 4 * ATTENTION_BOUND * np.abs(v).max()


def test_the_adapter_adds_to_the_base(weights: Weights) -> None:
    arithmetic, x = NpuArithmetic(weights), hidden_state(24, 3).half()
    for linear in ADAPTED:
        base = arithmetic.linear(At(4, 1, "semantic"), linear, x)
        both = arithmetic.linear(At(4, 1, "detail"), linear, x)
        stem = f"blocks.1.{linear}"
        b, a = (weights.values(f"{stem}.lora_{p}.weight").double() for p in "BA")
        more = x.double() @ a.T @ b.T
        # INT8 factors and FP16: a part of the adapter, itself some tenths of the base.
        assert difference((both.double() - base.double()), more) < 0.03, linear


def test_the_stream_is_narrowed_only_where_it_enters_a_gemm(weights: Weights, embeds: Tensor) -> None:
    """A hidden state that FP16 cannot tell from another gives another result: their difference stays in the stream."""
    grid, hidden = (2, 3, 4), hidden_state(24)
    nudged = hidden * (1 + 2.0**-20)
    assert (hidden.half() == nudged.half()).float().mean() > 0.99
    found, other = (run(NpuArithmetic(weights), PLACES[0], x, embeds, grid) for x in (hidden, nudged))
    assert not torch.equal(found, found.half().float())
    assert (found != other).float().mean() > 0.5


def test_keys_and_values_of_the_text_do_not_depend_on_the_step(weights: Weights, embeds: Tensor) -> None:
    arithmetic, text = NpuArithmetic(weights), project_text(weights, "detail", embeds)
    first, last = (text_operands(arithmetic, At(step, 0, "detail"), text) for step in (3, 5))
    assert torch.equal(first.key, last.key)
    assert torch.equal(first.value, last.value)
