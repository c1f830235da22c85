"""What was measured as a rate table that `hvdc plan cut` reads, each number with how, where and when."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from hvdc.artifact.manifest import Manifest
from hvdc.errors import UsageError
from hvdc.measure.bench import Benched
from hvdc.measure.bench_report import Series
from hvdc.plan.rate_fields import BlockRate, DecodeRates, Duration, EngineRates
from hvdc.plan.rates import RateTable

NOT_STEADY = "NOT STEADY"
OTHER = {"gpu": "npu", "npu": "gpu"}


def rate_table(benched: Benched, manifest: Manifest, name: str) -> RateTable:
    """Raises UsageError: the report is of another clip length than the artifact's, or lacks an expert that it runs."""
    if benched.report.tokens != manifest.video.tokens:
        raise UsageError(
            "a rate table is of the artifact's own clip length", expected=f"{manifest.video.tokens} tokens",
            found=f"{benched.report.tokens} tokens", fix="measure with the artifact of the clip length that you plan",
        )  # fmt: skip
    experts = [step.expert for step in manifest.steps]
    return RateTable(
        name=name,
        device=device_text(benched),
        target=manifest.target.name,
        date=_day(benched),
        thermal=thermal_text(benched),
        frames=manifest.video.frames,
        tokens=manifest.video.tokens,
        steps=len(experts),
        layers=manifest.geometry.layers,
        semantic_steps=experts.count("semantic"),
        gpu=_engine(benched, "gpu", experts),
        npu=_engine(benched, "npu", experts),
        decode=_decode(benched, has_decoder=manifest.decoder is not None),
    )


def device_text(benched: Benched) -> str:
    """What was measured on: the machine, the GPU as OpenCL names it, what the NPU's engine runs on."""
    report, parts = benched.report, [benched.what]
    if report.gpu is not None:
        parts.append(f"GPU {report.gpu.device} ({report.gpu.platform})")
    if report.npu is not None:
        parts.append(f"NPU engine: {report.npu.place}")
    return "; ".join(parts)


def thermal_text(benched: Benched) -> str:
    """Cooling in the person's words, conditions before, meanwhile and after, and whether the run was steady."""
    request = benched.request
    spread = max((s.spread for s in benched.unsteady()), default=0.0)
    parts = [f"{NOT_STEADY}: spread up to {spread:.0%}"] if spread else []
    parts.append(f"cooling: {request.cooling}" if request.cooling else "cooling was not stated")
    if request.rest_s:
        parts.append(f"rested for {request.rest_s:g} s")
    parts.append(f"{request.warm_up} blocks of warm-up")
    parts.append(f"before: {benched.before.text()}")
    if benched.during.seen:
        parts.append(f"during: {benched.during.text()}")
    parts.append(f"after {benched.took_s:.0f} s: {benched.after.text()}")
    return "; ".join(parts)


def _day(benched: Benched) -> datetime.date:
    return datetime.datetime.fromtimestamp(benched.started_s).astimezone().date()


def _engine(benched: Benched, engine: str, experts: Sequence[str]) -> EngineRates:
    rates = (_blocks(benched, engine, beside, experts) for beside in ("nothing", OTHER[engine]))
    solo, co_run = rates
    return EngineRates(solo_block_s=solo, co_run_block_s=co_run)


def _blocks(benched: Benched, engine: str, beside: str, experts: Sequence[str]) -> BlockRate | None:
    """Seconds of a block in each step: the median of its expert. None where this was not measured."""
    by_expert = {expert: benched.report.find(engine, "block", beside, expert) for expert in dict.fromkeys(experts)}
    found = [series for series in by_expert.values() if series is not None]
    if not found:
        return None
    if len(found) < len(by_expert):
        missing = next(expert for expert, series in by_expert.items() if series is None)
        raise UsageError(f"the report has no block of the {missing} expert", found=found[0].text())
    medians = [series.median_s for expert in experts if (series := by_expert[expert]) is not None]
    source = _source(benched, found)
    if len(set(medians)) == 1:
        return BlockRate(value=medians[0], source=source)
    return BlockRate(per_step=tuple(medians), source=source)


def _decode(benched: Benched, *, has_decoder: bool) -> DecodeRates:
    if not has_decoder:
        nothing = Duration(value=0.0, source="the artifact has no decoder: nothing is decoded")
        return DecodeRates(solo_s=nothing, co_run_s=nothing)
    solo, co_run = (benched.report.find("npu", "decode", beside, None) for beside in ("nothing", "gpu"))
    return DecodeRates(solo_s=_duration(benched, solo), co_run_s=_duration(benched, co_run))


def _duration(benched: Benched, series: Series | None) -> Duration | None:
    if series is None:
        return None
    by = f" by {benched.report.decoder}" if benched.report.decoder else ""
    return Duration(value=series.median_s, source=_source(benched, [series]) + by)


def _source(benched: Benched, series: list[Series]) -> str:
    spread = max(s.spread for s in series)
    steady = f"{NOT_STEADY}: " if spread > benched.request.max_spread else ""
    counts = " and ".join(str(count) for count in sorted({s.count for s in series}))
    of = "each expert" if series[0].expert else "all"
    return (
        f"{steady}measured {_day(benched).isoformat()} by hvdc bench: median of {counts} of {of}, spread {spread:.1%}"
    )
