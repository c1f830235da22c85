"""What stands in a rate table: numbers in seconds and watts, each with the sentence that it comes from.

Seconds are plain numbers; the unit stands in the key. What nobody has measured is left out.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Engine = Literal["gpu", "npu"]
Source = Annotated[str, Field(min_length=10)]
"""Who says so: a sentence with its place, or how, where and when it was measured."""
Positive = Annotated[float, Field(gt=0, le=1e9, strict=True)]
NotNegative = Annotated[float, Field(ge=0, le=1e9, strict=True)]
Size = Annotated[int, Field(ge=1, le=1 << 31, strict=True)]
Few = Annotated[int, Field(ge=1, le=1000, strict=True)]
"""Steps, or blocks of one: what a plan holds a number for each of, their product."""

FORMS = ("value", "per_block", "per_step", "per_execution")


class Fields(BaseModel):
    """Strict: keys that it does not know are refused, numbers are finite and not texts."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Rate(Fields):
    """A number above 0 and who says so."""

    value: Positive
    source: Source


class Duration(Fields):
    """Seconds, or 0 where there is nothing to do, and who says so."""

    value: NotNegative
    source: Source


class BlockRate(Fields):
    """Seconds of a block in one of four forms: ``value`` of every block; ``per_block``, one for each block of a step;
    ``per_step``, one for each step: the seconds of one block in it; ``per_execution``, one for each execution."""

    value: Positive | None = None
    per_block: Annotated[tuple[Positive, ...], Field(strict=False)] | None = None
    per_step: Annotated[tuple[Positive, ...], Field(strict=False)] | None = None
    per_execution: Annotated[tuple[Positive, ...], Field(strict=False)] | None = None
    source: Source

    @model_validator(mode="after")
    def _one_form(self) -> BlockRate:
        given = [form for form in FORMS if getattr(self, form) is not None]
        if len(given) != 1:
            raise ValueError(f"one of {', '.join(FORMS)}, not {' and '.join(given) or 'none'}")
        return self

    @property
    def is_uniform(self) -> bool:
        """Whether every execution takes the same."""
        return self.value is not None

    def wrong_length(self, steps: int, layers: int) -> str:
        """What is wrong with the number of values for a trajectory of these sizes; ``""``: nothing."""
        due = {"per_block": layers, "per_step": steps, "per_execution": steps * layers}
        for form, length in due.items():
            values = getattr(self, form)
            if values is not None and len(values) != length:
                return f"{form} has {len(values)} values, not {length}"
        return ""

    def expanded(self, steps: int, layers: int) -> tuple[float, ...]:
        """Seconds of every execution, in order."""
        if self.per_execution is not None:
            return self.per_execution
        if self.per_block is not None:
            return self.per_block * steps
        if self.per_step is not None:
            return tuple(seconds for seconds in self.per_step for _ in range(layers))
        assert self.value is not None  # noqa: S101  # _one_form
        return (self.value,) * (steps * layers)


class EngineRates(Fields):
    """One engine's blocks: ``solo_block_s`` while the other is idle, ``co_run_block_s`` while both work."""

    solo_block_s: BlockRate | None = None
    co_run_block_s: BlockRate | None = None


class DecodeRates(Fields):
    """Decoding one video on the NPU: while the GPU is idle, and while it works on the next video."""

    solo_s: Duration | None = None
    co_run_s: Duration | None = None


class Powers(Fields):
    """Watts of the whole device while both engines wait (``idle``), and what an engine adds to them while it works."""

    idle: Rate | None = None
    gpu: Rate | None = None
    npu: Rate | None = None


class Gemm(Fields):
    """``seconds`` of one GEMM on one engine: ``tokens`` (M) rows, ``in_features`` (K), ``out_features`` (N)."""

    name: Annotated[str, Field(min_length=1)]
    tokens: Size
    in_features: Size
    out_features: Size
    engine: Engine
    seconds: Positive
    source: Source


class Idle(Fields):
    """Seconds for which ``engine`` waits in each period of a stream that is cut at ``cut``."""

    engine: Engine
    cut: Annotated[int, Field(ge=0)]
    seconds: NotNegative
    source: Source


class Reported(Fields):
    """A figure of the source that is no rate, to compare plans with. ``is_input``: a rate of this table was computed
    from it, so that a plan which agrees with it has predicted nothing."""

    name: Annotated[str, Field(pattern="^[a-z0-9_]+$")]
    value: float
    is_input: bool = False
    source: Source
