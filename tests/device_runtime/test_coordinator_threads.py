"""The owner's two threads under ThreadSanitizer, with streams of `test_coordinator_random`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.device_runtime.builds import built
from tests.device_runtime.streams import Shape, Streams, check, words
from tests.device_runtime.test_coordinator_random import draw_policy, draw_shared, run

TOOL = "hvdc_stream_check"


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    program = built(tmp_path_factory, "host-tsan", "the threads are not watched", [TOOL])[TOOL]
    tried = subprocess.run([program, "run", *words(Shape())], capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in tried.stderr:
        pytest.skip("this compiler's ThreadSanitizer does not know the addresses of this kernel")
    assert tried.returncode == 0, tried.stderr
    with Streams(program) as running:
        yield running


@pytest.mark.parametrize("mode", ["npu", "gpu", "hetero", "dp", "hetero-tensor"])
def test_no_race_in_any_mode(streams: Streams, tmp_path: Path, mode: str) -> None:
    shape, more = Shape(width=64), {"share": 0.5} if mode == "hetero-tensor" else {"cut": 5}
    trace = tmp_path / "t.json"
    report = streams.run(shape, mode=mode, videos=6, dir=tmp_path, trace=trace, decode_us=200, **more)
    assert report["ok"], report
    check(report, shape, tmp_path, columns=32 if "share" in more else None)


def test_no_race_whatever_happens(streams: Streams, tmp_path: Path) -> None:
    for seed in range(10_000, 10_030):
        run(streams, seed, tmp_path / str(seed))
    for seed in range(10_100, 10_112):
        run(streams, seed, tmp_path / str(seed), draw_shared)
    for seed in range(10_200, 10_220):
        run(streams, seed, tmp_path / str(seed), draw_policy)
