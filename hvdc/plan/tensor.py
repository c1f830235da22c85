"""How two engines share each GEMM: HeteroInfer's solver, and the one share that the runtime's ``hetero-tensor`` takes.

Source: HeteroInfer (Chen et al., 2025). Per GEMM, of all ways to give the GPU part 1 and the NPU part 2, the fastest:

    T = min( max(T_gpu(part 1), T_npu(part 2)) + T_exchange,  T_gpu(all),  T_npu(all) )

where one of the last two pays T_exchange = T_sync + T_copy too: that of the engine which does not hold what goes in and
comes out. There, that is the NPU; in our runtime the residual stream is the NPU's, so it is the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from hvdc.errors import UsageError
from hvdc.plan.gemms import TILE, Engine, Gemm, Profile

Kind = Literal["npu", "gpu", "row-cut", "sequence-cut", "hybrid"]
KINDS: tuple[Kind, ...] = ("npu", "gpu", "row-cut", "sequence-cut", "hybrid")
"""Of equally fast ones the first is taken.

- ``row-cut``: each engine computes some of the weight's output channels, for all tokens (weight-centric);
- ``sequence-cut``: each computes some of the tokens, the NPU those of a standard length (activation-centric);
- ``hybrid``: the tokens are padded to a standard length of the NPU, then cut as a row-cut is.
"""


@dataclass(frozen=True)
class Exchange:
    """Seconds that both engines lose where they meet once: waiting for each other, and copying or cache maintenance.
    ``home``: the engine that holds what a GEMM reads and writes, and needs no exchange to compute it alone."""

    sync_s: float
    copy_s: float = 0.0
    home: Engine = "npu"

    def seconds(self, gemm: Gemm) -> float:
        return gemm.exchanges * (self.sync_s + self.copy_s)


@dataclass(frozen=True)
class Partition:
    """One way to compute a GEMM. The tokens are those that an engine computes, padding included."""

    kind: Kind
    gpu_tokens: int
    gpu_columns: int
    npu_tokens: int
    npu_columns: int
    gpu_s: float
    npu_s: float
    exchange_s: float

    @property
    def total_s(self) -> float:
        return max(self.gpu_s, self.npu_s) + self.exchange_s

    @property
    def gpu_share(self) -> float:
        """Of the multiplications that both do."""
        gpu, npu = self.gpu_tokens * self.gpu_columns, self.npu_tokens * self.npu_columns
        return gpu / (gpu + npu)


@dataclass(frozen=True)
class Engines:
    """Two profiles and what it costs to use both. ``ratios``: a weight is cut only so, GPU : NPU, each at the nearest
    edge of a tile; empty: at any edge."""

    gpu: Profile
    npu: Profile
    exchange: Exchange
    ratios: tuple[tuple[int, int], ...] = ()

    def measured(self, gemm: Gemm) -> bool:
        """Whether both engines were."""
        return all(p.knows(gemm.in_features, gemm.out_features) for p in (self.gpu, self.npu))

    def cuts(self, columns: int) -> list[int]:
        """Columns that the GPU may have of a weight, ascending, without none and all."""
        if not self.ratios:
            return list(range(TILE, columns, TILE))
        cuts = {slice_columns(columns, gpu / (gpu + npu)) for gpu, npu in self.ratios}
        return sorted(cuts - {0, columns})


def partitions(gemm: Gemm, engines: Engines) -> Iterator[Partition]:
    """Every partition there is, in the order of `KINDS`, with growing parts of the GPU.

    Raises UsageError where an engine's time of this weight is not known.
    """
    gpu, npu, exchange_s = engines.gpu, engines.npu, engines.exchange.seconds(gemm)
    m, k, n = gemm.tokens, gemm.in_features, gemm.out_features
    padded = npu.computed(m)

    def alone_s(engine: Engine) -> float:
        return 0.0 if engine == engines.exchange.home else exchange_s

    yield Partition("npu", 0, 0, padded, n, 0.0, npu.seconds(m, k, n), alone_s("npu"))
    yield Partition("gpu", m, n, 0, 0, gpu.seconds(m, k, n), 0.0, alone_s("gpu"))
    by_rows: Kind = "row-cut" if padded == m else "hybrid"
    for columns in engines.cuts(n):
        yield Partition(
            by_rows, padded, columns, padded, n - columns, gpu.seconds(padded, k, columns),
            npu.seconds(padded, k, n - columns), exchange_s,
        )  # fmt: skip
    for tokens in npu.unpadded_below(m):
        rest = m - tokens
        yield Partition(
            "sequence-cut", rest, n, tokens, n, gpu.seconds(rest, k, n), npu.seconds(tokens, k, n), exchange_s
        )


@dataclass(frozen=True)
class Decision:
    """A GEMM, the best partition of each kind that is possible, and the best of all."""

    gemm: Gemm
    considered: tuple[Partition, ...]
    chosen: Partition
    home: Engine

    @property
    def alone_s(self) -> float:
        """Seconds of the engine that needs no exchange, alone."""
        return next(p.total_s for p in self.considered if p.kind == self.home)

    @property
    def gain_s(self) -> float:
        """What the chosen partition saves of that; never negative."""
        return self.alone_s - self.chosen.total_s


def decide(gemm: Gemm, engines: Engines) -> Decision:
    """The fastest partition of a GEMM; of equally fast ones the first of `KINDS`, with the smallest part of the GPU.

    All are evaluated, at most a few thousand: measured times need not grow with the size, so no search may skip any.
    """
    best: dict[Kind, Partition] = {}
    for p in partitions(gemm, engines):
        if p.kind not in best or p.total_s < best[p.kind].total_s:
            best[p.kind] = p
    considered = tuple(best[kind] for kind in KINDS if kind in best)
    return Decision(gemm, considered, min(considered, key=lambda p: p.total_s), engines.exchange.home)


def slice_columns(columns: int, share: float) -> int:
    """Of a linear's columns those that the runtime gives the GPU: the share to the nearest edge of a tile, a half
    upwards. ``hvdc_slice_tiles`` in device_runtime is the same."""
    tiles = -(-columns // TILE)
    return min(columns, TILE * math.floor(share * tiles + 0.5))


@dataclass(frozen=True)
class SharedBlock:
    """A block in the runtime's mode ``hetero-tensor``: ``gpu_share`` of each linear's columns is the GPU's.

    ``linears_s`` and ``npu_linears_s``: seconds of the block's linears so, and on the NPU alone, in each execution.
    """

    gpu_share: float
    linears_s: float
    npu_linears_s: float

    def block_s(self, npu_block_s: float) -> float:
        """Seconds of a whole block, of one that takes the NPU alone ``npu_block_s``: all but the linears stays the
        NPU's. Raises UsageError where the linears alone would take longer."""
        if npu_block_s < self.npu_linears_s:
            raise UsageError(
                "the GEMM times and the NPU's time of a block contradict each other",
                expected=f"at least {self.npu_linears_s:.4g} s for a block, which its linears take",
                found=f"{npu_block_s:.4g} s",
                fix="measure both under the same conditions",
            )
        return npu_block_s - self.npu_linears_s + self.linears_s


