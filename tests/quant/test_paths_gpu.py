"""One block of the GPU path against numerics.md in numpy: integers to the bit, floats within their rounding."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from exporters.model import TINY
from quant.gemms import ADAPTED, LINEARS, gemm_inputs, hidden_of
from quant.paths.arithmetic import At
from quant.paths.block import run_block, text_operands
from quant.paths.gpu import GpuArithmetic, Quantized
from quant.paths.host import project_text, rope_rotations
from quant.paths.weights import Weights
from quant.scales import Scales
from tests.exporters.models import Values
from tests.quant import oracle
from tests.quant.blocks import FLOAT_BOUND, GRIDS, PLACES, hidden_state, model_of
from tests.quant.models import difference
from tests.quant.oracle import Array, Gpu
from tests.quant.traced import Meeting, TracedGpu

HALF_WINDOW = 1e-4
"""127 · e this near to a half may round either way: FP32's exp is off by some 1e-7 of it, 1e-5 in all."""


def scales_at(scales: Scales, at: At) -> dict[str, np.float32]:
    return {name: scales.table[at.step, at.block, i] for i, name in enumerate(scales.inputs)}


@torch.no_grad()
def run(arithmetic: GpuArithmetic, at: At, hidden: Tensor, text: Tensor, grid: tuple[int, int, int]) -> Tensor:
    text = project_text(arithmetic.weights, at.expert, text)
    rotations = rope_rotations(arithmetic.weights, grid)
    return run_block(arithmetic, at, hidden.half(), text_operands(arithmetic, at, text), rotations)


class Comparison(Meeting):
    def compared(self, name: str, value: Array, found: Array) -> Array:
        if name.endswith(("codes", "acc", "sums")):
            np.testing.assert_array_equal(found, value, err_msg=name)
        elif name.endswith("probabilities"):
            distance = np.abs(value % 1 - 0.5)
            clear = distance > HALF_WINDOW
            assert clear.mean() > 0.99
            np.testing.assert_array_equal(found[clear], np.rint(value)[clear], err_msg=name)
            assert (np.abs(found - value) <= 0.5 + HALF_WINDOW).all()
            assert ((found >= 0) & (found <= 127)).all()
        elif name.endswith(" output"):  # the epilogue is FP32 operations in a given order
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, value, err_msg=name)
        else:
            np.testing.assert_allclose(found, value, rtol=0, atol=FLOAT_BOUND * np.abs(value).max(), err_msg=name)
        return found.astype(np.int64) if found.dtype.kind == "i" else found


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("at", PLACES, ids=lambda at: at.expert)
@torch.no_grad()
def test_every_stage_of_a_block(
    at: At, grid: tuple[int, int, int], tensors: Values, weights: Weights, scales: Scales, embeds: Tensor
) -> None:
    hidden = hidden_state(math.prod(grid), seed=grid[1])
    arithmetic = TracedGpu(weights, scales)
    with arithmetic.watching():
        found = run(arithmetic, at, hidden, embeds, grid)
    compared = Comparison(arithmetic.trace)
    engine = Gpu(model_of(tensors, weights, at, grid), compared, scales_at(scales, at), TINY.alpha_over_rank)
    text = project_text(weights, at.expert, embeds).numpy()
    expected = oracle.block(engine, hidden.half().numpy(), text)
    assert found.dtype == torch.float16, "the residual stream"
    np.testing.assert_array_equal(found.numpy(), expected)
    due = {i.name for i in gemm_inputs(TINY) if at.expert in i.experts}
    assert {f"{name} codes" for name in due} == {name for name in compared.met if name.endswith("codes")}
    assert {f"{linear} acc" for linear in LINEARS} <= compared.met
    if at.expert == "detail":
        assert {f"{linear}{part} acc" for linear in ADAPTED for part in (" A", " B")} <= compared.met


@pytest.mark.parametrize("at", PLACES, ids=lambda at: at.expert)
def test_a_block_on_its_own(at: At, tensors: Values, weights: Weights, scales: Scales, embeds: Tensor) -> None:
    """Nothing taken from the path. A value that falls on the other side of a half moves one code by one, and what
    follows by 1 / 127 of an operand's range in one place: a few such in thousands of codes."""
    grid = (2, 3, 4)
    hidden = hidden_state(24)
    found = run(GpuArithmetic(weights, scales), at, hidden, embeds, grid)
    engine = Gpu(model_of(tensors, weights, at, grid), oracle.itself, scales_at(scales, at), TINY.alpha_over_rank)
    expected = oracle.block(engine, hidden.half().numpy(), project_text(weights, at.expert, embeds).numpy())
    assert difference(found.float(), expected) < 5e-4
    assert (found.numpy() == expected).mean() > 0.9


