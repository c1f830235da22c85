"""The owner's two threads under ThreadSanitizer, with streams of `test_coordinator_random`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_runtime.build import build_host, why_not
from tests.device_runtime.streams import Shape, Streams, check, words
from tests.device_runtime.test_coordinator_random import run

TOOL = "hvdc_stream_check"


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    reason = why_not("host-tsan")
    if reason:
        pytest.skip(f"the threads are not watched: {reason}")
    program = build_host("host-tsan", tmp_path_factory.mktemp("host-tsan"), [TOOL])[TOOL]
    tried = subprocess.run([program, "run", *words(Shape())], capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in tried.stderr:
        pytest.skip("this compiler's ThreadSanitizer does not know the addresses of this kernel")
    assert tried.returncode == 0, tried.stderr
    with Streams(program) as running:
        yield running


@pytest.mark.parametrize("mode", ["npu", "gpu", "hetero", "dp"])
def test_no_race_in_any_mode(streams: Streams, tmp_path: Path, mode: str) -> None:
    report = streams.run(Shape(), mode=mode, cut=5, videos=6, dir=tmp_path, trace=tmp_path / "t.json", decode_us=200)
    assert report["ok"], report
    check(report, Shape(), tmp_path)


def test_no_race_whatever_happens(streams: Streams, tmp_path: Path) -> None:
    for seed in range(10_000, 10_030):
        run(streams, seed, tmp_path / str(seed))
