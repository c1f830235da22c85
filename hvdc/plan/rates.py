"""Rate tables: how long a block and a decode take on each engine of a device, each value with its source.

A table is a TOML file. It holds for one target, one model and one clip length, and for the conditions that it names:
a block takes another time when the other engine works too, or when the device is hot. ``examples/rates`` has some;
`rates_toml` writes what was measured.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from hvdc.errors import UsageError
from hvdc.plan.costs import Costs, EngineCosts, mean_rates
from hvdc.plan.cut import Rates
from hvdc.plan.rate_fields import (
    BlockRate,
    DecodeRates,
    Duration,
    EngineRates,
    Few,
    Fields,
    Gemm,
    Idle,
    Powers,
    Reported,
    Sharing,
    Size,
)
from hvdc.plan.toml_file import read_toml

UNLIKELY = 100.0
"""Rates of one thing that differ by more are in different units, or of different things."""
EXAMPLES = "see examples/rates for what one looks like"


class RateTable(Fields):
    """What `load_rates` reads. ``tokens`` are those of a step; ``semantic_steps`` is κ: the steps before the expert
    switch. ``target`` may be one that `hvdc probe` described. ``thermal`` is how the device was cooled and powered. A
    key that is absent is not known."""

    name: Annotated[str, Field(min_length=1)]
    device: Annotated[str, Field(min_length=1)]
    target: Annotated[str, Field(pattern=r"^[a-z0-9_-]+$")]
    date: datetime.date | None = None
    thermal: Annotated[str, Field(min_length=4)]
    frames: Size
    tokens: Size
    steps: Few
    layers: Few
    semantic_steps: Annotated[int, Field(ge=0)] | None = None
    gpu: EngineRates = EngineRates()
    npu: EngineRates = EngineRates()
    decode: DecodeRates = DecodeRates()
    handoff_s: Duration | None = None
    tensor_block_s: BlockRate | None = None
    power_w: Powers = Powers()
    gemm: Annotated[tuple[Gemm, ...], Field(strict=False)] = ()
    exchange: Sharing | None = None
    idle: Annotated[tuple[Idle, ...], Field(strict=False)] = ()
    reported: Annotated[tuple[Reported, ...], Field(strict=False)] = ()

    @property
    def executions(self) -> int:
        """N · L."""
        return self.steps * self.layers

    @model_validator(mode="after")
    def _sizes_agree(self) -> RateTable:
        for key, rate in self.block_rates():
            if wrong := rate.wrong_length(self.steps, self.layers):
                raise ValueError(f"{key}.{wrong}, for {self.steps} steps of {self.layers} blocks")
        if self.semantic_steps is not None and self.semantic_steps > self.steps:
            raise ValueError(f"semantic_steps is {self.semantic_steps}, of {self.steps} steps")
        cuts = [idle.cut for idle in self.idle]
        if cuts and (len(cuts) != 2 or len(set(cuts)) != 2 or max(cuts) > self.executions):
            raise ValueError(f"idle is given at two different cuts of 0 to {self.executions}, not at {cuts}")
        names = [figure.name for figure in self.reported]
        if len(set(names)) != len(names):
            raise ValueError(f"reported has {next(n for n in names if names.count(n) > 1)!r} twice")
        return self

    @model_validator(mode="after")
    def _one_unit(self) -> RateTable:
        """The other engine makes a block or a decode somewhat slower or faster, milliseconds a thousand times."""
        pairs: list[tuple[str, str, float, float]] = []
        for name, engine in (("gpu", self.gpu), ("npu", self.npu)):
            if engine.solo_block_s is not None and engine.co_run_block_s is not None:
                solo_s = fmean(engine.solo_block_s.expanded(self.steps, self.layers))
                co_run_s = fmean(engine.co_run_block_s.expanded(self.steps, self.layers))
                pairs.append((f"{name}.solo_block_s", f"{name}.co_run_block_s", solo_s, co_run_s))
        if self.decode.solo_s is not None and self.decode.co_run_s is not None:
            pairs.append(("decode.solo_s", "decode.co_run_s", self.decode.solo_s.value, self.decode.co_run_s.value))
        for solo, co_run, solo_s, co_run_s in pairs:
            if min(solo_s, co_run_s) > 0 and max(solo_s, co_run_s) / min(solo_s, co_run_s) > UNLIKELY:
                raise ValueError(
                    f"{solo} is {solo_s:g} and {co_run} {co_run_s:g}: one of them is not in seconds, as both should be"
                )
        return self

    def block_rates(self) -> Iterator[tuple[str, BlockRate]]:
        """Those that are known, with their keys."""
        for engine in ("gpu", "npu"):
            for kind in ("solo_block_s", "co_run_block_s"):
                rate = getattr(getattr(self, engine), kind)
                if rate is not None:
                    yield f"{engine}.{kind}", rate
        if self.tensor_block_s is not None:
            yield "tensor_block_s", self.tensor_block_s

    @property
    def is_uniform(self) -> bool:
        """Whether every block of an engine takes the same while both work."""
        rates = (self.gpu.co_run_block_s, self.npu.co_run_block_s)
        return all(rate is None or rate.is_uniform for rate in rates)

    @property
    def has_co_run_rates(self) -> bool:
        """Whether a cut can be placed from it."""
        return not self._missing_co_run_rates()

    def require_co_run_rates(self) -> None:
        """Raises UsageError, which names them, where rates are not known that place a cut."""
        if missing := self._missing_co_run_rates():
            raise UsageError(
                f"the rate table {self.name!r} does not place a cut: it has no {', '.join(missing)}",
                fix="measure what blocks and a decode take while both engines work"
                + (", or give the cut that `hvdc plan cut` finds from its idle times" if self.idle else ""),
            )

    def _missing_co_run_rates(self) -> list[str]:
        rates = {
            "gpu.co_run_block_s": self.gpu.co_run_block_s,
            "npu.co_run_block_s": self.npu.co_run_block_s,
            "decode.co_run_s": self.decode.co_run_s,
        }
        return [key for key, rate in rates.items() if rate is None]

    @property
    def has_solo_rates(self) -> bool:
        """Whether it says what a single video takes on an idle device."""
        return None not in (self.gpu.solo_block_s, self.npu.solo_block_s, self.decode.solo_s)

    def costs(self) -> Costs:
        """What a video costs. A handoff that is not known counts as 0 s.

        Raises UsageError where the decode while both engines work is not known.
        """
        return Costs(
            self.executions,
            gpu=self._engine(self.gpu),
            npu=self._engine(self.npu),
            decode_s=self._decode_s(),
            handoff_s=0.0 if self.handoff_s is None else self.handoff_s.value,
            tensor_block_s=self._expanded(self.tensor_block_s),
            decode_solo_s=None if self.decode.solo_s is None else self.decode.solo_s.value,
        )

    @property
    def rates(self) -> Rates:
        """The numbers that place a cut; means, where blocks differ. Raises UsageError where one is not known."""
        self.require_co_run_rates()
        return mean_rates(self.costs())

    def _engine(self, rates: EngineRates) -> EngineCosts:
        return EngineCosts(self._expanded(rates.solo_block_s), self._expanded(rates.co_run_block_s))

    def _expanded(self, rate: BlockRate | None) -> tuple[float, ...] | None:
        return None if rate is None else rate.expanded(self.steps, self.layers)

    def _decode_s(self) -> float:
        if self.decode.co_run_s is None:
            raise UsageError(
                f"the rate table {self.name!r} has no co-run time of the decoder",
                expected="[decode.co_run_s], 0 where nothing is decoded",
                fix="measure a decode while the GPU works",
            )
        return self.decode.co_run_s.value


def load_rates(path: Path) -> RateTable:
    """The table in a TOML file. Raises UsageError for one that cannot be read or is not valid."""
    values = read_toml(path, "the rate table", fix=EXAMPLES)
    try:
        return RateTable.model_validate(values)
    except ValidationError as error:
        raise _as_usage_error(path, error) from error


def rates_toml(table: RateTable) -> str:
    """The text of a table's file; `load_rates` reads the same table from it."""
    import tomli_w  # here: only what measures writes tables

    values = table.model_dump(exclude_none=True, exclude_defaults=True)
    return tomli_w.dumps(values, multiline_strings=False)


