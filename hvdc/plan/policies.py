"""Where to cut each video of a stream, from rates that the stream itself has shown.

``device_runtime/core/src/policy.c`` is the arithmetic of `observed`, `meeting_cut` and `cut_in_time`, and
``stream_policy.c`` beside it are the classes but `OnDemand`, bit for bit.

The paper fixes one cut at the start ("a runner could recompute it between videos from the rates it has just observed",
section 8). These do that, for a GPU and an NPU whose rates drift, for a queue of videos, and for deadlines:

- ``replan`` takes the best cut of equation 4 for the rates as observed;
- ``adaptive`` the one with which the GPU is done with a video when the NPU is free for it: in a full stream that is the
  same cut, but the first video does not make the NPU wait, and what one video took longer the next one makes up for;
- ``on-demand`` knows no rates: the GPU works on a video until the NPU has nothing to do, so that neither ever waits;
- ``deadline`` is ``adaptive``, with fewer blocks on the GPU, and begun later, where a video would else be late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hvdc.errors import UsageError
from hvdc.plan.costs import Costs, mean_rates
from hvdc.plan.cut import Rates, best_cut, npu_stage_s
from hvdc.plan.stream import Decision, InFlight

WEIGHT = 0.25
"""Of a new observation against all before it: of those that were tried (1, 0.5, 0.25) the one that loses least where a
device does not drift, and as good as the others where it does."""


@dataclass(frozen=True)
class Ready:
    """Seconds from now until each engine is free for the next video, 0 or more, and of a handoff."""

    gpu_s: float
    npu_s: float
    handoff_s: float


def observed(before_s: float, seconds: float, count: int, weight: float) -> float:
    """A rate, moved by ``weight`` (0 to 1) towards what ``count`` pieces of work took; not moved by none."""
    if count == 0:
        return before_s
    step = seconds / count - before_s
    moved = weight * step
    return before_s + moved


def meeting_cut(rates: Rates, executions: int, best: int, ready: Ready) -> int:
    """The cut, nearest to that with which the GPU hands a video over just when the NPU is free for it.

    What one video is late or early by, the next one is T_N / T_G times as much, with the other sign. Where that is more
    than a half, the cut goes only so far from the ``best`` one of these rates that it is a half.
    """
    left_s = ready.npu_s - ready.gpu_s
    left_s = left_s - ready.handoff_s
    away = left_s / rates.gpu_block_s - float(best)
    damping = 0.5 * rates.gpu_block_s / rates.npu_block_s
    if damping < 1.0:
        away = damping * away
    cut = float(best) + away
    if not cut > 0.0:
        return 0
    return int(cut + 0.5) if cut < executions else executions


def cut_in_time(
    rates: Rates, executions: int, most: int, ready: Ready, allowed_s: float, *, from_start: bool
) -> tuple[int, float]:
    """The largest cut, ``most`` at most, with which a video is in time, and in how many seconds the GPU begins it.

    ``allowed_s`` counts from now, or, ``from_start``, from its first block: then the GPU begins it no earlier than it
    must to be done when the NPU is free. 0 s: as soon as it is free. ``most`` and 0 s if there is no such cut: a video
    that is late anyway delays no other.
    """
    for cut in range(most, -1, -1):
        prefix_s = cut * rates.gpu_block_s
        prefix_s = prefix_s + ready.handoff_s if cut > 0 else 0.0
        suffix_s = npu_stage_s(rates, executions, cut)
        handed_s = ready.gpu_s + prefix_s if cut > 0 else 0.0
        resumed_s = handed_s if handed_s > ready.npu_s else ready.npu_s
        taken_s = prefix_s + suffix_s if from_start else resumed_s + suffix_s
        if taken_s <= allowed_s:
            hold_s = ready.npu_s - prefix_s
            return cut, hold_s if from_start and cut > 0 and hold_s > ready.gpu_s else 0.0
    return most, 0.0


class Replan:
    """Policy ``replan``."""

    def __init__(self, costs: Costs, weight: float = WEIGHT) -> None:
        if not 0 < weight <= 1:
            raise UsageError("a new observation has a weight above 0, and at most 1", found=str(weight))
        self.rates, self.executions, self.weight = mean_rates(costs), costs.executions, weight
        self.handoff_s = costs.handoff_s

    def decide(self, now_s: float, arrival_s: float, in_flight: Sequence[InFlight]) -> Decision:
        return Decision(best_cut(self.rates, self.executions))

    def gpu_done(self, blocks: int, seconds: float) -> None:
        rate_s = observed(self.rates.gpu_block_s, seconds, blocks, self.weight)
        self.rates = replace(self.rates, gpu_block_s=rate_s)

    def npu_done(self, blocks: int, seconds: float, decode_s: float) -> None:
        rate_s = observed(self.rates.npu_block_s, seconds, blocks, self.weight)
        self.rates = replace(
            self.rates, npu_block_s=rate_s, decode_s=observed(self.rates.decode_s, decode_s, 1, self.weight)
        )


class Adaptive(Replan):
    """Policy ``adaptive``."""

    def decide(self, now_s: float, arrival_s: float, in_flight: Sequence[InFlight]) -> Decision:
        return Decision(self._meeting(self.ready(now_s, in_flight)))

    def _meeting(self, ready: Ready) -> int:
        best = best_cut(self.rates, self.executions)
        return meeting_cut(self.rates, self.executions, best, ready)

    def ready(self, now_s: float, in_flight: Sequence[InFlight]) -> Ready:
        """As far as the rates tell: what is in flight goes through the engines in order."""
        gpu_s = npu_s = now_s
        for video in in_flight:
            handed_s = now_s
            if video.cut > 0 and video.gpu_end_s is None:
                begin_s = gpu_s if video.gpu_start_s is None else video.gpu_start_s
                gpu_s = max(now_s, begin_s + video.cut * self.rates.gpu_block_s)
                handed_s = gpu_s + self.handoff_s
            start_s = max(npu_s, handed_s) if video.npu_start_s is None else video.npu_start_s
            npu_s = max(now_s, start_s + npu_stage_s(self.rates, self.executions, video.cut))
        return Ready(gpu_s - now_s, npu_s - now_s, self.handoff_s)


class OnDemand:
    """Policy ``on-demand``. It needs a GPU that can be told to stop after the block that it is in."""

    def __init__(self, executions: int) -> None:
        self.executions = executions

    def decide(self, now_s: float, arrival_s: float, in_flight: Sequence[InFlight]) -> Decision:
        return Decision(self.executions, until_npu_is_free=True) if in_flight else Decision(0)

    def gpu_done(self, blocks: int, seconds: float) -> None:
        pass

    def npu_done(self, blocks: int, seconds: float, decode_s: float) -> None:
        pass


class DeadlineAware(Adaptive):
    """Policy ``deadline``: ``deadline_s`` from a video's first block, or from its arrival. ``reserve`` is the share of
    it that is kept for what the rates do not tell."""

    def __init__(
        self, costs: Costs, deadline_s: float, *, from_start: bool, reserve: float = 0.05, weight: float = WEIGHT
    ) -> None:
        super().__init__(costs, weight)
        if not (deadline_s > 0 and 0 <= reserve < 1):
            raise UsageError("a deadline is above 0 s, and a reserve a share of it", found=f"{deadline_s}, {reserve}")
        self.allowed_s, self.from_start = deadline_s * (1 - reserve), from_start

    def decide(self, now_s: float, arrival_s: float, in_flight: Sequence[InFlight]) -> Decision:
        ready = self.ready(now_s, in_flight)
        allowed_s = self.allowed_s if self.from_start else arrival_s + self.allowed_s - now_s
        cut, begin_s = cut_in_time(
            self.rates, self.executions, self._meeting(ready), ready, allowed_s, from_start=self.from_start
        )
        return Decision(cut, now_s + begin_s)
