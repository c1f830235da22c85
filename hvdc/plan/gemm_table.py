"""Tables of GEMM times: what `hvdc.plan.tensor` solves from, each number with its source.

The times stand in a rate table, or in a table of their own where nothing else was measured. See examples/rates.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hvdc.errors import UsageError
from hvdc.plan.gemms import TILE, Gemm, GemmTime, Profile
from hvdc.plan.tensor import Engines, Exchange

Source = Annotated[str, Field(min_length=10)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class GemmEntry(_Model):
    """One ``[[gemm]]``: seconds of ``[tokens, in_features] x [in_features, out_features]`` on one engine."""

    name: Annotated[str, Field(min_length=1)]
    engine: Literal["gpu", "npu"]
    tokens: Size
    in_features: Size
    out_features: Size
    seconds: Seconds
    source: Source


class ExchangeEntry(_Model):
    """``[exchange]``: what it costs that two engines share a GEMM, and how they may. ``ratios``: GPU : NPU."""

    sync_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    copy_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    home: Literal["gpu", "npu"] = "npu"
    npu_standard_tokens: Annotated[list[Size], Field(min_length=1)] = [TILE]
    ratios: list[Annotated[list[Size], Field(min_length=2, max_length=2)]] = []
    source: Source

    @model_validator(mode="after")
    def _ascends(self) -> ExchangeEntry:
        if self.npu_standard_tokens != sorted(set(self.npu_standard_tokens)):
            raise ValueError("npu_standard_tokens must ascend")
        return self


class GemmTable(_Model):
    """A table of its own. ``device`` is what was measured; it need not be a target of hvdc."""

    name: Annotated[str, Field(min_length=1)]
    device: Annotated[str, Field(min_length=1)]
    conditions: Source
    exchange: ExchangeEntry
    gemm: Annotated[list[GemmEntry], Field(min_length=1)]


def engines_of(gemm: list[GemmEntry], exchange: ExchangeEntry) -> Engines:
    """What the solver takes. Raises UsageError where one GEMM has two times."""
    times = [GemmTime(g.engine, g.tokens, g.in_features, g.out_features, g.seconds) for g in gemm]
    return Engines(
        Profile.of("gpu", times),
        Profile.of("npu", times, tuple(exchange.npu_standard_tokens)),
        Exchange(exchange.sync_s, exchange.copy_s, exchange.home),
        tuple((gpu, npu) for gpu, npu in exchange.ratios),
    )


@dataclass(frozen=True)
class Measured:
    """What a table says about GEMMs. ``gemms``: those that both engines were timed with, as the table names them.
    ``tokens``: of a step of the model that the table is of, None where it is of GEMMs alone."""

    name: str
    conditions: str
    engines: Engines
    gemms: tuple[Gemm, ...]
    tokens: int | None = None


def load_measured(path: Path) -> Measured:
    """The GEMM times in a TOML file: of a rate table, or of a table of their own.

    Raises UsageError for one that cannot be read, is not valid, or has no times.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError("the table cannot be read", where=str(path), found=str(error)) from error
    if "gemm" not in values:
        raise UsageError(
            "this table has no GEMM times, which the solver needs",
            where=str(path),
            expected="[[gemm]] entries: seconds of each linear on each engine",
            fix="measure them, or see examples/rates/gemms for what they look like",
        )
    try:
        table = GemmTable.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"{key!r} of the table is not valid: {first['msg']}", where=str(path), found=repr(first.get("input"))[:80]
        ) from error
    return Measured(table.name, table.conditions, engines_of(table.gemm, table.exchange), _timed_twice(table.gemm))


def _timed_twice(entries: list[GemmEntry]) -> tuple[Gemm, ...]:
    """The GEMMs that both engines were timed with, each once, in the table's order."""
    engines: dict[tuple[int, int, int], set[str]] = {}
    names: dict[tuple[int, int, int], str] = {}
    for entry in entries:
        key = (entry.tokens, entry.in_features, entry.out_features)
        engines.setdefault(key, set()).add(entry.engine)
        names.setdefault(key, entry.name)
    return tuple(Gemm(names[key], *key) for key, by in engines.items() if len(by) > 1)
