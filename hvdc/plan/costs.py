"""What one video costs on a device: the numbers that every plan is made of, without names, units or sources.

All in seconds. A trajectory executes ``executions`` = steps · layers blocks, numbered in the order of execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdc.errors import UsageError


@dataclass(frozen=True)
class EngineCosts:
    """Seconds per block of one engine: ``solo_s`` while the other engine is idle, ``co_run_s`` while both work. Each
    has one value per execution, or is None where nobody has measured it."""

    solo_s: tuple[float, ...] | None
    co_run_s: tuple[float, ...] | None

    def when_alone(self, engine: str) -> tuple[float, ...]:
        """Seconds per block where this engine works alone. Raises UsageError where that is not known."""
        return _known(self.solo_s, engine, "solo")

    def when_shared(self, engine: str) -> tuple[float, ...]:
        """Seconds per block where both engines work. Raises UsageError where that is not known."""
        return _known(self.co_run_s, engine, "co-run")


@dataclass(frozen=True)
class Costs:
    """``decode_s``: decoding one video on the NPU while the GPU works; ``handoff_s``: from the GPU's last block to the
    NPU's first one.
    ``tensor_block_s``: a block whose linears both engines share, or None where no GEMM was measured.
    ``decode_solo_s``: decoding while the GPU is idle, or None where nobody has measured it."""

    executions: int
    gpu: EngineCosts
    npu: EngineCosts
    decode_s: float
    handoff_s: float = 0.0
    tensor_block_s: tuple[float, ...] | None = None
    decode_solo_s: float | None = None

    def decode_when_alone(self) -> float:
        """Seconds of a decode where the GPU is idle. Raises UsageError where that is not known."""
        if self.decode_solo_s is None:
            raise UsageError(
                "the rate table has no solo time of the decoder", fix="measure a decode while the GPU is idle"
            )
        return self.decode_solo_s


def uniform(value_s: float, executions: int) -> tuple[float, ...]:
    """The same seconds for every execution."""
    return (value_s,) * executions


def _known(values: Sequence[float] | None, engine: str, kind: str) -> tuple[float, ...]:
    if values is None:
        raise UsageError(
            f"the rate table has no {kind} rate of the {engine}",
            fix=f"measure the {engine}'s blocks {'alone' if kind == 'solo' else 'while both engines work'}",
        )
    return tuple(values)
