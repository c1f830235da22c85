"""A tiny artifact, streams of it, and the runner with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import calibrations
from tests.device_runtime.runner.small import VIDEOS
from tests.device_runtime.runs import Runner, stream_of


@pytest.fixture(scope="session")
def artifact(watched_checkpoint: Path, calibration: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two blocks, six steps, eight tokens, with activation scales."""
    output = tmp_path_factory.mktemp("calibrated") / "small.hvdc"
    done = calibrations.run_compile(watched_checkpoint, output, "--calibration", calibration, "-q")
    assert done.status == 0, done.err
    return output


@pytest.fixture(scope="session")
def uncalibrated(watched_checkpoint: Path, artifact: Path) -> Path:
    output = artifact.with_name("uncalibrated.hvdc")
    done = calibrations.run_compile(watched_checkpoint, output, "-q")
    assert done.status == 0, done.err
    return output


@pytest.fixture(scope="session")
def runner(programs: dict[str, Path], artifact: Path, embeds: Path, gpu_caches: Path) -> Runner:
    (gpu_caches / "ours").mkdir(exist_ok=True)
    stream = stream_of(artifact.with_name("stream"), artifact, embeds, VIDEOS)
    return Runner(programs["hvdc_runner"], artifact, stream, gpu_caches / "ours")


@pytest.fixture(scope="session")
def long(runner: Runner, embeds: Path) -> Runner:
    """A stream that takes seconds, so that it can be stopped in the middle."""
    return runner.with_videos("long", 400, embeds)


@pytest.fixture(scope="session")
def some(runner: Runner, embeds: Path) -> Runner:
    """One that is stopped in the middle and then goes on."""
    return runner.with_videos("some", 60, embeds)


@pytest.fixture(scope="session")
def on_npu(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("npu") / "out"
    runner.finished(output, "npu")
    return output


@pytest.fixture(scope="session")
def on_gpu(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("gpu") / "out"
    runner.finished(output, "gpu")
    return output