def best_share(gemms: Sequence[Gemm], engines: Engines) -> SharedBlock:
    """The one share of all linears with which a block's are fastest; the smallest of equally good ones.

    ``gemms``: those of a block; those of the text are left out. A share changes what the runtime does only where some
    linear's split moves to the next tile, so one share of each interval is evaluated, and all of them are.
    """
    every_time = [gemm for gemm in gemms if not gemm.once_per_prompt]
    counts = {-(-gemm.out_features // TILE) for gemm in every_time}
    edges = sorted({(2 * tile + 1) / (2 * tiles) for tiles in counts for tile in range(tiles)})
    shares = [_short_between(low, high) for low, high in pairwise([*edges, 1.0])]
    alone_s = _linears_s(every_time, engines, 0.0)
    best = SharedBlock(0.0, alone_s, alone_s)
    for share in shares:
        seconds = _linears_s(every_time, engines, share)
        if seconds < best.linears_s:
            best = SharedBlock(share, seconds, alone_s)
    return best


def _linears_s(gemms: Sequence[Gemm], engines: Engines, share: float) -> float:
    return sum(_shared_s(gemm, engines, slice_columns(gemm.out_features, share)) for gemm in gemms)


def _shared_s(gemm: Gemm, engines: Engines, columns: int) -> float:
    m, k, n = gemm.tokens, gemm.in_features, gemm.out_features
    npu_s = engines.npu.seconds(m, k, n - columns)
    if columns == 0:
        return npu_s
    return max(engines.gpu.seconds(m, k, columns), npu_s) + engines.exchange.seconds(gemm)


def _short_between(low: float, high: float) -> float:
    """A share with few digits of [low, high)."""
    for digits in range(1, 17):
        share: float = math.ceil(low * 10**digits) / 10**digits
        if low <= share < high:
            return share
    return low
