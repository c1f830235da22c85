"""One DiT block as numerics.md defines it, in plain numpy: float64 between roundings that the definition names.

Every value that leaves a stage is shown to ``meet(name, value)``, which says what to go on with: the value itself
(a run of its own), or what a path had there (stage by stage, so that no rounding error is carried along).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from exporters.model import TINY

Array = np.ndarray[Any, Any]
Meet = Callable[[str, Array], Array]

HEADS, HEAD_DIM, EPS = TINY.heads, TINY.head_dim, TINY.eps


def weight_codes(weight: Array) -> tuple[Array, Array]:
    """Symmetric INT8 per output column: codes as integers, scales FP32."""
    scale = (np.abs(weight).max(axis=1) / np.float32(127)).astype(np.float32)
    return np.clip(np.rint(weight / scale[:, None]), -127, 127).astype(np.int64), scale


def activation_codes(x: Array, scale: np.float32) -> Array:
    quotient = x.astype(np.float32) / scale
    assert quotient.dtype == np.float32
    return np.clip(np.rint(quotient), -127, 127).astype(np.int64)


def layer_norm(x: Array) -> Array:
    x = x.astype(np.float64)
    return (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + EPS)


def rms_norm(x: Array, gain: Array) -> Array:
    x = x.astype(np.float64)
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPS) * gain


def gelu(x: Array) -> Array:
    x = x.astype(np.float64)
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def rotate(x: Array, grid: tuple[int, int, int]) -> Array:
    """Adjacent pairs of each head, by frame (44 channels), row (42) and column (42)."""
    places = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), axis=-1).reshape(-1, 3)
    ladders = [10000.0 ** (-2 * np.arange(n // 2) / n) for n in (44, 42, 42)]
    angles = np.concatenate([places[:, a, None] * ladder for a, ladder in enumerate(ladders)], axis=1)[:, None]
    pairs = x.astype(np.float64).reshape(len(x), HEADS, HEAD_DIM // 2, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    out = np.stack([even * np.cos(angles) - odd * np.sin(angles), even * np.sin(angles) + odd * np.cos(angles)], -1)
    return out.reshape(x.shape)


def heads_of(x: Array) -> Array:
    """``[m, width]`` to ``[heads, m, head_dim]``."""
    return x.reshape(len(x), HEADS, HEAD_DIM).swapaxes(0, 1)


def whole_of(x: Array) -> Array:
    return x.swapaxes(0, 1).reshape(x.shape[1], HEADS * HEAD_DIM)


@dataclass(frozen=True)
class Model:
    """One block's tensors by local name, its modulation ``[6, width]``, and whether the detail expert is at work."""

    tensors: Mapping[str, Array]
    adaln: Array
    detail: bool
    grid: tuple[int, int, int]


class Engine:
    """GEMMs and attention of one engine. Operands are whatever `operand` makes."""

    residual: type

    def __init__(self, model: Model, meet: Meet) -> None:
        self.model, self.meet = model, meet

    def enter(self, name: str, x: Array) -> Any:
        """A GEMM input, met before and after it is made an operand."""
        return self.operand(name, self.meet(f"{name} float", x))

    def operand(self, name: str, x: Array) -> Any:
        raise NotImplementedError

    def linear(self, name: str, x: Any) -> Array:
        raise NotImplementedError

    def attention(self, attn: str, q: Any, k: Any, v: Any) -> Array:
        raise NotImplementedError


def text_side(engine: Engine, text: Array) -> tuple[Any, Any]:
    """Cross-attention's keys and values: no RoPE."""
    t = engine.model.tensors
    entering = engine.enter("attn2.text", text)
    key = rms_norm(engine.linear("attn2.to_k", entering), t["attn2.norm_k.weight"])
    return engine.enter("attn2.key", key), engine.enter("attn2.value", engine.linear("attn2.to_v", entering))


def block(engine: Engine, hidden: Array, text: Array) -> Array:
    """facts/model.md, section 2.5, with every GEMM by the engine and the residual stream in its dtype."""
    t, grid, meet = engine.model.tensors, engine.model.grid, engine.meet
    shift, scale, gate, shift2, scale2, gate2 = engine.model.adaln
    keys, values = text_side(engine, text)

    def add(name: str, x: Array, y: Array, gate: Array | None = None) -> Array:
        """FP32, no fused multiply-add; then the stream's dtype."""
        y = y.astype(np.float32)
        total = x.astype(np.float32) + (y if gate is None else y * gate)
        assert total.dtype == np.float32
        return meet(name, total.astype(engine.residual))

    entering = engine.enter("attn1.input", layer_norm(hidden) * (1 + scale) + shift)
    q = rotate(rms_norm(engine.linear("attn1.to_q", entering), t["attn1.norm_q.weight"]), grid)
    k = rotate(rms_norm(engine.linear("attn1.to_k", entering), t["attn1.norm_k.weight"]), grid)
    v = engine.linear("attn1.to_v", entering)
    attended = engine.attention(
        "attn1", engine.enter("attn1.query", q), engine.enter("attn1.key", k), engine.enter("attn1.value", v)
    )
    attended = engine.enter("attn1.to_out.0.input", attended)
    hidden = add("hidden after attn1", hidden, engine.linear("attn1.to_out.0", attended), gate)

    crossing = engine.enter("attn2.to_q.input", layer_norm(hidden) * t["norm2.weight"] + t["norm2.bias"])
    q = rms_norm(engine.linear("attn2.to_q", crossing), t["attn2.norm_q.weight"])
    attended = engine.enter(
        "attn2.to_out.0.input", engine.attention("attn2", engine.enter("attn2.query", q), keys, values)
    )
    hidden = add("hidden after attn2", hidden, engine.linear("attn2.to_out.0", attended))

    up = engine.linear(
        "ffn.net.0.proj", engine.enter("ffn.net.0.proj.input", layer_norm(hidden) * (1 + scale2) + shift2)
    )
    down = engine.linear("ffn.net.2", engine.enter("ffn.net.2.input", gelu(up)))
    return add("hidden after ffn", hidden, down, gate2)


