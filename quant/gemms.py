"""Which tensors enter and leave the GEMMs of a block: the list that calibration, scales and paths share.

A GEMM input has one scale for each block and step. Three linears that read the same tensor share it. What depends
on the prompt and the expert alone (the text, and the keys and values made of it) has one scale for each expert, so
that cross-attention's K and V are computed once for a prompt and an expert.
Attention's second GEMM multiplies probabilities, which need no calibrated scale: they are quantised as 127 · e.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quant.source import Shape

Per = Literal["step", "expert"]

SEMANTIC, DETAIL = "semantic", "detail"


@dataclass(frozen=True)
class GemmInput:
    """One GEMM operand of every block.

    ``linears`` are those that read it, none for an operand of attention. ``per`` tells what its scale may vary with.
    ``experts``: those in whose steps it exists.
    """

    name: str
    channels: int
    linears: tuple[str, ...]
    per: Per
    experts: tuple[str, ...]


_READERS: dict[str, tuple[str, ...]] = {
    "attn1.input": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "attn1.to_out.0.input": ("attn1.to_out.0",),
    "attn2.to_q.input": ("attn2.to_q",),
    "attn2.text": ("attn2.to_k", "attn2.to_v"),
    "attn2.to_out.0.input": ("attn2.to_out.0",),
    "ffn.net.0.proj.input": ("ffn.net.0.proj",),
    "ffn.net.2.input": ("ffn.net.2",),
}
"""Inputs of linears, in the order of the block, and who reads each."""

_OPERANDS = ("attn1.query", "attn1.key", "attn1.value", "attn2.query", "attn2.key", "attn2.value")
"""Operands of attention: queries and keys after norm and RoPE, values."""

_OF_THE_TEXT = {"attn2.text", "attn2.key", "attn2.value", "attn2.to_k.lora_hidden", "attn2.to_v.lora_hidden"}

LINEARS = tuple(linear for readers in _READERS.values() for linear in readers)
"""The linears of a block, each once."""

ADAPTED = tuple(linear for linear in LINEARS if linear.startswith("attn"))
"""Those that the detail expert adapts."""


def hidden_of(linear: str) -> str:
    """The adapter's low-rank hidden ``A x`` of a linear, which is the input of its second GEMM."""
    return f"{linear}.lora_hidden"


def experts_of(shape: Shape) -> tuple[str, ...]:
    """The experts that a model has."""
    return (SEMANTIC, DETAIL) if shape.rank else (SEMANTIC,)


def gemm_inputs(shape: Shape) -> tuple[GemmInput, ...]:
    """Every GEMM input of a block, in a fixed order: 21 for a model with two experts, 13 with one."""
    experts = experts_of(shape)

    def make(name: str, channels: int, linears: tuple[str, ...] = (), only: tuple[str, ...] = experts) -> GemmInput:
        return GemmInput(name, channels, linears, "expert" if name in _OF_THE_TEXT else "step", only)

    inputs = [
        make(name, shape.ffn_width if name == "ffn.net.2.input" else shape.width, readers)
        for name, readers in _READERS.items()
    ]
    inputs += [make(name, shape.width) for name in _OPERANDS]
    if shape.rank:
        inputs += [make(hidden_of(linear), shape.rank, (), (DETAIL,)) for linear in ADAPTED]
    return tuple(inputs)


def gemm_outputs(shape: Shape) -> tuple[str, ...]:
    """Names of what is watched for FP16's range: each linear's output, each adapter's, attention's scores, `HIDDEN`.

    Scores never exist as a whole; ``….scores_bound`` is max‖q‖ · max‖k‖ over the rows of a head, which bounds
    every dot product q·k (Cauchy and Schwarz), before the division by √head_dim.
    """
    names = [f"{linear}.output" for linear in LINEARS]
    if shape.rank:
        names += [f"{linear}.lora_output" for linear in ADAPTED]
    return (*names, "attn1.scores_bound", "attn2.scores_bound", HIDDEN)


HIDDEN = "hidden"
"""The residual stream after a block: FP16 on the GPU, FP32 on the NPU, where it is the GEMMs' outputs that are FP16."""

FP16_WARNING = 30_000.0
"""Outputs above this are reported: FP16 ends at 65,504, and another prompt may go further than those seen."""