def test_the_adapter_reads_its_linears_input_and_has_a_scale_for_its_hidden(
    tensors: Values, weights: Weights, scales: Scales
) -> None:
    """A takes x_q with s_x; B takes h with s_h; alpha / r is in B's scales; each is added in FP32."""
    at, x = PLACES[1], hidden_state(24, 3)
    arithmetic = TracedGpu(weights, scales)
    held = scales_at(scales, at)
    for linear in ADAPTED:
        name = next(i.name for i in gemm_inputs(TINY) if linear in i.linears)
        with arithmetic.watching():
            found = arithmetic.linear(at, linear, arithmetic.operand(at, name, x)).numpy()
        (a, _, _), (also_a, _, _), (h, _, _) = arithmetic.products
        assert torch.equal(a, also_a), "A reads the same codes"
        assert h.shape == (24, TINY.rank)
        local = dict(oracle.local(tensors, at.block))
        s_x, s_h = held[name], held[hidden_of(linear)]
        q_w, s_w = oracle.weight_codes(local[f"{linear}.weight"])
        q_a, s_a = oracle.weight_codes(local[f"{linear}.lora_A.weight"])
        q_b, s_b = oracle.weight_codes(local[f"{linear}.lora_B.weight"])
        x_q = oracle.activation_codes(x.numpy(), s_x)
        h_q = oracle.activation_codes((x_q @ q_a.T).astype(np.float32) * (s_x * s_a), s_h)
        base = (x_q @ q_w.T).astype(np.float32) * (s_x * s_w) + local[f"{linear}.bias"]
        expected = base + (h_q @ q_b.T).astype(np.float32) * (s_h * (s_b * np.float32(TINY.alpha_over_rank)))
        np.testing.assert_array_equal(found, expected)
        assert not np.array_equal(expected, base)
        semantic = At(at.step, at.block, "semantic")
        np.testing.assert_array_equal(arithmetic.linear(semantic, linear, arithmetic.operand(at, name, x)), base)


def test_the_feed_forward_pair_has_no_adapter(weights: Weights, scales: Scales) -> None:
    arithmetic, x = GpuArithmetic(weights, scales), hidden_state(24, 4)
    for linear, name in (("ffn.net.0.proj", "ffn.net.0.proj.input"), ("ffn.net.2", "ffn.net.2.input")):
        entering = x if linear == "ffn.net.0.proj" else x.repeat(1, 3)
        operand = arithmetic.operand(PLACES[1], name, entering)
        semantic = arithmetic.linear(At(4, 1, "semantic"), linear, operand)
        assert torch.equal(arithmetic.linear(PLACES[1], linear, operand), semantic)


def quantized(codes: Array, scale: float) -> Quantized:
    return Quantized(torch.from_numpy(codes.astype(np.int8)), torch.tensor(scale, dtype=torch.float32))


def test_probabilities_are_not_normalised_before_they_are_rounded(weights: Weights, scales: Scales) -> None:
    """4,000 keys of equal score: each has p = 1 / 4000, which times 127 would round to zero; 127 · e is 127."""
    keys, width = 4000, TINY.width
    rng = np.random.default_rng(0)
    arithmetic = TracedGpu(weights, scales)
    q, k = np.zeros((5, width)), rng.integers(-127, 128, (keys, width))
    v = rng.integers(-127, 128, (keys, width))
    with arithmetic.watching():
        found = arithmetic.attention(PLACES[0], "attn1", quantized(q, 0.1), quantized(k, 0.1), quantized(v, 0.5))
    assert (arithmetic.trace["attn1 probabilities"] == 127).all()
    assert (arithmetic.trace["attn1 sums"] == 127 * keys).all()
    np.testing.assert_allclose(found.numpy(), np.tile(v.mean(axis=0) * 0.5, (5, 1)), rtol=1e-6, atol=1e-6)


