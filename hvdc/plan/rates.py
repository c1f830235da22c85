"""Rate tables: how long a block and a decode take on each engine of a device, each value with its source.

A table is a TOML file. It holds for one target, one model and one clip length, and for the conditions that it names:
a block takes another time when the other engine works too, or when the device is hot.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hvdc.errors import UsageError
from hvdc.plan.cut import Rates
from hvdc.targets import load_target


class Rate(BaseModel):
    """Seconds taken from a device, and who says so."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    value: Annotated[float, Field(gt=0)]
    source: Annotated[str, Field(min_length=10)]


class DecodeRate(Rate):
    """0 where nothing is decoded."""

    value: Annotated[float, Field(ge=0)]


class RateTable(BaseModel):
    """What `load_rates` reads. ``tokens`` are those of a step."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(min_length=1)]
    target: str
    conditions: Annotated[str, Field(min_length=10)]
    frames: Annotated[int, Field(ge=1)]
    tokens: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)]
    layers: Annotated[int, Field(ge=1)]
    gpu_block_s: Rate
    npu_block_s: Rate
    decode_s: DecodeRate

    @property
    def executions(self) -> int:
        """N · L."""
        return self.steps * self.layers

    @property
    def rates(self) -> Rates:
        """The numbers alone."""
        return Rates(self.gpu_block_s.value, self.npu_block_s.value, self.decode_s.value)


def load_rates(path: Path) -> RateTable:
    """The table in a TOML file. Raises UsageError for one that cannot be read, is not valid or is of no target."""
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError("the rate table cannot be read", where=str(path), found=str(error)) from error
    try:
        table = RateTable.model_validate(values)
    except ValidationError as error:
        raise _as_usage_error(path, error) from error
    load_target(table.target)
    return table


def require_fitting(table: RateTable, *, tokens: int, steps: int, layers: int) -> None:
    """Raises UsageError unless a table was measured on a trajectory of these sizes: a block's time follows from
    its tokens, and the cut counts blocks."""
    measured, asked = (table.tokens, table.steps, table.layers), (tokens, steps, layers)
    if measured != asked:
        raise UsageError(
            f"the rate table {table.name!r} was measured on another model or clip length",
            expected="{} tokens, {} steps of {} blocks".format(*asked),
            found="{} tokens, {} steps of {} blocks".format(*measured),
            fix="measure a table for this one, or give the cut as a number",
        )


def _as_usage_error(path: Path, error: ValidationError) -> UsageError:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return UsageError(f"a rate table has no key {key!r}", where=str(path), fix="check the spelling")
    if first["type"] == "missing":
        return UsageError(f"the rate table lacks {key!r}", where=str(path))
    return UsageError(
        f"{key!r} of the rate table is not valid: {first['msg']}", where=str(path), found=repr(first.get("input"))
    )