class Gpu(Engine):
    """INT8 weights and activations. Codes and sums are 64-bit integers here; epilogues are FP32 operations in order."""

    residual = np.float16

    def __init__(self, model: Model, meet: Meet, scales: Mapping[str, np.float32], ratio: float) -> None:
        super().__init__(model, meet)
        self.scales, self.ratio = scales, ratio

    def operand(self, name: str, x: Array) -> tuple[Array, np.float32]:
        scale = self.scales[name]
        return self.meet(f"{name} codes", activation_codes(x, scale)), scale

    def _gemm(self, name: str, what: str, x: tuple[Array, np.float32], ratio: float = 1.0) -> Array:
        codes, scale = weight_codes(self.model.tensors[name])
        acc = self.meet(f"{what} acc", x[0] @ codes.T)
        return acc.astype(np.float32) * (x[1] * (scale * np.float32(ratio)))

    def linear(self, name: str, x: tuple[Array, np.float32]) -> Array:
        y = self._gemm(f"{name}.weight", name, x) + self.model.tensors[f"{name}.bias"]
        if self.model.detail and name.startswith("attn"):
            h = self.enter(f"{name}.lora_hidden", self._gemm(f"{name}.lora_A.weight", f"{name} A", x))
            y = y + self._gemm(f"{name}.lora_B.weight", f"{name} B", h, self.ratio)
        assert y.dtype == np.float32
        return self.meet(f"{name} output", y)

    def attention(
        self, attn: str, q: tuple[Array, np.float32], k: tuple[Array, np.float32], v: tuple[Array, np.float32]
    ) -> Array:
        acc = self.meet(f"{attn} scores acc", heads_of(q[0]) @ heads_of(k[0]).swapaxes(1, 2))
        factor = q[1] * k[1] / np.float32(math.sqrt(HEAD_DIM))
        scores = (acc.astype(np.float32) * factor).astype(np.float16).astype(np.float64)
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p = self.meet(f"{attn} probabilities", 127 * e)
        values = heads_of(v[0])
        weighted = self.meet(f"{attn} weighted sums", p @ values)
        total = self.meet(f"{attn} sums", p.sum(axis=-1, keepdims=True))
        out = weighted.astype(np.float32) * v[1] / total.astype(np.float32)
        assert out.dtype == np.float32
        return self.meet(f"{attn} output", whole_of(out))


class Npu(Engine):
    """FP16 operands, accumulation in float64 here ("FP32 or wider")."""

    residual = np.float32

    def __init__(self, model: Model, meet: Meet, ratio: float) -> None:
        super().__init__(model, meet)
        self.ratio = ratio

    def operand(self, name: str, x: Array) -> Array:
        # From float64, so that FP32 values pass unchanged and are rounded once.
        return self.meet(f"{name} fp16", x.astype(np.float16))

    def widened(self, name: str) -> Array:
        codes, scale = weight_codes(self.model.tensors[name])
        if ".lora_B." in name:
            scale = scale * np.float32(self.ratio)
        return (codes.astype(np.float32) * scale[:, None]).astype(np.float16)

    def _gemm(self, name: str, x: Array) -> Array:
        acc = x.astype(np.float64) @ self.widened(name).astype(np.float64).T
        return acc.astype(np.float16)

    def linear(self, name: str, x: Array) -> Array:
        acc = self._gemm(f"{name}.weight", x)
        y = (acc.astype(np.float32) + self.model.tensors[f"{name}.bias"]).astype(np.float16)
        if self.model.detail and name.startswith("attn"):
            h = self.enter(f"{name}.lora_hidden", self._gemm(f"{name}.lora_A.weight", x))
            more = self._gemm(f"{name}.lora_B.weight", h)
            y = (y.astype(np.float32) + more.astype(np.float32)).astype(np.float16)
        return self.meet(f"{name} output", y)

    def attention(self, attn: str, q: Array, k: Array, v: Array) -> Array:
        """Softmax in float64 over scores fp16(acc), so that what the flash form does is within the bound of `meet`."""
        acc = heads_of(q.astype(np.float64)) @ heads_of(k.astype(np.float64)).swapaxes(1, 2)
        scores = acc.astype(np.float16).astype(np.float64) / math.sqrt(HEAD_DIM)
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out = (e @ heads_of(v.astype(np.float64))) / e.sum(axis=-1, keepdims=True)
        return self.meet(f"{attn} output", whole_of(out))


def itself(name: str, value: Array) -> Array:
    """`meet` of a run of its own. Probabilities become codes here."""
    return np.rint(value).astype(np.int64) if name.endswith("probabilities") else value


def local(tensors: Mapping[str, Array], block_index: int) -> Iterator[tuple[str, Array]]:
    """A block's tensors by their names within it."""
    prefix = f"blocks.{block_index}."
    return ((name.removeprefix(prefix), value) for name, value in tensors.items() if name.startswith(prefix))
