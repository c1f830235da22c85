"""The watcher that is shown a trajectory's GEMM operands and outputs and keeps reductions of them on the device."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from quant.calibration.histogram import BINS, FIRST, SHIFT
from quant.calibration.statistics import Statistics
from quant.fused import fused
from quant.gemms import HIDDEN, gemm_inputs, gemm_outputs
from quant.paths.arithmetic import At
from quant.paths.fp32 import FloatArithmetic
from quant.paths.trajectory import NumericPath, Seen, Trajectory
from quant.paths.weights import Weights

SAMPLED_TOKENS = 256
"""Histograms take about so many rows of a tensor, evenly spread; maxima take all."""


class NonFiniteActivationError(ValueError):
    """NaN or Inf on the way. ``step``, ``block`` and ``name`` (a GEMM's input or output) are those of the first."""

    def __init__(self, step: int, block: int, name: str) -> None:
        super().__init__(f"NaN or Inf at step {step}, block {block}, {name}")
        self.step = step
        self.block = block
        self.name = name


class StatisticsWatcher:
    """Collects `Statistics` of the trajectories that it is shown. Nothing that it keeps has the size of an
    activation."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._inputs, self._outputs = gemm_inputs(weights.shape), gemm_outputs(weights.shape)
        self._column = {i.name: n for n, i in enumerate(self._inputs)}
        self._output_column = {name: n for n, name in enumerate(self._outputs)}
        steps, layers, device = len(weights.steps), weights.shape.layers, weights.device
        self._channels = {i.name: torch.zeros((steps, layers, i.channels), device=device) for i in self._inputs}
        # Counts in FP64, exact to 2^53: a GPU's histogram is of floats, and adds to it without another kernel.
        self._histogram = torch.zeros((steps, layers, len(self._inputs), BINS), dtype=torch.float64, device=device)
        self._output = torch.zeros((steps, layers, len(self._outputs)), device=device)
        self._seen: dict[int, dict[str, set[int]]] = {}
        """Step -> GEMM inputs and outputs in the order in which they came -> the blocks where they did."""
        self._unread: list[tuple[int, Callable[[], bool]]] = []
        """Step, and whether all of it was finite: asked for, not yet waited for."""

    def operand(self, at: At, name: str, x: Tensor) -> None:
        _largest(x, self._channels[name][at.step, at.block], first=self._first(at, name))
        sample = x[:: sampling_stride(x.shape[0])]
        self._histogram[at.step, at.block, self._column[name]] += count(sample)

    def output(self, at: At, name: str, y: Tensor) -> None:
        _largest(y, self._kept(at, name), first=self._first(at, name))

    def scores(self, at: At, attn: str, query: Tensor, key: Tensor) -> None:
        bound = (_longest_row(query) * _longest_row(key)).amax()
        kept = self._kept(at, f"{attn}.scores_bound")
        torch.maximum(kept, bound, out=kept)
        self._first(at, f"{attn}.scores_bound")

    def after_block(self, done: int, hidden: Tensor) -> None:
        """A `Seen`: keeps what the hidden state reaches, and ends a step with a look at whether the one before was
        finite, so that the device never waits to be told what comes next."""
        step, block = divmod(done - 1, self._weights.shape.layers)
        at = At(step, block, self._weights.steps[step].expert)
        self.output(at, HIDDEN, hidden)
        if block == self._weights.shape.layers - 1:
            earlier, self._unread = self._unread, [(step, _later(self._finite(step).all()))]
            self._read(earlier)

    def check(self) -> None:
        """Whether everything seen was finite; waits for the device. Raises NonFiniteActivationError."""
        self._unread.clear()
        for step in sorted(self._seen):
            self._name_first(step)

    def _read(self, flags: list[tuple[int, Callable[[], bool]]]) -> None:
        for step, all_finite in flags:
            if not all_finite():
                self._name_first(step)

    def _name_first(self, step: int) -> None:
        """Every block comes in the same order, so the first in the first block is the first of all."""
        finite = self._finite(step)
        if bool(finite.all()):
            return
        block, first = (int(i) for i in torch.nonzero(~finite)[0])
        raise NonFiniteActivationError(step, block, list(self._seen[step])[first])

    def _first(self, at: At, name: str) -> bool:
        """Notes that it came, and whether that was for the first time."""
        blocks = self._seen.setdefault(at.step, {}).setdefault(name, set())
        first = at.block not in blocks
        blocks.add(at.block)
        return first

    def _kept(self, at: At, output: str) -> Tensor:
        return self._output[at.step, at.block, self._output_column[output]]

    def _finite(self, step: int) -> Tensor:
        """``[layers, names]``, the names as they came."""

        def of(name: str) -> Tensor:
            if name in self._channels:
                return self._channels[name][step].isfinite().all(dim=-1)
            return self._output[step, :, self._output_column[name]].isfinite()

        return torch.stack([of(name) for name in self._seen[step]], dim=-1)

    def statistics(self) -> Statistics:
        """What was collected, with the numbers of an expert's inputs in all steps of the expert. Raises
        NonFiniteActivationError."""
        self.check()
        # Copies, on a CPU too: what was read stays as it was.
        channels = {name: values.cpu().numpy().copy() for name, values in self._channels.items()}
        histogram, outputs = self._histogram.cpu().long().numpy(), self._output.cpu().numpy().copy()
        for expert in dict.fromkeys(step.expert for step in self._weights.steps):
            steps = [n for n, step in enumerate(self._weights.steps) if step.expert == expert]
            for n, i in enumerate(self._inputs):
                if i.per == "expert":
                    channels[i.name][steps] = channels[i.name][steps].max(axis=0)
                    histogram[steps, :, n] = histogram[steps, :, n].sum(axis=0)
        return Statistics(self._inputs, self._outputs, channels, histogram, outputs)


def run_watched(
    weights: Weights,
    embeds: Tensor,
    noise: Tensor,
    gemm_dtype: torch.dtype = torch.float32,
    seen: Seen | None = None,
) -> tuple[Statistics, Tensor]:
    """One trajectory from ``noise [C, T, H, W]``: its statistics and final latent. Raises NonFiniteActivationError."""
    watcher = StatisticsWatcher(weights)
    path = NumericPath("watched", FloatArithmetic(weights, gemm_dtype, watcher))
    frames, rows, columns = noise.shape[1:]
    trajectory = Trajectory(path, embeds, (frames, rows, columns))

    def both(done: int, hidden: Tensor) -> None:
        if seen is not None:
            seen(done, hidden)
        watcher.after_block(done, hidden)

    final = trajectory.finish(trajectory.run(trajectory.start(noise), seen=both))
    return watcher.statistics(), final


@functools.lru_cache
def sampling_stride(tokens: int) -> int:
    """Of the numbers that share no divisor with ``tokens``, the one nearest to ``tokens / SAMPLED_TOKENS``.

    Tokens are a grid of frames, rows and columns, whose sizes divide their number: a stride that shared a divisor with
    a row would meet the same few columns in each.
    """
    wanted = tokens / SAMPLED_TOKENS
    coprime = (n for n in range(1, tokens + 2) if math.gcd(n, tokens) == 1)
    return min(itertools.takewhile(lambda n: n < 2 * wanted + 1, coprime), key=lambda n: (abs(n - wanted), -n))


def _largest(x: Tensor, kept: Tensor, *, first: bool) -> None:
    """Raises ``kept`` to max |x|, FP32, over ``x`` if it is one number and over the rows of ``x`` if it is a vector.

    A GPU writes the first one where it is kept, in one pass. On a CPU that function is several times slower than two.
    """
    dim = 0 if kept.dim() else None
    if x.is_cuda:
        if first:
            torch.linalg.vector_norm(x, torch.inf, dim=dim, dtype=torch.float32, out=kept)
            return
        largest = torch.linalg.vector_norm(x, torch.inf, dim=dim, dtype=torch.float32)
    else:
        largest = (x.abs().amax() if dim is None else x.abs().amax(dim=dim)).float()
    torch.maximum(kept, largest, out=kept)


def _later(flag: Tensor) -> Callable[[], bool]:
    """A call that waits for ``flag`` when it is made, not before."""
    if not flag.is_cuda:
        return lambda: bool(flag)
    copied = torch.empty((), dtype=torch.bool, pin_memory=True)
    copied.copy_(flag, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def read() -> bool:
        arrived.synchronize()
        return bool(copied)

    return read


def _longest_row(x: Tensor) -> Tensor:
    """The largest ‖row‖ of each head: ``[heads, rows, head_dim]`` to FP32 ``[heads]``.

    Not `fused`: a compiler may sum in another order in another process, and calibrations are the same to the bit.
    """
    lengths: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32)
    return lengths.amax(dim=-1)


def count(x: Tensor) -> Tensor:
    """``[BINS]``: how many values of any float tensor lie in each bin; whole numbers, of any dtype."""
    index = _index(x)
    if x.is_cuda:  # bincount would wait for the device
        return torch.histc(index, BINS, -0.5, BINS - 0.5)
    return torch.bincount(index.flatten().int(), minlength=BINS)


@fused
def _index(x: Tensor) -> Tensor:
    bits = x.float().abs().view(torch.int32)
    return ((bits >> SHIFT) - FIRST).clamp(0, BINS - 1).float()
