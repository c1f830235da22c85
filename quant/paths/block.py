"""One DiT block, written once for every arithmetic.

Source: Wan2.1 wan/modules/model.py `WanAttentionBlock`; diffusers `WanTransformerBlock`. Norms, modulation, RoPE and
gates are FP32 on both engines; an `Arithmetic` decides what happens in and at the GEMMs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from quant.paths.arithmetic import Arithmetic, At
from quant.paths.host import layer_norm, rms_norm, rotate


@dataclass(frozen=True)
class TextOperands:
    """Cross-attention's keys and values of one block, as operands: computed once per prompt and expert."""

    key: Any
    value: Any


def text_operands(arithmetic: Arithmetic, at: At, text: Tensor) -> TextOperands:
    """Keys and values of the projected text ``[text_tokens, width]`` FP32. ``at.step`` is any step of the expert."""
    entering = arithmetic.operand(at, "attn2.text", text)
    gain = arithmetic.weights.values(at.weight("attn2.norm_k"))
    projected = arithmetic.linear(at, "attn2.to_k", entering).float()
    key = rms_norm(projected, gain, arithmetic.weights.shape.eps, exact=arithmetic.exact_norms)
    value = arithmetic.linear(at, "attn2.to_v", entering)
    return TextOperands(arithmetic.operand(at, "attn2.key", key), arithmetic.operand(at, "attn2.value", value))


def run_block(arithmetic: Arithmetic, at: At, hidden: Tensor, text: TextOperands, rotations: Tensor) -> Tensor:
    """One block execution: hidden ``[M, width]`` in the arithmetic's residual dtype, to the same."""
    weights, exact = arithmetic.weights, arithmetic.exact_norms
    shape, eps = weights.shape, weights.shape.eps
    shift_attn, scale_attn, gate_attn, shift_ffn, scale_ffn, gate_ffn = weights.adaln[at.step, at.block]

    def normed(linear: str, norm: str, entering: Any) -> Tensor:
        return rms_norm(
            arithmetic.linear(at, linear, entering).float(), weights.values(at.weight(norm)), eps, exact=exact
        )

    def add(x: Tensor, y: Tensor, gate: Tensor | None = None) -> Tensor:
        gated = y.float() if gate is None else y.float() * gate
        return (x.float() + gated).to(arithmetic.residual_dtype)

    entering = arithmetic.operand(
        at, "attn1.input", modulate(layer_norm(hidden.float(), eps, exact=exact), shift_attn, scale_attn)
    )
    query = rotate(normed("attn1.to_q", "attn1.norm_q", entering), rotations, shape.heads)
    query = arithmetic.operand(at, "attn1.query", query)
    key = rotate(normed("attn1.to_k", "attn1.norm_k", entering), rotations, shape.heads)
    key = arithmetic.operand(at, "attn1.key", key)
    value = arithmetic.operand(at, "attn1.value", arithmetic.linear(at, "attn1.to_v", entering))
    del entering
    attended = arithmetic.attention(at, "attn1", query, key, value)
    del query, key, value
    attended = arithmetic.operand(at, "attn1.to_out.0.input", attended)
    hidden = add(hidden, arithmetic.linear(at, "attn1.to_out.0", attended), gate_attn)

    crossing = hidden.float()
    if shape.cross_attn_norm:
        crossing = layer_norm(
            crossing, eps, weights.values(at.weight("norm2")), weights.values(at.weight("norm2", "bias")), exact=exact
        )
    crossing = arithmetic.operand(at, "attn2.to_q.input", crossing)
    query = arithmetic.operand(at, "attn2.query", normed("attn2.to_q", "attn2.norm_q", crossing))
    attended = arithmetic.attention(at, "attn2", query, text.key, text.value)
    del crossing, query
    attended = arithmetic.operand(at, "attn2.to_out.0.input", attended)
    hidden = add(hidden, arithmetic.linear(at, "attn2.to_out.0", attended))
    del attended

    entering = modulate(layer_norm(hidden.float(), eps, exact=exact), shift_ffn, scale_ffn)
    up = arithmetic.linear(at, "ffn.net.0.proj", arithmetic.operand(at, "ffn.net.0.proj.input", entering))
    del entering
    activated = arithmetic.operand(at, "ffn.net.2.input", arithmetic.gelu(up))
    del up
    return add(hidden, arithmetic.linear(at, "ffn.net.2", activated), gate_ffn)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """AdaLN: ``x · (1 + scale) + shift``."""
    return x * (1.0 + scale) + shift
