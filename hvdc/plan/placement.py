"""Where to cut a trajectory whose blocks differ in what they take: `hvdc.plan.cut` with prefix sums.

The GPU's stage of a cut at k is the sum of its first k blocks, the NPU's that of its blocks from k on and the decode.
The one grows with k and the other shrinks, so the shortest period lies at one of the two cuts beside the point at which
they meet. Where all blocks are equal the stages are those of `hvdc.plan.cut`, bit for bit.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from hvdc.errors import UsageError
from hvdc.plan.costs import Costs, EngineCosts

HOUR_S = 3600.0


@dataclass(frozen=True)
class Stages:
    """What a cut gives, in seconds per video of a stream: the NPU's stage contains the decode."""

    cut: int
    gpu_s: float
    npu_s: float
    handoff_s: float

    @property
    def period_s(self) -> float:
        """Between finished videos: the longer stage. A handoff overlaps with the next video."""
        return max(self.gpu_s, self.npu_s)

    @property
    def videos_per_hour(self) -> float:
        return HOUR_S / self.period_s

    @property
    def gpu_idle_s(self) -> float:
        return self.period_s - self.gpu_s

    @property
    def npu_idle_s(self) -> float:
        return self.period_s - self.npu_s

    @property
    def latency_s(self) -> float:
        """Of one video that waits for no other: GPU, handoff, NPU, decode."""
        return self.gpu_s + self.handoff_s + self.npu_s


class Trajectory:
    """A video's block executions with what they cost while both engines work.

    Raises UsageError where a co-run rate is not known, or costs are not positive numbers with finite sums.
    """

    def __init__(self, costs: Costs) -> None:
        gpu, npu = costs.gpu.when_shared("gpu"), costs.npu.when_shared("npu")
        _require_durations("GPU", gpu, costs.executions)
        _require_durations("NPU", npu, costs.executions)
        for name, value in (("decode", costs.decode_s), ("handoff", costs.handoff_s)):
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(
                    f"a {name} cannot take {value} s", expected="0 seconds or more", fix="measure it again"
                )
        self.executions = costs.executions
        self._handoff_s = costs.handoff_s
        self._decode_s = costs.decode_s
        self._gpu_until = _sums(gpu)
        self._npu_from = _sums(npu[::-1])[::-1]
        if not math.isfinite(self._gpu_until[-1] + self._npu_from[0] + costs.decode_s + costs.handoff_s):
            raise UsageError("these rates are so large that their sum is infinite", fix="measure them again")

    @classmethod
    def alone(cls, costs: Costs) -> Trajectory:
        """The same of a single video on an idle device, where only one engine works at a time: its `Stages.latency_s`
        is what it takes. Raises UsageError also where a solo rate is not known."""
        gpu, npu = costs.gpu.when_alone("gpu"), costs.npu.when_alone("npu")
        return cls(
            replace(costs, gpu=EngineCosts(gpu, gpu), npu=EngineCosts(npu, npu), decode_s=costs.decode_when_alone())
        )

    def stages(self, cut: int) -> Stages:
        """What ``cut``, in [0, executions], gives."""
        if not 0 <= cut <= self.executions:
            raise UsageError("there is no such cut", expected=f"0 to {self.executions}", found=str(cut))
        handoff_s = self._handoff_s if cut else 0.0  # at 0 the NPU does all
        return Stages(cut, self._gpu_until[cut], self._npu_from[cut] + self._decode_s, handoff_s)

    def best(self, first: int = 0, last: int | None = None) -> Stages:
        """The cut in [first, last] with the shortest period; of equally good ones that with the least latency, of
        those the smallest. Raises UsageError for an empty range or one beyond the trajectory."""
        first, last = legal_range(self.executions, first, last)
        cuts = range(first, last + 1)
        crossing = first + bisect_left(cuts, True, key=self._is_gpu_longer)
        below, above = max(crossing - 1, first), min(crossing, last)
        shortest_s = min(self.stages(below).period_s, self.stages(above).period_s)
        tied = [*self._while_tied(below, first, -1, shortest_s), *self._while_tied(above, last, 1, shortest_s)]
        return min(tied, key=lambda stages: (stages.latency_s, stages.cut))

    def _is_gpu_longer(self, cut: int) -> bool:
        stages = self.stages(cut)
        return stages.gpu_s >= stages.npu_s

    def _while_tied(self, start: int, end: int, by: int, period_s: float) -> list[Stages]:
        """Cuts from ``start`` on that have this period. They lie side by side: the period falls, then grows."""
        tied = []
        for cut in range(start, end + by, by):
            stages = self.stages(cut)
            if stages.period_s != period_s:
                break
            tied.append(stages)
        return tied


def legal_range(executions: int, first: int = 0, last: int | None = None) -> tuple[int, int]:
    """Both ends of a range of cuts. Raises UsageError for an empty one or one beyond the trajectory."""
    last = executions if last is None else last
    if not 0 <= first <= last <= executions:
        raise UsageError(
            "there is no such range of cuts",
            expected=f"0 to {executions}, the least cut first",
            found=f"{first} to {last}",
        )
    return first, last


@dataclass(frozen=True)
class Changed:
    """One rate changed by a factor: the cut that is then best, and what the old cut then gives."""

    rate: str
    factor: float
    best: Stages
    kept: Stages


def sensitivity(costs: Costs, cut: int, change: float, first: int = 0, last: int | None = None) -> tuple[Changed, ...]:
    """Each rate lower and higher by ``change`` (0.05: 5 %), the others as they are. Without those that are 0."""
    made = []
    for rate, scaled in SCALED.items():
        if (rate, 0.0) in (("decode", costs.decode_s), ("handoff", costs.handoff_s)):
            continue
        for factor in (1 - change, 1 + change):
            trajectory = Trajectory(scaled(costs, factor))
            made.append(Changed(rate, factor, trajectory.best(first, last), trajectory.stages(cut)))
    return tuple(made)


def _times(engine: EngineCosts, factor: float) -> EngineCosts:
    return replace(engine, co_run_s=None if engine.co_run_s is None else tuple(s * factor for s in engine.co_run_s))


SCALED: dict[str, Callable[[Costs, float], Costs]] = {
    "gpu": lambda costs, factor: replace(costs, gpu=_times(costs.gpu, factor)),
    "npu": lambda costs, factor: replace(costs, npu=_times(costs.npu, factor)),
    "decode": lambda costs, factor: replace(costs, decode_s=costs.decode_s * factor),
    "handoff": lambda costs, factor: replace(costs, handoff_s=costs.handoff_s * factor),
}
"""Rate that places a cut -> the costs with it changed by a factor."""


def _sums(values: Sequence[float]) -> tuple[float, ...]:
    """Sums of the first 0, 1, … values."""
    if values and min(values) == max(values):
        return tuple(k * values[0] for k in range(len(values) + 1))  # as `hvdc.plan.cut` multiplies
    return tuple(accumulate(values, initial=0.0))


def _require_durations(engine: str, values: Sequence[float], executions: int) -> None:
    if len(values) != executions:
        raise UsageError(
            f"the {engine}'s rates are of another trajectory", expected=f"{executions} blocks", found=f"{len(values)}"
        )
    wrong = next((value for value in values if not (math.isfinite(value) and value > 0)), None)
    if wrong is not None:
        raise UsageError(
            f"a block on the {engine} cannot take {wrong} s", expected="more than 0 seconds", fix="measure it again"
        )
