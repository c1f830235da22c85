"""The whole program for 64-bit ARM, under an emulator: another processor makes the same video to the bit.

Mode npu only: the emulator starts no second process, and has no OpenCL.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from hvdc.pipeline.stream_file import StreamVideo
from tests import calibrations
from tests.device_runtime.builds import built
from tests.device_runtime.runs import Runner, stream_of, tokens

LIBRARIES = "/usr/aarch64-linux-gnu"


def test_another_processor_makes_the_same_video(
    programs: dict[str, Path], watched_checkpoint: Path, embeds: Path, tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("the runtime is not tested on ARM: there is no qemu-aarch64: apt-get install qemu-user")
    arm = built(tmp_path_factory, "aarch64-linux", "the runtime is not tested on ARM", ("hvdc_runner",))["hvdc_runner"]
    artifact = tmp_path / "a.hvdc"
    assert calibrations.run_compile(watched_checkpoint, artifact, "-q").status == 0
    stream = stream_of(tmp_path / "stream", artifact, embeds, [StreamVideo(0, 1), StreamVideo(2, 5)])
    Runner(programs["hvdc_runner"], artifact, stream, tmp_path).finished(tmp_path / "here", "npu")
    command = [emulator, "-L", LIBRARIES, arm, artifact, stream, "-o", tmp_path / "there", "--mode", "npu", "-q"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=120)
    for video in range(2):
        np.testing.assert_array_equal(tokens(tmp_path / "there", video), tokens(tmp_path / "here", video))
        name = f"video-{video:06d}.safetensors"
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