def require_fitting(
    table: RateTable,
    *,
    tokens: int,
    steps: int,
    layers: int,
    frames: int | None = None,
    semantic_steps: int | None = None,
) -> None:
    """Raises UsageError unless a table was measured on a trajectory of these sizes: a block's time follows from
    its tokens, and the cut counts blocks. What is None is not compared."""
    measured: tuple[int, ...] = (table.tokens, table.steps, table.layers)
    asked: tuple[int, ...] = (tokens, steps, layers)
    shape, fix = "{} tokens, {} steps of {} blocks", "measure a table for this one; `hvdc run --cut` takes a number too"
    if frames is not None and table.frames != frames:
        measured, asked = (table.frames, *measured), (frames, *asked)
        shape = "{} frames, " + shape
    if measured != asked:
        raise UsageError(
            f"the rate table {table.name!r} was measured on another model or clip length",
            expected=shape.format(*asked),
            found=shape.format(*measured),
            fix=fix,
        )
    if None not in (semantic_steps, table.semantic_steps) and semantic_steps != table.semantic_steps:
        raise UsageError(
            f"the rate table {table.name!r} was measured with another schedule",
            expected=f"{semantic_steps} steps by the semantic expert",
            found=f"{table.semantic_steps}",
            fix=fix,
        )


def _as_usage_error(path: Path, error: ValidationError) -> UsageError:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return UsageError(f"a rate table has no key {key!r}", where=str(path), fix="check the spelling")
    if first["type"] == "missing":
        return UsageError(f"the rate table lacks {key!r}", where=str(path), fix=EXAMPLES)
    if not key:  # of the table as a whole: the sentence names what disagrees
        return UsageError(f"the rate table is not valid: {first['msg'].removeprefix('Value error, ')}", where=str(path))
    unit = "watts" if key.startswith("power_w") else "" if key.startswith("reported") else "seconds"
    number = first["type"] == "float_type" and unit != ""
    return UsageError(
        f"{key!r} of the rate table is not valid: {first['msg'].removeprefix('Value error, ')}",
        where=str(path),
        expected=f"{unit}, as a number without quotes and unit: 13.27" if number else "",
        found=repr(first.get("input")),
    )
