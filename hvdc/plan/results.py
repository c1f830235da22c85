"""What a simulated stream gives: its steady period, latencies, deadlines, idle engines, energy, and a Gantt chart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hvdc.errors import UsageError
from hvdc.plan.placement import HOUR_S
from hvdc.plan.stream import StreamRun, VideoTimes

Since = Literal["arrival", "start"]
WATTS_MAX = 1000.0
POWERS = ("idle", "gpu", "npu")
"""Watts that energy is made of: of the whole device while both engines wait, and what each adds while it works."""


@dataclass(frozen=True)
class Span:
    """A piece of a Gantt chart. ``lane``: GPU, NPU, decode (on the NPU) or handoff (the video waits for the NPU), as in
    the runtime's trace."""

    lane: str
    video: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Distribution:
    """Of seconds. A percentile is the smallest value that so many percent do not exceed."""

    mean: float
    p50: float
    p95: float
    max: float


@dataclass(frozen=True)
class EngineUse:
    """Of one engine over the steady part of a stream (all of it, where none is steady): the share of the time in which
    it has nothing to do, and the seconds of that per finished video."""

    idle_fraction: float
    idle_s_per_video: float


@dataclass(frozen=True)
class Deadline:
    """Videos that are finished at most ``deadline_s`` after their arrival or their first block."""

    deadline_s: float
    since: Since
    met: int
    compliant_per_hour: float


@dataclass(frozen=True)
class StreamResult:
    """``period_s``: mean seconds between finished videos in the steady part, which begins when the fill is over (the
    first video is finished; in mode ``dp`` the first one of each engine) and ends when the drain begins (the last
    video is begun). None if fewer than two videos are finished in it; ``videos_per_hour`` is then that of the whole
    stream, as are deadlines and idle engines. ``makespan_s``: from the first block to the last finished video."""

    videos: int
    period_s: float | None
    videos_per_hour: float
    makespan_s: float
    latency: Distribution
    service: Distribution
    gpu: EngineUse
    npu: EngineUse
    deadline: Deadline | None
    energy_j: float | None

    @property
    def energy_j_per_video(self) -> float | None:
        return None if self.energy_j is None else self.energy_j / self.videos


def summarise(
    run: StreamRun,
    *,
    deadline_s: float | None = None,
    since: Since = "start",
    powers_w: Mapping[str, float] | None = None,
) -> StreamResult:
    """What a stream gives. ``powers_w``: watts of `POWERS`."""
    videos = run.videos
    first_s, last_s = min(v.start_s for v in videos), max(v.finish_s for v in videos)
    window = steady_window(run)
    begin_s, end_s, finished = window or (first_s, last_s, len(videos))
    length_s = end_s - begin_s
    per_hour = _per_hour(finished, length_s)
    deadline = None
    if deadline_s is not None:
        met = [v for v in videos if _taken_s(v, since) <= deadline_s * (1 + 1e-12)]
        counted = len(met) if window is None else sum(begin_s < v.finish_s <= end_s for v in met)
        deadline = Deadline(deadline_s, since, len(met), _per_hour(counted, length_s))
    return StreamResult(
        videos=len(videos),
        period_s=None if window is None else length_s / finished,
        videos_per_hour=per_hour,
        makespan_s=last_s - first_s,
        latency=distribution([v.latency_s for v in videos]),
        service=distribution([v.service_s for v in videos]),
        gpu=_use(_gpu_work(run), begin_s, end_s, finished),
        npu=_use(_npu_work(videos), begin_s, end_s, finished),
        deadline=deadline,
        energy_j=None if powers_w is None else _energy_j(run, powers_w, last_s - first_s),
    )


def steady_window(run: StreamRun) -> tuple[float, float, int] | None:
    """Of the steady part: its begin and its end, both the moment of a finished video, and how many are finished after
    the one and up to the other. None if there is none."""
    arms = {v.cut > 0 for v in run.videos} if run.mode == "dp" else {None}
    filled_s = max(min(v.finish_s for v in run.videos if arm in (None, v.cut > 0)) for arm in arms)
    drained_s = max(v.start_s for v in run.videos)
    inside = sorted(v.finish_s for v in run.videos if filled_s <= v.finish_s <= drained_s)
    if len(inside) < 2 or inside[-1] <= inside[0]:
        return None
    return inside[0], inside[-1], len(inside) - 1


