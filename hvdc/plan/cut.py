"""Where to cut a trajectory. ``device_runtime/core/src/policy.c`` is the same arithmetic, bit for bit.

Source: the paper, section 4.3, equation 4. The GPU executes blocks [0, k) of a video and the NPU the rest and the
decoder; in a stream both work at once, so a video is finished every

    period(k) = max(k · T_G, (executions − k) · T_N + T_V)          seconds

which is smallest at one of the two whole numbers beside (executions · T_N + T_V) / (T_G + T_N), where both are equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hvdc.errors import UsageError


@dataclass(frozen=True)
class Rates:
    """Seconds, measured while both engines work: a block on the GPU (T_G), one on the NPU (T_N), both above 0, and
    decoding one video on the NPU (T_V), 0 where nothing is decoded. All finite."""

    gpu_block_s: float
    npu_block_s: float
    decode_s: float


def gpu_stage_s(rates: Rates, cut: int) -> float:
    """Seconds of the GPU per video."""
    return cut * rates.gpu_block_s


def npu_stage_s(rates: Rates, executions: int, cut: int) -> float:
    """Seconds of the NPU per video."""
    return (executions - cut) * rates.npu_block_s + rates.decode_s


def period_s(rates: Rates, executions: int, cut: int) -> float:
    """Seconds between finished videos of a stream, for ``0 <= cut <= executions``."""
    return max(gpu_stage_s(rates, cut), npu_stage_s(rates, executions, cut))


def best_cut(rates: Rates, executions: int) -> int:
    """The cut in [0, executions] with the shortest period; of two that are equally good that with the smaller latency
    of a video (T_G against T_N decides), and of those the smaller one.

    Raises UsageError for rates that are not positive numbers.
    """
    durations = (rates.gpu_block_s, rates.npu_block_s, rates.decode_s)
    if not (all(math.isfinite(d) for d in durations) and min(durations[:2]) > 0 and rates.decode_s >= 0):
        raise UsageError(
            "these rates do not place a cut",
            expected="blocks of more than 0 seconds, and a decode of 0 seconds or more",
            found=f"{rates.gpu_block_s} s on the GPU, {rates.npu_block_s} s on the NPU, {rates.decode_s} s per decode",
            fix="measure them again",
        )
    npu_s, both_s = npu_stage_s(rates, executions, 0), rates.gpu_block_s + rates.npu_block_s
    if not (math.isfinite(npu_s) and math.isfinite(both_s)):
        raise UsageError("these rates are so large that their sum is infinite", fix="measure them again")
    balance = npu_s / both_s
    below = int(balance) if balance < executions else executions
    above = min(below + 1, executions)
    below_s, above_s = period_s(rates, executions, below), period_s(rates, executions, above)
    if above_s == below_s:
        return above if rates.gpu_block_s < rates.npu_block_s else below
    return above if above_s < below_s else below
