"""What `hvdc_bench` reports, read strictly: a number that is not there, or not a time, is an error and no rate."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hvdc.errors import HvdcError

VERSION = 2
"""``REPORT_VERSION`` of device_runtime/tools/hvdc_bench.c."""

MAX_BYTES = 1 << 20
EXPERTS = ("semantic", "detail")

Expert = Literal["semantic", "detail"]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Series(_Model):
    """Times of the same work. ``beside``: which engine worked meanwhile. ``spread``: (max - min) / median."""

    engine: Literal["npu", "gpu", "cpu"]
    what: Literal["block", "text_keys", "text_projection", "decode"]
    beside: Literal["nothing", "npu", "gpu"]
    expert: Expert | None
    count: Annotated[int, Field(ge=1)]
    min_s: Seconds
    median_s: Seconds
    max_s: Seconds
    spread: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    def text(self) -> str:
        """What was measured, for people."""
        beside = "alone" if self.beside == "nothing" else f"beside the {self.beside.upper()}"
        whose = f", {self.expert} expert" if self.expert else ""
        return f"{self.engine.upper()} {self.what.replace('_', ' ')} {beside}{whose}"


class Gpu(_Model):
    platform: str
    device: str
    dot: str
    import_: Annotated[str, Field(alias="import")]


class Npu(_Model):
    place: str
    sums: Literal["fast", "exact"]


class BenchRates(_Model):
    """While both engines work."""

    gpu_block_s: Seconds
    npu_block_s: Seconds
    decode_s: Seconds | None


class BenchReport(_Model):
    """The whole report; ``gpu``, ``npu``, ``decoder`` None: not measured."""

    hvdc_bench: int
    artifact: str
    index_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    tokens: Annotated[int, Field(ge=1)]
    own_tokens: Annotated[int, Field(ge=1)]
    threads: Annotated[int, Field(ge=1)]
    warm_up: Annotated[int, Field(ge=0)]
    repeat: Annotated[int, Field(ge=1)]
    decode_repeat: Annotated[int, Field(ge=1)]
    spread_limit: float
    gpu: Gpu | None
    npu: Npu | None
    weights: str
    """The kind of shared memory that both engines read them from, or ``mapped``: where the artifact is mapped."""
    decoder: str | None
    series: tuple[Series, ...]
    rates: BenchRates | None
    steady: bool

    def find(self, engine: str, what: str, beside: str, expert: str | None) -> Series | None:
        """One series, None where it was not measured."""
        keys = (engine, what, beside, expert)
        return next((s for s in self.series if (s.engine, s.what, s.beside, s.expert) == keys), None)


class BenchReportError(HvdcError):
    """The program's answer is no report."""


def parse_report(data: bytes, where: str) -> BenchReport:
    """Raises BenchReportError: no JSON, another version, a value that is missing or makes no sense, series twice."""
    if len(data) > MAX_BYTES:
        raise _bad("its report is too long", where, f"at most {MAX_BYTES:,} bytes", f"{len(data):,}")
    try:
        values = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        shown = data[:80].decode("utf-8", "replace").replace("\n", " ").strip()
        raise _bad("its report is no JSON", where, "a report", shown or "nothing") from error
    version = values.get("hvdc_bench") if isinstance(values, dict) else None
    if version != VERSION or isinstance(version, bool):
        found = "none" if version is None else str(version)[:40]
        raise _bad("its report has another version", where, str(VERSION), found)
    try:
        report = BenchReport.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise _bad(
            f"{key!r} of its report makes no sense", where, first["msg"], repr(first.get("input"))[:80]
        ) from error
    keys = [(s.engine, s.what, s.beside, s.expert) for s in report.series]
    if twice := next((s for s, key in zip(report.series, keys, strict=True) if keys.count(key) > 1), None):
        raise _bad("its report has a series twice", where, "each once", twice.text())
    if wrong := next((s for s in report.series if not s.min_s <= s.median_s <= s.max_s), None):
        raise _bad("its report contradicts itself", where, "min ≤ median ≤ max", wrong.text())
    return report


def _bad(what: str, where: str, expected: str, found: str) -> BenchReportError:
    return BenchReportError(
        f"hvdc_bench was started, and {what}", where=where, expected=expected, found=found,
        fix="the programs of the runtime may be of another version: hvdc runtime build makes them anew, --into "
        "ARTIFACT and hvdc deploy bring them onto a phone",
    )  # fmt: skip
