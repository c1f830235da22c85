"""Tables of GEMM times: what `hvdc.plan.tensor` solves from, each number with its source.

The times stand in a rate table, or in a table of their own where nothing else was measured. See examples/rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from hvdc.errors import UsageError
from hvdc.plan import gemms as sizes
from hvdc.plan.gemms import GemmTime, Profile
from hvdc.plan.rate_fields import Fields, Gemm, Sharing, Source
from hvdc.plan.rates import RateTable, load_rates
from hvdc.plan.tensor import Engines, Exchange
from hvdc.plan.toml_file import read_toml


class GemmTable(Fields):
    """A table of its own. ``device`` is what was measured; it need not be a target of hvdc."""

    name: Annotated[str, Field(min_length=1)]
    device: Annotated[str, Field(min_length=1)]
    conditions: Source
    exchange: Sharing
    gemm: Annotated[tuple[Gemm, ...], Field(min_length=1, strict=False)]


@dataclass(frozen=True)
class Measured:
    """What a table says about GEMMs. ``gemms``: those that both engines were timed with, as the table names them.

    Of a rate table: ``tokens`` of a step of its model, and ``npu_block_s``, seconds of each block execution on the NPU
    alone; None where that is not known.
    """

    name: str
    conditions: str
    engines: Engines
    gemms: tuple[sizes.Gemm, ...]
    tokens: int | None = None
    npu_block_s: tuple[float, ...] | None = None


def load_measured(path: Path) -> Measured:
    """The GEMM times in a TOML file: of a rate table, or of a table of their own.

    Raises UsageError for one that cannot be read, is not valid, or has no times.
    """
    values = read_toml(path, "the table", fix="see examples/rates/gemms for what one looks like")
    if "frames" in values:
        return measured_gemms(load_rates(path), str(path))
    if "gemm" not in values:
        raise _no_times(str(path))
    try:
        table = GemmTable.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"{key!r} of the table is not valid: {first['msg']}", where=str(path), found=repr(first.get("input"))[:80]
        ) from error
    return Measured(table.name, table.conditions, _engines(table.gemm, table.exchange), _timed_on_both(table.gemm))


def measured_gemms(table: RateTable, where: str = "") -> Measured:
    """The GEMM times of a rate table. Raises UsageError for one that has none, or not what an exchange costs."""
    if not table.gemm:
        raise _no_times(where or table.name)
    if table.exchange is None:
        raise UsageError(
            "this rate table has GEMM times, but not what it costs that both engines meet",
            where=where or table.name,
            expected="[exchange] with sync_s",
            fix="measure it, or see examples/rates/gemms",
        )
    solo = table.npu.solo_block_s
    return Measured(
        table.name,
        table.thermal,
        _engines(table.gemm, table.exchange),
        _timed_on_both(table.gemm),
        table.tokens,
        None if solo is None else solo.expanded(table.steps, table.layers),
    )


def _engines(entries: Sequence[Gemm], sharing: Sharing) -> Engines:
    """What the solver takes. Raises UsageError where one GEMM has two times."""
    times = [GemmTime(g.engine, g.tokens, g.in_features, g.out_features, g.seconds) for g in entries]
    copy_s = 0.0 if sharing.copy_s is None else sharing.copy_s.value
    return Engines(
        Profile.of("gpu", times),
        Profile.of("npu", times, sharing.npu_standard_tokens),
        Exchange(sharing.sync_s.value, copy_s, sharing.home),
        sharing.ratios,
    )


def _timed_on_both(entries: Sequence[Gemm]) -> tuple[sizes.Gemm, ...]:
    """The GEMMs that both engines were timed with, each once, in the table's order."""
    engines: dict[tuple[int, int, int], set[str]] = {}
    names: dict[tuple[int, int, int], str] = {}
    for entry in entries:
        key = (entry.tokens, entry.in_features, entry.out_features)
        engines.setdefault(key, set()).add(entry.engine)
        names.setdefault(key, entry.name)
    return tuple(sizes.Gemm(names[key], *key) for key, by in engines.items() if len(by) > 1)


def _no_times(where: str) -> UsageError:
    return UsageError(
        "this table has no GEMM times, which the solver needs",
        where=where,
        expected="[[gemm]] entries: seconds of each linear on each engine",
        fix="measure them, or see examples/rates/gemms for what they look like",
    )
