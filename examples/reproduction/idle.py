"""What idle times at two cuts tell of the rates, and what they do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hvdc.plan.cut import Rates, best_cut


@dataclass(frozen=True)
class IdleLine:
    """What the GPU waits for at cut k is N·L·T_N + T_V - k·(T_G + T_N); what the NPU waits for is as much with the "
    "other
    sign. Idle times at two cuts give the line, ``npu_alone_s - k·both_s``; T_G, T_N and T_V remain unknown."""

    executions: int
    both_s: float
    npu_alone_s: float

    @staticmethod
    def through(gpu_waits_s: Mapping[int, float], executions: int) -> IdleLine:
        """From two cuts; seconds are negative where the NPU waits."""
        (low, early), (high, late) = sorted(gpu_waits_s.items())
        both_s = (early - late) / (high - low)
        return IdleLine(executions, both_s, early + low * both_s)

    @property
    def balance(self) -> float:
        """The cut at which neither engine waits; no whole number."""
        return self.npu_alone_s / self.both_s

    def gpu_waits_s(self, cut: int) -> float:
        """Negative where the NPU waits."""
        return self.npu_alone_s - cut * self.both_s

    def rates(self, decode_s: float) -> Rates:
        """The rates on this line with which a decode takes so long."""
        npu_s = (self.npu_alone_s - decode_s) / self.executions
        return Rates(self.both_s - npu_s, npu_s, decode_s)

    def cut(self, decodes_s: tuple[float, ...]) -> int:
        """The best cut. Raises ValueError unless it is the same for every length of a decode."""
        cuts = {best_cut(self.rates(decode_s), self.executions) for decode_s in decodes_s}
        if len(cuts) != 1:
            raise ValueError(f"the cut depends on the decoder: {sorted(cuts)}")
        return cuts.pop()
