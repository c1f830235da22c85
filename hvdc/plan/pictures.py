"""The pictures of each ``hvdc plan`` command: what its result says, as `hvdc.plan.plots` draws it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from hvdc.plan.plots import Paths, draw_deadlines, draw_gantt
from hvdc.plan.results import spans
from hvdc.plan.scenarios import Configuration, Outcome, SloPoint

GANTT_VIDEOS = 4
"""The first configuration is shown until so many are finished, and the others as long."""
SPANS_VIDEOS = 100


def draw_simulation(outcomes: Sequence[Outcome], folder: Path) -> Paths:
    """A Gantt chart of the configurations that were simulated. Raises as `hvdc.plan.plots`."""
    runs = {o.configuration.name: o.run for o in outcomes if o.run is not None}
    if not runs:
        raise ValueError("nothing was simulated")
    finished = sorted(video.finish_s for video in next(iter(runs.values())).videos)
    end_s = finished[min(GANTT_VIDEOS, len(finished)) - 1]
    return draw_gantt({name: spans(run, SPANS_VIDEOS) for name, run in runs.items()}, end_s, folder)


def draw_slo(
    points: Sequence[SloPoint],
    configurations: Sequence[Configuration],
    reference_s: float,
    folder: Path,
    *,
    given: bool = False,
    name: str = "deadlines",
) -> Paths:
    """Videos per hour within the deadline. Configurations without a value are left out. ``given``: the reference is the
    user's, not what a video takes on the NPU alone. Raises as `hvdc.plan.plots`."""
    lines = {
        configuration.name: [math.nan if (rate := p.compliant_per_hour[n]) is None else rate for p in points]
        for n, configuration in enumerate(configurations)
    }
    known = {line: rates for line, rates in lines.items() if not all(math.isnan(rate) for rate in rates)}
    unit_is = "the reference given" if given else "a video on the NPU alone"
    return draw_deadlines([p.factor for p in points], known, folder, unit_s=reference_s, unit_is=unit_is, name=name)
