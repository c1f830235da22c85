"""An artifact whose decoder the stand-in for QNN executes, the runner with it, and what a run has left."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.device_runtime.decoding.small import (
    VIDEOS,
)
from tests.device_runtime.qnn_stand_in import add_binaries
from tests.device_runtime.runs import Runner, stream_of


@pytest.fixture(scope="session")
def artifact(runnable_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = shutil.copytree(runnable_artifact, tmp_path_factory.mktemp("decoding") / "a.hvdc")
    add_binaries(copy)
    return copy


@pytest.fixture(scope="session")
def runner(programs: dict[str, Path], artifact: Path, embeds: Path, gpu_caches: Path) -> Runner:
    (gpu_caches / "ours").mkdir(exist_ok=True)
    stream = stream_of(artifact.with_name("stream"), artifact, embeds, VIDEOS)
    return Runner(programs["hvdc_runner"], artifact, stream, gpu_caches / "ours")


@pytest.fixture
def decoding(stand_in: Path) -> tuple[object, ...]:
    """The options with which the runner decodes."""
    return ("--qnn-libraries", stand_in, "--emulator", "no")


@pytest.fixture(scope="session")
def decoded_once(runner: Runner, stand_in: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("decoded") / "out"
    runner.finished(output, "npu", "--qnn-libraries", stand_in, "--emulator", "no")
    return output


@pytest.fixture
def finished(decoded_once: Path, tmp_path: Path) -> Path:
    """What a run of mode npu that decoded has left: a copy of a test's own."""
    return Path(shutil.copytree(decoded_once, tmp_path / "finished"))
