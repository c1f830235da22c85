"""What `hvdc_runner` refuses of decoders, libraries and options."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from device_runtime.build import SOURCE
from exporters.qnn.available import BACKEND, SYSTEM
from tests.device_runtime.decoding.small import (
    VIDEOS,
    assert_decoded,
)
from tests.device_runtime.qnn_stand_in import add_binaries
from tests.device_runtime.runs import Done, Runner, stream_of


def refused(done: Done, output: Path, words: str, status: int) -> None:
    """At the start: no weight was read, nothing written."""
    assert done.status == status, done.said
    assert words in done.report["error"]["what"]
    assert not any("weights" in event.get("text", "") for event in done.events)
    assert not output.exists() or list(output.iterdir()) == []


@pytest.mark.parametrize("missing", [BACKEND, SYSTEM])
def test_a_library_that_is_missing(missing: str, runner: Runner, stand_in: Path, tmp_path: Path) -> None:
    libraries = tmp_path / "qnn"
    libraries.mkdir()
    other = {BACKEND, SYSTEM} - {missing}
    (libraries / other.pop()).symlink_to(stand_in / missing)
    done = runner.run(tmp_path / "out", "npu", "--qnn-libraries", libraries, "--emulator", "no")
    refused(done, tmp_path / "out", f"{missing}: cannot open shared object file", 5)


def test_libraries_of_other_names(runner: Runner, stand_in: Path, tmp_path: Path) -> None:
    libraries = tmp_path / "qnn"
    libraries.mkdir()
    (libraries / "libBackend.so").symlink_to(stand_in / BACKEND)
    (libraries / "libSystem.so").symlink_to(stand_in / SYSTEM)
    names = ("--qnn-backend", "libBackend.so", "--qnn-system", "libSystem.so")
    runner.finished(tmp_path / "out", "npu", "--qnn-libraries", libraries, "--emulator", "no", *names)
    assert_decoded(runner, tmp_path / "out")


def test_binaries_for_another_device(runner: Runner, decoding: tuple[object, ...], tmp_path: Path) -> None:
    done = runner.run(tmp_path / "out", "npu", *decoding, "--soc", 57, "--arch", 75)
    refused(done, tmp_path / "out", "is compiled for SoC 69, architecture V79; this device is SoC 57", 5)


def test_binaries_that_the_emulator_cannot_load(
    runner: Runner, runnable_artifact: Path, embeds: Path, stand_in: Path, tmp_path: Path
) -> None:
    shared = shutil.copytree(runnable_artifact, tmp_path / "shared.hvdc")
    add_binaries(shared, shared=True)
    stream = stream_of(tmp_path / "stream", shared, embeds, VIDEOS)
    other = Runner(runner.program, shared, stream, runner.kernels)
    done = other.run(tmp_path / "out", "npu", "--qnn-libraries", stand_in, "--emulator", "yes")
    refused(done, tmp_path / "out", "--set decoder_share_weights=false", 2)


def test_an_artifact_without_binaries(
    runner: Runner, runnable_artifact: Path, embeds: Path, decoding: tuple[object, ...], tmp_path: Path
) -> None:
    stream = stream_of(tmp_path / "stream", runnable_artifact, embeds, VIDEOS)
    other = Runner(runner.program, runnable_artifact, stream, runner.kernels)
    refused(other.run(tmp_path / "out", "npu", *decoding), tmp_path / "out", "it decodes on a host only", 2)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--soc", 69), "--soc has no effect without --qnn-libraries"),
        (("--emulator", "yes"), "--emulator has no effect without --qnn-libraries"),
        (("--qnn-libraries", "x", "--emulator", "perhaps"), "--emulator does not take perhaps"),
        (("--qnn-libraries", ""), "--qnn-libraries does not take an empty value"),
        (("--qnn-libraries", "x", "--arch", "v79"), "--arch does not take v79"),
    ],
)
def test_options_that_cannot_be_carried_out(
    more: tuple[object, ...], words: str, runner: Runner, tmp_path: Path
) -> None:
    refused(runner.run(tmp_path / "out", "npu", *more), tmp_path / "out", words, 2)


def test_a_program_without_the_decoder(runner: Runner, programs: dict[str, Path], tmp_path: Path) -> None:
    """As a build without device_runtime/decoder makes it: it makes latents, and says why it makes no more."""
    folder, parts = programs["hvdc_runner"].parent, ("coordinator", "npu", "host", "platform")
    sources = [path for path in (SOURCE / "runner" / "src").glob("*.c") if path.name != "clips.c"]
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    includes = [f"-I{SOURCE / part / 'include'}" for part in (*parts, "core", "npu/rpc")]
    libraries = [folder / part / f"libhvdc_{part}.a" for part in parts] + [folder / "libhvdc_core.a"]
    libraries.insert(1, folder / "npu" / "rpc" / "libhvdc_npu_dsp.a")
    program = tmp_path / "hvdc_runner"
    command = ["cc", *flags, *includes, *sources, *libraries, "-lm", "-lpthread", "-ldl", "-o", program]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    other = Runner(program, runner.artifact, runner.stream, runner.kernels)
    words = "this program was built without the decoder"
    refused(other.run(tmp_path / "out", "npu", "--qnn-libraries", tmp_path), tmp_path / "out", words, 2)
    assert other.finished(tmp_path / "out", "npu").report["finished"] == len(VIDEOS)
