"""What makes a stage of a video longer or shorter than the rate table says: jitter, and drift of a device.

Both multiply durations. Jitter is drawn for each stage of each video and has a mean of 1; drift is a course over time
(a device that throttles) or over videos, and is the same in every simulation.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hvdc.errors import UsageError
from hvdc.plan.toml_file import read_toml

STAGES = ("gpu", "npu", "decode")
"""Of a video: blocks on the GPU, blocks on the NPU, decoding."""


@dataclass(frozen=True)
class Jitter:
    """Log-normal factors with mean 1 and this coefficient of variation (deviation ÷ mean): always above 0, and seldom
    far above 1. A stage of a video has the same factor in every configuration and under every policy, so that two
    simulations with one seed differ in what they decide only."""

    variation: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.variation) and 0 <= self.variation <= 2):
            raise UsageError(
                "jitter is the deviation of a stage's duration, as a share of it",
                expected="a number from 0 to 2, such as 0.03",
                found=str(self.variation),
            )

    def factors(self, stage: str) -> Iterator[float]:
        """Of videos 0, 1, 2, …"""
        draw = random.Random(f"{self.seed} {stage}").gauss  # noqa: S311 - a simulation, not a secret
        deviation = math.sqrt(math.log1p(self.variation**2))
        while True:
            yield math.exp(draw(-deviation * deviation / 2, deviation)) if deviation > 0 else 1.0


Factor = Annotated[float, Field(ge=1e-3, le=1e3, allow_inf_nan=False, strict=True)]
Place = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False, strict=True)]


@dataclass(frozen=True)
class Course:
    """A factor that is linear between points (place, factor) and constant before the first and after the last one."""

    points: tuple[tuple[float, float], ...]
    _places: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", tuple(place for place, _ in self.points))

    def at(self, place: float) -> float:
        """The factor there."""
        after = bisect_right(self._places, place)
        if after == 0 or after == len(self.points):
            return self.points[min(after, len(self.points) - 1)][1]
        (a, low), (b, high) = self.points[after - 1], self.points[after]
        return low + (high - low) * (place - a) / (b - a)

    def lasts_s(self, start_s: float, work_s: float) -> float:
        """Seconds that ``work_s`` of work (at factor 1) takes if it starts at ``start_s``: the t for which the integral
        of 1 / factor over [start, start + t] is the work. Between two points the factor is m + b·u, and the integral
        ln(1 + b·t / m) / b."""
        now, left = start_s, work_s
        for end in self._places[bisect_right(self._places, now) :]:
            m, span = self.at(now), end - now
            slope = (self.at(end) - m) / span
            possible = math.log1p(slope * span / m) / slope if slope else span / m
            if left <= possible:
                return now - start_s + (m * math.expm1(slope * left) / slope if slope else left * m)
            now, left = end, left - possible
        return now - start_s + left * self.points[-1][1]


FLAT = Course(((0.0, 1.0),))


@dataclass(frozen=True)
class Drift:
    """How a device's rates move away from its table: a course for each of `STAGES`, over seconds of the stream or over
    the videos' numbers. ``source`` says where that comes from."""

    name: str
    source: str
    over: Literal["seconds", "videos"]
    gpu: Course = FLAT
    npu: Course = FLAT
    decode: Course = FLAT

    def lasts_s(self, stage: str, video: int, start_s: float, work_s: float) -> float:
        """Seconds that a stage takes whose duration in the table is ``work_s``."""
        course: Course = getattr(self, stage)
        if self.over == "videos":
            return work_s * course.at(video)
        return course.lasts_s(start_s, work_s)


class _DriftFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1)]
    source: Annotated[str, Field(min_length=10)]
    over: Literal["seconds", "videos"]
    gpu: Annotated[tuple[tuple[Place, Factor], ...], Field(min_length=1)] = FLAT.points
    npu: Annotated[tuple[tuple[Place, Factor], ...], Field(min_length=1)] = FLAT.points
    decode: Annotated[tuple[tuple[Place, Factor], ...], Field(min_length=1)] = FLAT.points


def load_drift(path: Path) -> Drift:
    """A drift from a TOML file. Raises UsageError for one that cannot be read or is not valid."""
    values = read_toml(path, "the drift", fix="see examples/drift for what one looks like")
    try:
        read = _DriftFile.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"{key!r} of the drift is not valid: {first['msg']}",
            where=str(path),
            expected='name, source, over = "seconds" or "videos", and lists of [place, factor] under gpu, npu, decode',
            found="" if first["type"] == "missing" else repr(first.get("input")),
        ) from error
    for stage in STAGES:
        places = [place for place, _ in getattr(read, stage)]
        if places != sorted(set(places)):
            raise UsageError(
                f"{stage!r} of the drift does not go forward",
                where=str(path),
                expected="each point after the one before it",
                found=str(places),
            )
    return Drift(read.name, read.source, read.over, Course(read.gpu), Course(read.npu), Course(read.decode))