def spans(run: StreamRun, videos: int = 8) -> list[Span]:
    """What the lanes do for the first videos, in the order of time."""
    made = []
    for v in run.videos[:videos]:
        shared = run.mode == "hetero-tensor"
        gpu_end_s = v.decode_start_s if shared else v.gpu_end_s
        made += [
            Span("GPU", v.video, v.start_s, gpu_end_s),
            Span("handoff", v.video, v.gpu_end_s, v.npu_start_s),
            Span("NPU", v.video, v.npu_start_s, v.decode_start_s),
            Span("decode", v.video, v.decode_start_s, v.finish_s),
        ]
    return sorted((s for s in made if s.end_s > s.start_s), key=lambda s: (s.start_s, s.video, s.lane))


def distribution(values: Sequence[float]) -> Distribution:
    """Of at least one value."""
    ordered = sorted(values)

    def percentile(percent: int) -> float:
        return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]

    return Distribution(math.fsum(ordered) / len(ordered), percentile(50), percentile(95), ordered[-1])


def check_powers(powers_w: Mapping[str, float]) -> None:
    """Raises UsageError unless each of `POWERS` is there, finite and not negative."""
    if set(powers_w) != set(POWERS) or not all(0 <= w <= WATTS_MAX for w in powers_w.values()):
        raise UsageError(
            "energy needs three powers in watts",
            expected="idle, and what gpu and npu add while they work: --power idle=1.2 --power gpu=3 --power npu=5",
            found=", ".join(f"{k}={v:g}" for k, v in powers_w.items()) or "none",
        )


def powers_of(given: Sequence[str], known: Mapping[str, float | None]) -> dict[str, float] | None:
    """Watts from ``NAME=WATTS`` words, which win over those that a rate table has; None if there are none at all.

    Raises UsageError for a word that is none of `POWERS`, no number or said twice, and if one of them is left unknown.
    """
    read: dict[str, float] = {}
    for word in given:
        name, _, watts = word.partition("=")
        try:
            value = float(watts)
        except ValueError:
            value = math.nan
        if name not in POWERS or name in read or not 0 <= value <= WATTS_MAX:
            expected = f"idle=WATTS, gpu=WATTS and npu=WATTS, each once and at most {WATTS_MAX:g}"
            raise UsageError("this is no power", expected=expected, found=word)
        read[name] = value
    powers = {name: watts for name, watts in known.items() if watts is not None} | read
    if not read and set(powers) != set(POWERS):
        return None
    check_powers(powers)
    return powers


def _taken_s(video: VideoTimes, since: Since) -> float:
    return video.latency_s if since == "arrival" else video.service_s


def _per_hour(count: int, seconds: float) -> float:
    return HOUR_S * count / seconds if seconds > 0 else 0.0


def _gpu_work(run: StreamRun) -> Iterable[tuple[float, float]]:
    if run.mode == "hetero-tensor":
        return ((v.npu_start_s, v.decode_start_s) for v in run.videos)
    return ((v.start_s, v.gpu_end_s) for v in run.videos)


def _npu_work(videos: Sequence[VideoTimes]) -> Iterable[tuple[float, float]]:
    return ((v.npu_start_s, v.finish_s) for v in videos)


def _use(work: Iterable[tuple[float, float]], begin_s: float, end_s: float, finished: int) -> EngineUse:
    busy_s = math.fsum(max(0.0, min(end, end_s) - max(start, begin_s)) for start, end in work)
    idle_s = max(0.0, end_s - begin_s - busy_s)
    if idle_s <= 1e-9 * (end_s - begin_s):  # rounding, not idling
        idle_s = 0.0
    return EngineUse(idle_s / (end_s - begin_s) if end_s > begin_s else 0.0, idle_s / finished)


def _energy_j(run: StreamRun, powers_w: Mapping[str, float], makespan_s: float) -> float:
    check_powers(powers_w)
    gpu_s = math.fsum(end - start for start, end in _gpu_work(run))
    npu_s = math.fsum(end - start for start, end in _npu_work(run.videos))
    return powers_w["idle"] * makespan_s + powers_w["gpu"] * gpu_s + powers_w["npu"] * npu_s
