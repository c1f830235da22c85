"""The cut of a device of which only idle times are known: how long engines wait at two cuts.

With equal blocks the NPU's stage is longer than the GPU's by N·L·T_N + T_V − k·(T_G + T_N) seconds at cut k. Two cuts
give both sums, and with them the waiting at every cut and nearly always the best one; they don't give the period,
because T_G, T_N and T_V stay unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdc.errors import UsageError
from hvdc.plan.placement import legal_range
from hvdc.plan.rate_fields import Idle


@dataclass(frozen=True)
class Balance:
    """``both_blocks_s``: T_G + T_N; ``npu_whole_s``: N·L·T_N + T_V, the NPU's stage if it executes all blocks."""

    executions: int
    both_blocks_s: float
    npu_whole_s: float

    def changed(self, both: float = 1.0, npu: float = 1.0) -> Balance:
        """With a sum multiplied by a factor."""
        return Balance(self.executions, self.both_blocks_s * both, self.npu_whole_s * npu)

    def npu_longer_s(self, cut: int) -> float:
        """By how many seconds the NPU's stage is longer; the GPU waits so long. Below 0: the NPU waits."""
        return self.npu_whole_s - cut * self.both_blocks_s

    @property
    def point(self) -> float:
        """Where stages would be equal, in blocks."""
        return self.npu_whole_s / self.both_blocks_s

    @property
    def gpu_block_range_s(self) -> tuple[float, float]:
        """T_G is between these, because neither T_N nor T_V is below 0."""
        return max(self.both_blocks_s - self.npu_whole_s / self.executions, 0.0), self.both_blocks_s

    def period_range_s(self, cut: int) -> tuple[float, float]:
        """The period of a cut is between these."""
        waits_s = max(self.npu_longer_s(cut), 0.0)
        least_s, most_s = self.gpu_block_range_s
        return cut * least_s + waits_s, cut * most_s + waits_s

    def best_cut(self, first: int = 0, last: int | None = None) -> int:
        """The cut in [first, last] with the shortest period.

        Raises UsageError for a range that is none, and where the idle times leave two cuts to choose from.
        """
        first, last = legal_range(self.executions, first, last)
        below = int(self.point)
        if below >= last:
            return last
        if below < first:
            return first
        # The cut above is better where T_G is less than what the GPU waits at the one below.
        waits_s, least_s = self.npu_longer_s(below), self.gpu_block_range_s[0]
        if waits_s > least_s:
            raise UsageError(
                f"these idle times do not decide between the cuts {below} and {below + 1}",
                expected=f"to know whether a block on the GPU takes less than {waits_s:.3f} s",
                fix="measure the co-run rate of the GPU",
            )
        return below


def balance_of(idle: Sequence[Idle], executions: int) -> Balance:
    """What idle times at two cuts give. Raises UsageError where they contradict that the GPU's stage grows with the
    cut and the NPU's shrinks."""
    (one, one_s), (other, other_s) = ((i.cut, i.seconds if i.engine == "gpu" else -i.seconds) for i in idle)
    both_s = (one_s - other_s) / (other - one)
    balance = Balance(executions, both_s, one_s + one * both_s)
    if both_s <= 0 or balance.npu_whole_s <= 0:
        raise UsageError(
            "these idle times contradict each other",
            expected="the GPU to wait less, or the NPU more, the later the cut is",
            found=", ".join(f"at cut {i.cut} the {i.engine.upper()} waits {i.seconds:g} s" for i in idle),
            fix="measure them again",
        )
    return balance
