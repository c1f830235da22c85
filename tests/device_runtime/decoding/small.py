"""A short stream that is decoded, in each mode, and what its frames are compared with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from hvdc.artifact.reader import open_artifact
from hvdc.pipeline.run_frames import Frames, read_frames
from hvdc.pipeline.run_results import read_result
from hvdc.pipeline.stream_file import StreamVideo
from tests.artifacts import read_manifest
from tests.device_runtime.qnn_stand_in import decoded
from tests.device_runtime.runs import Runner, why_no_gpu

VIDEOS = (StreamVideo(0, 1), StreamVideo(1, 2), StreamVideo(1, 3))
PIECES = 8
"""Two latent frames of two by two tiles."""
CUT = 5
RATES = ("--gpu-block-s", 0.0001, "--npu-block-s", 0.0001)
"""Far less than a block takes here, so that a policy changes its mind."""

needs_gpu = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")
MODES: dict[str, tuple[object, ...]] = {
    "npu": (), "gpu": (), "hetero": ("--cut", CUT), "dp": (), "hetero-tensor": ("--gpu-share", 0.5)
}  # fmt: skip
in_every_mode = pytest.mark.parametrize(
    ("mode", "more"),
    [pytest.param(mode, more, marks=[] if mode == "npu" else needs_gpu, id=mode) for mode, more in MODES.items()],
)


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


def times(output: Path, pattern: str) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in output.glob(pattern)}
