"""The coordinator does what `hvdc plan simulate` says: the same videos on the same engines, finished in the same
order, in the same time.

Its engines sleep instead of computing, so that it is known what a block takes. A sleep is never too short, and a busy
machine makes it longer: hence the bounds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdc.plan.costs import Costs, EngineCosts, uniform
from hvdc.plan.results import summarise
from hvdc.plan.stages import SLOTS, Mode
from hvdc.plan.stream import StreamRun, simulate
from tests.device_runtime.streams import Shape, Streams

SHAPE = Shape()
LONGER = 1.5
"""Than simulated, at most."""


def simulated(mode: Mode, cut: int, videos: int, slots: int, gpu_s: float, npu_s: float, decode_s: float) -> StreamRun:
    def engine(block_s: float) -> EngineCosts:
        return EngineCosts(uniform(block_s, SHAPE.executions), uniform(block_s, SHAPE.executions))

    costs = Costs(SHAPE.executions, engine(gpu_s), engine(npu_s), decode_s)
    return simulate(costs, mode, (0.0,) * videos, cut=cut if mode == "hetero" else None, slots=slots)


@pytest.mark.parametrize(
    ("mode", "cut", "slots", "gpu_ms", "npu_ms", "decode_ms"),
    [
        ("npu", 0, None, 20, 5, 40),
        ("gpu", 0, None, 20, 5, 60),  # decodes while the next video is on the GPU
        ("gpu", 0, 1, 20, 5, 60),  # and here it cannot
        ("hetero", 3, None, 20, 5, 40),  # the NPU is the longer stage
        ("hetero", 7, None, 20, 5, 40),  # the GPU is
        ("hetero", 2, 3, 20, 5, 40),
        ("dp", 0, None, 60, 24, 120),
        ("dp", 0, 2, 60, 23, 120),
    ],
)
def test_the_coordinator_is_as_simulated(
    programs: dict[str, Path], mode: Mode, cut: int, slots: int | None, gpu_ms: int, npu_ms: int, decode_ms: int
) -> None:
    videos = 6
    with Streams(programs["hvdc_stream_check"]) as streams:
        words = {"mode": mode, "cut": cut, "videos": videos, "slots": slots or 0}
        one_slot = streams.run(SHAPE, mode="npu", videos=1)["slot_bytes"]
        report = streams.run(SHAPE, **words, gpu_us=1000 * gpu_ms, npu_us=1000 * npu_ms, decode_us=1000 * decode_ms)
    run = simulated(mode, cut, videos, slots or SLOTS[mode], gpu_ms / 1e3, npu_ms / 1e3, decode_ms / 1e3)
    assert report["order"] == [v.video for v in sorted(run.videos, key=lambda v: v.finish_s)]
    assert [v["gpu_blocks"] for v in report["videos"]] == [v.cut for v in run.videos]
    assert report["slot_bytes"] == run.slots * one_slot
    seconds = summarise(run).makespan_s
    assert seconds <= report["seconds"] <= LONGER * seconds
    for video, times in zip(report["videos"], run.videos, strict=True):
        waits_s = times.npu_start_s - times.gpu_end_s if times.cut > 0 else 0.0
        assert video["waiting_s"] == pytest.approx(waits_s, abs=0.5 * seconds / videos)
