"""The ways to run a stream, and what a video's blocks cost in each of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, NamedTuple, get_args

from hvdc.errors import UsageError
from hvdc.plan.costs import Costs, EngineCosts

Mode = Literal["npu", "gpu", "hetero", "dp", "hetero-tensor"]
MODES: tuple[Mode, ...] = get_args(Mode)
SLOTS: dict[Mode, int] = {"npu": 1, "gpu": 2, "hetero": 2, "dp": 3, "hetero-tensor": 1}
"""Videos in flight, each with a place in shared memory: default_slots of
device_runtime/coordinator/src/stream_begin.c."""


class StageSums(NamedTuple):
    """Seconds of the blocks [0, k) of one engine, for every k: alone, and beside the other engine."""

    alone: list[float]
    shared: list[float]


def stage_sums(costs: Costs, mode: Mode, cut: int | None = None) -> tuple[StageSums | None, StageSums | None]:
    """Of the GPU and of the NPU, None for one that executes no blocks of its own in this mode. ``cut`` None: any.

    Raises UsageError for costs that the mode needs and nobody has measured.
    """
    one_engine = mode in ("npu", "gpu") or cut == 0
    gpu = npu = None
    if mode == "hetero-tensor":
        if costs.tensor_block_s is None:
            raise UsageError(
                "the rate table has no time of a block whose linears both engines share",
                fix="measure the GEMMs of a block, or leave mode hetero-tensor out",
            )
        return None, StageSums(_sums(costs.tensor_block_s), _sums(costs.tensor_block_s))
    if mode != "gpu":
        npu = _engine_sums(costs.npu, "npu", alone_only=one_engine)
    if mode != "npu" and cut != 0:
        gpu = _engine_sums(costs.gpu, "gpu", alone_only=one_engine)
    return gpu, npu


def _engine_sums(costs: EngineCosts, engine: str, *, alone_only: bool) -> StageSums:
    if alone_only:
        sums = _sums(costs.when_alone(engine))
        return StageSums(sums, sums)
    shared = _sums(costs.when_shared(engine))
    return StageSums(shared if costs.solo_s is None else _sums(costs.solo_s), shared)


def _sums(seconds: Sequence[float]) -> list[float]:
    return list(accumulate(seconds, initial=0.0))
