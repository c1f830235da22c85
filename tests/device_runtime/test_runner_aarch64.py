"""The whole program for 64-bit ARM, under an emulator: another processor makes the same video to the bit.

Mode npu only: the emulator starts no second process, and has no OpenCL.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hvdc.pipeline.stream_file import StreamVideo
from tests import calibrations
from tests.device_runtime.builds import built
from tests.device_runtime.qnn_stand_in import add_binaries, build_stand_in
from tests.device_runtime.runs import Runner, stream_of

LIBRARIES = "/usr/aarch64-linux-gnu"
VIDEOS = [StreamVideo(0, 1), StreamVideo(2, 5)]


@pytest.fixture
def arm(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """How the program for ARM is started here."""
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("the runtime is not tested on ARM: there is no qemu-aarch64: apt-get install qemu-user")
    programs = built(tmp_path_factory, "aarch64-linux", "the runtime is not tested on ARM", ("hvdc_runner",))
    return [emulator, "-L", LIBRARIES, str(programs["hvdc_runner"])]


def assert_same(arm: list[str], here: Runner, folder: Path, libraries: dict[str, Path]) -> None:
    """Each file that the program leaves. ``libraries``: of QNN, for each machine; {}: nothing is decoded."""
    given = {where: ["--qnn-libraries", path] for where, path in libraries.items()}
    here.finished(folder / "here", "npu", *given.get("here", ()), *(["--emulator", "no"] if given else ()))
    command = [*arm, here.artifact, here.stream, "-o", folder / "there", "--mode", "npu", "-q", *given.get("arm", ())]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=120)
    names = sorted(path.name for path in (folder / "here").iterdir())
    assert len(names) == 2 * (2 if libraries else 1)
    assert sorted(path.name for path in (folder / "there").iterdir()) == names
    for name in names:
        assert (folder / "there" / name).read_bytes() == (folder / "here" / name).read_bytes()


def test_another_processor_makes_the_same_video(
    arm: list[str], programs: dict[str, Path], watched_checkpoint: Path, embeds: Path, tmp_path: Path
) -> None:
    artifact = tmp_path / "a.hvdc"
    assert calibrations.run_compile(watched_checkpoint, artifact, "-q").status == 0
    stream = stream_of(tmp_path / "stream", artifact, embeds, VIDEOS)
    assert_same(arm, Runner(programs["hvdc_runner"], artifact, stream, tmp_path), tmp_path, {})


def test_and_decodes_it_to_the_same_frames(
    arm: list[str], programs: dict[str, Path], stand_in: Path, runnable_artifact: Path, embeds: Path, tmp_path: Path
) -> None:
    """Through the stand-in for QNN's libraries, built for ARM too."""
    artifact = shutil.copytree(runnable_artifact, tmp_path / "a.hvdc")
    add_binaries(artifact)
    (tmp_path / "arm").mkdir()
    other = build_stand_in(tmp_path / "arm", sanitized=False, compiler="aarch64-linux-gnu-gcc")
    stream = stream_of(tmp_path / "stream", artifact, embeds, VIDEOS)
    here = Runner(programs["hvdc_runner"], artifact, stream, tmp_path)
    assert_same(arm, here, tmp_path, {"here": stand_in, "arm": other})
