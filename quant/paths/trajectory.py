"""A video's block executions as one sequence that can be stopped and resumed before any of them.

The N · L executions of N steps and L blocks are numbered from 0. A `NumericPath` assigns an arithmetic to each;
`Trajectory.run` executes any range. Between two ranges only a `State` crosses: the hidden state and the running
latent in FP32, which is also all that crosses from the GPU to the NPU on the phone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from quant.paths.arithmetic import Arithmetic, At
from quant.paths.block import TextOperands, run_block, text_operands
from quant.paths.fp32 import FloatArithmetic
from quant.paths.gpu import GpuArithmetic
from quant.paths.host import (
    Grid,
    embed_tokens,
    project_text,
    rope_rotations,
    to_latent,
    to_tokens,
    token_grid,
    velocity,
)
from quant.paths.npu import NpuArithmetic
from quant.paths.tensor import TensorArithmetic, gpu_columns
from quant.paths.weights import Weights
from quant.scales import Scales


@dataclass(frozen=True)
class State:
    """A trajectory before block execution ``position``.

    ``latent``: the running latent as tokens ``[M, patch_volume · channels]`` FP32. ``hidden``: ``[M, width]`` FP32
    inside a step, None at the start of one, where it follows from the latent.
    """

    position: int
    latent: Tensor
    hidden: Tensor | None = None


Seen = Callable[[int, Tensor], None]
"""Called after each block execution with the number of those that are done, and the hidden state ``[M, width]``
FP32."""


@dataclass(frozen=True)
class NumericPath:
    """Which arithmetic executes which position: ``prefix`` those below ``cut``, ``rest`` the others."""

    name: str
    rest: Arithmetic
    prefix: Arithmetic | None = None
    cut: int = 0

    def at(self, position: int) -> Arithmetic:
        return self.prefix if self.prefix is not None and position < self.cut else self.rest


def fp32(weights: Weights) -> NumericPath:
    """The reference."""
    return NumericPath("fp32", FloatArithmetic(weights))


def npu(weights: Weights, *, exact: bool = False) -> NumericPath:
    """Everything on the NPU. ``exact``, here and below: its arithmetic to the bit."""
    return NumericPath("npu", NpuArithmetic(weights, exact=exact))


def gpu(weights: Weights, scales: Scales) -> NumericPath:
    """Everything on the GPU."""
    return NumericPath("gpu", GpuArithmetic(weights, scales))


def hetero(weights: Weights, scales: Scales, cut: int, *, exact: bool = False) -> NumericPath:
    """``[0, cut)`` on the GPU, the rest on the NPU. Raises ValueError for a cut outside the trajectory."""
    executions = len(weights.steps) * weights.shape.layers
    if not 0 <= cut <= executions:
        raise ValueError(f"a cut at {cut} is outside the trajectory of {executions} block executions")
    rest = NpuArithmetic(weights, exact=exact)
    return NumericPath(f"hetero({cut})", rest, GpuArithmetic(weights, scales), cut)


def hetero_tensor(
    weights: Weights, scales: Scales, share: float, cut: int | None = None, *, exact: bool = False
) -> NumericPath:
    """Every linear split by columns, ``share`` of them on the GPU; from ``cut`` on everything on the NPU, as after a
    loss of the GPU. Raises ValueError for a share outside [0, 1]."""
    gpu_columns(1, share)
    shared = TensorArithmetic(weights, scales, share, exact=exact)
    if cut is None:
        return NumericPath(f"hetero-tensor({share:g})", shared)
    return NumericPath(f"hetero-tensor({share:g}, {cut})", NpuArithmetic(weights, exact=exact), shared, cut)


class Trajectory:
    """One prompt on one path. ``embeds`` ``[text_tokens, text_width]``; ``latent``: (frames, rows, columns).

    Keys and values of the text are computed when first needed and kept for as long as their expert is at work.
    """

    def __init__(self, path: NumericPath, embeds: Tensor, latent: Grid) -> None:
        self.path = path
        self.weights = path.rest.weights
        self._embeds = embeds.to(self.weights.device)
        self._grid = token_grid(latent, self.weights.shape)
        self._rotations = rope_rotations(self.weights, self._grid)
        self._text: tuple[str, Tensor] | None = None
        self._kept: dict[tuple[int, int], TextOperands] = {}

    @property
    def executions(self) -> int:
        """N · L."""
        return len(self.weights.steps) * self.weights.shape.layers

    def start(self, noise: Tensor) -> State:
        """The state before the first block, from a noise latent ``[C, T, H, W]``."""
        return State(0, to_tokens(noise.to(self.weights.device, torch.float32), self.weights.shape))

    def finish(self, state: State) -> Tensor:
        """The final latent ``[C, T, H, W]`` FP32 of a state after the last block."""
        return to_latent(state.latent, self._grid, self.weights.shape)

    def generate(self, noise: Tensor) -> Tensor:
        """Noise to final latent, ``[C, T, H, W]`` FP32."""
        return self.finish(self.run(self.start(noise)))

    @torch.no_grad()
    def run(self, state: State, count: int | None = None, seen: Seen | None = None) -> State:
        """Execute ``count`` blocks (to the end if None).

        Raises ValueError if fewer than ``count`` are left, and for a state that is not one between two blocks.
        """
        stop = self.executions if count is None else state.position + count
        if not state.position <= stop <= self.executions:
            raise ValueError(f"blocks {state.position} to {stop} of {self.executions}")
        latent, hidden = state.latent, state.hidden
        layers = self.weights.shape.layers
        if (hidden is None) != (state.position % layers == 0):
            raise ValueError(f"a state at {state.position} {'lacks its' if hidden is None else 'has a'} hidden state")
        for position in range(state.position, stop):
            step, block = divmod(position, layers)
            arithmetic = self.path.at(position)
            expert = self.weights.steps[step].expert
            if hidden is None:
                hidden = embed_tokens(self.weights, latent)
            text = self._operands(arithmetic, At(step, block, expert))
            hidden = run_block(
                arithmetic, At(step, block, expert), hidden.to(arithmetic.residual_dtype), text, self._rotations
            )
            if seen is not None:
                seen(position + 1, hidden.float())
            if block == layers - 1:
                v = velocity(self.weights, step, expert, hidden)
                latent = latent + v * self.weights.steps[step].step_size
                hidden = None
        return State(stop, latent, None if hidden is None else hidden.float())

    def _operands(self, arithmetic: Arithmetic, at: At) -> TextOperands:
        if self._text is None or self._text[0] != at.expert:
            self._text = (at.expert, project_text(self.weights, at.expert, self._embeds))
            self._kept.clear()
        key = (id(arithmetic), at.block)
        if key not in self._kept:
            self._kept[key] = text_operands(arithmetic, at, self._text[1])
        return self._kept[key]
