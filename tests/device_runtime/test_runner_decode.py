"""`hvdc_runner` decoding by the artifact's binaries, through a stand-in for QNN's libraries. Built with sanitizers."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from exporters.qnn.available import BACKEND, SYSTEM
from hvdc.artifact.reader import open_artifact
from hvdc.errors import HvdcError
from hvdc.pipeline.run_frames import Frames, read_frames
from hvdc.pipeline.run_results import read_result
from hvdc.pipeline.stream_file import StreamVideo
from tests.artifacts import read_manifest
from tests.device_runtime.decoder_program import Decoded
from tests.device_runtime.qnn_stand_in import add_binaries, decoded
from tests.device_runtime.runs import SANITIZERS, Done, Runner, children_of, outcome, stream_of, wait_for, why_no_gpu

VIDEOS = (StreamVideo(0, 1), StreamVideo(1, 2), StreamVideo(1, 3))
PIECES = 8
"""Two latent frames of two by two tiles."""
CUT, EXECUTIONS = 5, 12

needs_gpu = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")


@pytest.fixture(scope="module")
def artifact(runnable_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = shutil.copytree(runnable_artifact, tmp_path_factory.mktemp("decoding") / "a.hvdc")
    add_binaries(copy)
    return copy


@pytest.fixture(scope="module")
def runner(programs: dict[str, Path], artifact: Path, embeds: Path, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "kernels").mkdir()
    stream = stream_of(folder / "stream", artifact, embeds, VIDEOS)
    return Runner(programs["hvdc_runner"], artifact, stream, folder / "kernels")


@pytest.fixture
def decoding(stand_in: Path) -> tuple[object, ...]:
    """The options with which the runner decodes."""
    return ("--qnn-libraries", stand_in, "--emulator", "no")


def frames(runner: Runner, output: Path, video: int) -> Frames:
    with open_artifact(runner.artifact) as artifact:
        return read_frames(output / f"video-{video:06d}.ppm", artifact)


def latent(runner: Runner, output: Path, video: int) -> npt.NDArray[np.float32]:
    with open_artifact(runner.artifact) as artifact:
        return read_result(output / f"video-{video:06d}.safetensors", artifact)


def assert_decoded(runner: Runner, output: Path, videos: int = len(VIDEOS)) -> None:
    """Each video's frames are those of its latent, and nothing else is there."""
    entry = read_manifest(runner.artifact).decoder
    assert entry is not None
    for video in range(videos):
        found, due = frames(runner, output, video).pixels, decoded(entry, latent(runner, output, video))
        assert due.std() > 50, "noise: any exchanged pixel is seen"
        np.testing.assert_array_equal(found, due)
    names = {f"video-{video:06d}.{suffix}" for video in range(videos) for suffix in ("ppm", "safetensors")}
    assert {path.name for path in output.iterdir()} == names


# --- frames -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("npu", ()),
        pytest.param("hetero", ("--cut", CUT), marks=needs_gpu),
        pytest.param("gpu", (), marks=needs_gpu),
        pytest.param("dp", (), marks=needs_gpu),
    ],
)
def test_frames_are_those_of_the_latents(
    mode: str, more: tuple[object, ...], runner: Runner, decoding: tuple[object, ...], tmp_path: Path
) -> None:
    """To the bit: the host decoder's tiles and blending around the stand-in's graphs."""
    done = runner.finished(tmp_path / "out", mode, *more, *decoding)
    assert_decoded(runner, tmp_path / "out")
    assert all(video["decode_s"] > 0 for video in done.report["videos"])


def test_frames_are_those_of_the_decoders_own_program(
    runner: Runner, decoding: tuple[object, ...], programs: dict[str, Path], stand_in: Path, tmp_path: Path
) -> None:
    runner.finished(tmp_path / "out", "npu", *decoding)
    alone = Decoded(programs["hvdc_decoder_check"], stand_in, tmp_path)
    for video in range(len(VIDEOS)):
        due = alone.frames(runner.artifact, latent(runner, tmp_path / "out", video))
        np.testing.assert_array_equal(frames(runner, tmp_path / "out", video).pixels, due)