def test_the_key_of_the_highest_score_has_probability_127(weights: Weights, scales: Scales) -> None:
    """One key far above the others gets all of the value, whatever the sign and size of the scores."""
    for sign in (1, -1):
        q = np.full((3, TINY.width), 127)
        k = np.full((40, TINY.width), -127 * sign)
        k[7] = 127 if sign == 1 else -127
        if sign == -1:
            q, k[7] = -q, -127
        v = np.arange(40)[:, None] * np.ones((1, TINY.width))
        found = GpuArithmetic(weights, scales).attention(
            PLACES[0], "attn2", quantized(q, 0.05), quantized(k, 0.05), quantized(v, 1.0)
        )
        assert (found == 7).all()


def test_heads_do_not_mix(weights: Weights, scales: Scales) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.integers(-127, 128, (24, TINY.width)) for _ in range(3))
    run_of = GpuArithmetic(weights, scales).attention
    before = run_of(PLACES[0], "attn1", *(quantized(x, 0.02) for x in (q, k, v)))
    for x in (q, k, v):
        x[:, 128:] = rng.integers(-127, 128, (24, 128))
    after = run_of(PLACES[0], "attn1", *(quantized(x, 0.02) for x in (q, k, v)))
    assert torch.equal(before[:, :128], after[:, :128])
    assert not torch.equal(before[:, 128:], after[:, 128:])


def test_cross_attention_has_no_positions(weights: Weights, scales: Scales, embeds: Tensor) -> None:
    """Another order of positions turns self-attention's queries, and leaves those of the text alone."""
    at, x = PLACES[0], hidden_state(24)
    q = torch.randn(24, TINY.width, generator=torch.Generator().manual_seed(0))
    grid = (2, 3, 4)
    assert difference(oracle.rotate(q.numpy(), grid), q) > 0.1, "RoPE would be seen"
    keys = []
    for rotated in (rope_rotations(weights, grid), rope_rotations(weights, grid).flip(0)):
        arithmetic = TracedGpu(weights, scales)
        text = text_operands(arithmetic, at, project_text(weights, at.expert, embeds))
        with arithmetic.watching():
            run_block(arithmetic, at, x.half(), text, rotated)
        trace = arithmetic.trace
        keys.append(trace["attn1.key codes"])
        expected = oracle.rms_norm(trace["attn2.to_q output"], dict(weights_at(weights, at))["attn2.norm_q.weight"])
        np.testing.assert_allclose(trace["attn2.query float"], expected, rtol=0, atol=FLOAT_BOUND * 10)
    assert not np.array_equal(*keys)


def weights_at(weights: Weights, at: At) -> list[tuple[str, Array]]:
    return [("attn2.norm_q.weight", weights.source.values(f"blocks.{at.block}.attn2.norm_q.weight"))]


def test_keys_and_values_of_the_text_are_the_same_in_all_steps_of_an_expert(
    weights: Weights, scales: Scales, embeds: Tensor
) -> None:
    arithmetic = GpuArithmetic(weights, scales)
    by_expert = {}
    for expert, steps in (("semantic", (0, 1, 2)), ("detail", (3, 4, 5))):
        text = project_text(weights, expert, embeds)
        first, *others = (text_operands(arithmetic, At(step, 1, expert), text) for step in steps)
        for other in others:
            for a, b in ((first.key, other.key), (first.value, other.value)):
                assert torch.equal(a.codes, b.codes)
                assert torch.equal(a.scale, b.scale)
        by_expert[expert] = first
    assert by_expert["semantic"].key.scale != by_expert["detail"].key.scale


def test_an_input_without_a_scale_is_refused(weights: Weights, scales: Scales) -> None:
    with pytest.raises(KeyError, match="lora_hidden"):
        GpuArithmetic(weights, scales).operand(At(0, 0, "semantic"), "attn1.to_q.lora_hidden", torch.zeros(2, 16))


def test_each_step_and_block_has_its_own_scale(weights: Weights, scales: Scales) -> None:
    arithmetic, x = GpuArithmetic(weights, scales), hidden_state(8)
    for step in range(6):
        for block in range(2):
            found = arithmetic.operand(At(step, block, weights.steps[step].expert), "attn1.input", x)
            scale = scales.table[step, block, scales.inputs.index("attn1.input")]
            assert float(found.scale) == scale
            np.testing.assert_array_equal(found.codes, oracle.activation_codes(x.numpy(), scale))
