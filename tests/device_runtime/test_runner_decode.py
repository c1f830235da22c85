"""`hvdc_runner` decoding by the artifact's binaries, through a stand-in for QNN's libraries. Built with sanitizers."""

from __future__ import annotations

import contextlib
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

from device_runtime.build import SOURCE
from exporters.qnn.available import BACKEND, SYSTEM
from hvdc.artifact.reader import open_artifact
from hvdc.errors import HvdcError
from hvdc.pipeline.run_frames import Frames, read_frames
from hvdc.pipeline.run_results import read_result
from hvdc.pipeline.stream_file import StreamVideo
from tests.artifacts import read_manifest
from tests.device_runtime.decoder_program import Decoded
from tests.device_runtime.qnn_stand_in import add_binaries, decoded
from tests.device_runtime.runs import Done, Runner, children_of, outcome, stream_of, wait_for, why_no_gpu

VIDEOS = (StreamVideo(0, 1), StreamVideo(1, 2), StreamVideo(1, 3))
RATES = ("--gpu-block-s", 0.0001, "--npu-block-s", 0.0001)
"""Far less than a block takes here, so that a policy changes its mind."""
PIECES = 8
"""Two latent frames of two by two tiles."""
CUT = 5

needs_gpu = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")
MODES: dict[str, tuple[object, ...]] = {
    "npu": (), "gpu": (), "hetero": ("--cut", CUT), "dp": (), "hetero-tensor": ("--gpu-share", 0.5)
}  # fmt: skip
in_every_mode = pytest.mark.parametrize(
    ("mode", "more"),
    [pytest.param(mode, more, marks=[] if mode == "npu" else needs_gpu, id=mode) for mode, more in MODES.items()],
)


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


@pytest.fixture(scope="module")
def decoded_once(runner: Runner, stand_in: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("decoded") / "out"
    runner.finished(output, "npu", "--qnn-libraries", stand_in, "--emulator", "no")
    return output


@pytest.fixture
def finished(decoded_once: Path, tmp_path: Path) -> Path:
    """What a run of mode npu that decoded has left: a copy of a test's own."""
    return Path(shutil.copytree(decoded_once, tmp_path / "finished"))


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


@in_every_mode
def test_frames_are_those_of_the_latents(
    mode: str, more: tuple[object, ...], runner: Runner, decoding: tuple[object, ...], tmp_path: Path
) -> None:
    """To the bit: the host decoder's tiles and blending around the stand-in's graphs."""
    done = runner.finished(tmp_path / "out", mode, *more, *decoding)
    assert_decoded(runner, tmp_path / "out")
    assert all(video["decode_s"] > 0 for video in done.report["videos"])


def test_frames_are_those_of_the_decoders_own_program(
    runner: Runner, finished: Path, programs: dict[str, Path], stand_in: Path, tmp_path: Path
) -> None:
    alone = Decoded(programs["hvdc_decoder_check"], stand_in, tmp_path)
    for video in range(len(VIDEOS)):
        due = alone.frames(runner.artifact, latent(runner, finished, video))
        np.testing.assert_array_equal(frames(runner, finished, video).pixels, due)


def test_latents_are_those_of_a_run_that_does_not_decode(runner: Runner, finished: Path, tmp_path: Path) -> None:
    done = runner.finished(tmp_path / "latents", "npu")
    assert done.report["decoder"] is None
    assert not list((tmp_path / "latents").glob("*.ppm"))
    for path in (tmp_path / "latents").iterdir():
        assert path.read_bytes() == (finished / path.name).read_bytes()


def test_a_file_of_frames_is_a_video_to_other_programs(runner: Runner, finished: Path) -> None:
    av, image = pytest.importorskip("av"), pytest.importorskip("PIL.Image")
    due = frames(runner, finished, 1).pixels
    path = str(finished / "video-000001.ppm")
    with av.open(path) as container:
        found = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    np.testing.assert_array_equal(np.stack(found), due)
    with image.open(path) as first:
        np.testing.assert_array_equal(np.asarray(first), due[0])


def test_what_is_said_while_it_decodes(runner: Runner, decoding: tuple[object, ...], tmp_path: Path) -> None:
    """The library's own line is no part of the report, which is all of standard output."""
    trace = tmp_path / "trace.json"
    done = runner.finished(tmp_path / "out", "npu", *decoding, "--trace", trace)
    assert "# LIBNATIVE of the stand-in" in done.said
    told = [(e["video"], e["done"], e["total"]) for e in done.events if e["event"] == "decoding"]
    assert told == [(video, piece + 1, PIECES) for video in range(len(VIDEOS)) for piece in range(PIECES)]
    spans = [e for e in json.loads(trace.read_text()) if e.get("ph") == "X" and e["name"] == "decode"]
    assert [span["args"]["video"] for span in spans] == [0, 1, 2]
    for span, video in zip(spans, done.report["videos"], strict=True):
        assert span["dur"] == pytest.approx(1e6 * video["decode_s"], abs=2)
    said = done.report["decoder"]
    assert said["name"] == "QNN v2.51.0.260929181845 on the NPU"
    assert (said["binary_build"], said["emulator"], said["contexts_loaded"]) == ("v2.50.0.test", False, 2)
    assert said["clip_bytes"] > 5 * 48 * 64 * 3
    assert any("decoder: QNN v2.51" in event.get("text", "") for event in done.events)


def test_its_memory_is_forecast_and_refused(runner: Runner, decoding: tuple[object, ...], tmp_path: Path) -> None:
    """To the byte: its inputs and outputs, a clip's frames and what is blended, and its latent."""
    done = runner.finished(tmp_path / "out", "npu", *decoding)
    said, due = done.report["decoder"], done.report["forecast"]
    assert due["decoder_bytes"] == said["buffer_bytes"] + said["clip_bytes"] + said["latent_bytes"] > 100_000
    without = sum(due.values()) - due["decoder_bytes"]
    limit = sum(due.values()) >> 20
    refusal = runner.run(tmp_path / "refused", "npu", *decoding, "--memory-mib", limit)
    assert (refusal.status, refusal.report["error"]["kind"]) == (1, "memory")
    assert f"the decoder {due['decoder_bytes'] / 2**20:.1f} MiB; raise --memory-mib" in refusal.said
    assert runner.finished(tmp_path / "enough", "npu", *decoding, "--memory-mib", limit + 1).report["finished"] == 3
    assert runner.finished(tmp_path / "later", "npu", "--memory-mib", (without >> 20) + 1).report["finished"] == 3


def test_a_library_that_prints_holds_nothing_up(runner: Runner, decoding: tuple[object, ...], tmp_path: Path) -> None:
    """It is loaded in the process of the NPU, and says its line when a pipe that nobody reads is full already."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    with (tmp_path / "report").open("w+b") as report:
        command = runner.command(tmp_path / "out", "npu", *decoding)
        child = subprocess.Popen(command, stdout=report, stderr=writer)
        os.close(writer)
        assert child.wait(timeout=60) == 0
        os.close(reader)
        report.seek(0)
        assert json.load(report)["finished"] == len(VIDEOS)
    assert_decoded(runner, tmp_path / "out")


# --- going on ---------------------------------------------------------------------------------------------------


def times(output: Path, pattern: str) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in output.glob(pattern)}


@in_every_mode
def test_latents_that_are_there_are_only_decoded(
    mode: str, more: tuple[object, ...], runner: Runner, decoding: tuple[object, ...], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    first = runner.finished(output, mode, *more)
    before = times(output, "*.safetensors")
    done = runner.finished(output, mode, *more, *decoding, "--resume")
    assert (done.report["finished"], done.report["skipped"]) == (3, 0)
    for video, earlier in zip(done.report["videos"], first.report["videos"], strict=True):
        assert (video["kept"], video["gpu_s"], video["npu_s"], video["cpu_s"]) == (True, 0, 0, 0)
        assert video["gpu_blocks"] == earlier["gpu_blocks"], "of the latent that is there"
        assert video["decode_s"] > 0
    assert not [event for event in done.events if event["event"] == "blocks"]
    assert_decoded(runner, output)
    assert times(output, "*.safetensors") == before
    again = runner.finished(output, mode, *more, *decoding, "--resume")
    assert (again.report["finished"], again.report["skipped"]) == (0, 3)


@pytest.mark.parametrize("what", ["last byte", "header", "shorter", "longer", "empty", "gone", "a latent"])
def test_frames_that_are_not_whole_are_decoded_again(
    what: str, runner: Runner, decoding: tuple[object, ...], finished: Path
) -> None:
    path = finished / "video-000001.ppm"
    whole = path.read_bytes()
    damaged = {
        "last byte": whole[:-1] + bytes([whole[-1] ^ 1]), "header": whole.replace(b'"video":"1"', b'"video":"3"'),
        "shorter": whole[:-1], "longer": whole + b"\0", "empty": b"",
    }  # fmt: skip
    if what == "gone":
        path.unlink()
    elif what == "a latent":
        path.with_suffix(".safetensors").unlink()
    else:
        path.write_bytes(damaged[what])
        with pytest.raises(HvdcError, match="a video's frames cannot be used"):
            frames(runner, finished, 1)
    before = times(finished, "video-00000[02].*")
    done = runner.finished(finished, "npu", *decoding, "--resume")
    assert [(v["skipped"], v["kept"]) for v in done.report["videos"]] == [
        (True, False), (False, what != "a latent"), (True, False)
    ]  # fmt: skip
    assert path.read_bytes() == whole
    assert times(finished, "video-00000[02].*") == before


def test_any_flipped_bit_is_seen(runner: Runner, finished: Path) -> None:
    path = finished / "video-000000.ppm"
    whole, rng = path.read_bytes(), random.Random(7)
    places = [*range(0, 700, 7), *(rng.randrange(len(whole)) for _ in range(100))]
    for place in places:
        data = bytearray(whole)
        data[place] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        with pytest.raises(HvdcError):
            frames(runner, finished, 0)


def test_frames_of_another_decoder_are_not_replaced(
    runner: Runner, decoding: tuple[object, ...], finished: Path
) -> None:
    before = times(finished, "*")
    env = {"STAND_IN": "build=v2.52.0.1"}
    done = runner.run(finished, "npu", *decoding, "--resume", env=env)
    assert done.status == 2
    assert (
        "video-000000.ppm holds the frames of another artifact or latent, or of another decoder than QNN"
        in (done.report["error"]["what"])
    )
    assert times(finished, "*") == before


def test_frames_that_are_there_are_not_replaced(runner: Runner, decoding: tuple[object, ...], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "video-000002.ppm").write_bytes(b"mine")
    done = runner.run(tmp_path / "out", "npu", *decoding)
    assert (done.status, "video-000002.ppm is there already" in done.said) == (1, True)
    assert (tmp_path / "out" / "video-000002.ppm").read_bytes() == b"mine"


# --- what is refused --------------------------------------------------------------------------------------------


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


# --- faults -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 11, 23])
def test_a_frame_that_is_not_decoded(after: int, runner: Runner, decoding: tuple[object, ...], tmp_path: Path) -> None:
    """The video before it is whole, the latent of its own is kept; a resumed stream does what is left."""
    output = tmp_path / "out"
    done = runner.run(output, "npu", *decoding, env={"STAND_IN": f"execute=1100 after={after}"})
    video, frame = after // PIECES, after % 2
    assert done.status == 5
    assert done.report["error"]["what"].startswith(f"video {video} cannot be decoded: the NPU does not execute graph ")
    assert f"on latent frame {frame}: error 1100" in done.report["error"]["what"]
    names = {path.name for path in output.iterdir()}
    assert names == {
        *(f"video-{i:06d}.ppm" for i in range(video)), *(f"video-{i:06d}.safetensors" for i in range(video + 1))
    }  # fmt: skip
    rest = runner.finished(output, "npu", *decoding, "--resume")
    assert [(v["skipped"], v["kept"]) for v in rest.report["videos"]] == [(i < video, i == video) for i in range(3)]
    assert_decoded(runner, output)


@pytest.mark.parametrize("on_stop", ["abandon", "finish"])
def test_a_signal_while_it_decodes(on_stop: str, runner: Runner, decoding: tuple[object, ...], tmp_path: Path) -> None:
    output = tmp_path / "out"
    with runner.started(output, "npu", *decoding, "--on-stop", on_stop) as child:
        wait_for(child, "decoding")
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=60)
    done = outcome(child.returncode, out, err)
    assert (done.status, done.report["stopped"]) == (130, True)
    finished = int(on_stop == "finish")
    assert done.report["finished"] == finished
    names = {"video-000000.safetensors", *(["video-000000.ppm"] if finished else [])}
    assert {path.name for path in output.iterdir()} == names
    rest = runner.finished(output, "npu", *decoding, "--resume")
    assert (rest.report["skipped"], rest.report["videos"][0]["kept"]) == (finished, not finished)
    assert_decoded(runner, output)


@pytest.mark.parametrize(
    ("mode", "more"),
    [("npu", ()), pytest.param("hetero", ("--cut", CUT), marks=needs_gpu),
     pytest.param("hetero", ("--policy", "adaptive", *RATES), marks=needs_gpu)],
    ids=["npu", "hetero", "adaptive"],
)  # fmt: skip
def test_killed_at_random_moments(
    mode: str, more: tuple[object, ...], runner: Runner, decoding: tuple[object, ...], tmp_path: Path
) -> None:
    """Whatever has its name is whole, and stays as it is."""
    output, rng, kept = tmp_path / "out", random.Random(mode), dict[str, int]()
    for _ in range(5):
        with runner.started(output, mode, *more, *decoding, "--resume") as child:
            seen = 0
            for line in child.stderr or ():
                seen += '"event": "decoding"' in line
                if seen and rng.random() < 0.2:
                    break
            child.kill()
            child.communicate()
        held = times(output, "video-*")
        assert {name: held[name] for name in kept} == kept
        kept = held
        for path in output.glob("video-*.ppm"):
            assert frames(runner, output, int(path.stem[-6:])).pixels.std() > 0
    runner.finished(output, mode, *more, *decoding, "--resume")
    held = times(output, "video-*")
    assert {name: held[name] for name in kept} == kept
    assert_decoded(runner, output)


def test_a_full_disk(
    runner: Runner, decoding: tuple[object, ...], mounted: Callable[..., Path], tmp_path: Path
) -> None:
    """Room for one video, and for the latent of the next."""
    place = mounted(96 << 10)
    output = place / "out"
    done = runner.run(output, "npu", *decoding)
    assert done.status == 1
    assert done.report["error"]["kind"] == "file"
    assert "video-000001.ppm cannot be written: No space left on device" in done.report["error"]["what"]
    assert {path.name for path in output.iterdir()} == {
        "video-000000.ppm", "video-000000.safetensors", "video-000001.safetensors"
    }  # fmt: skip
    subprocess.run(["mount", "-o", "remount,size=1m", place], check=True)
    rest = runner.finished(output, "npu", *decoding, "--resume")
    assert [(v["skipped"], v["kept"]) for v in rest.report["videos"]] == [(True, False), (False, True), (False, False)]
    assert_decoded(runner, output)


@needs_gpu
def test_a_gpu_process_that_dies_while_the_npu_decodes(
    runner: Runner, decoding: tuple[object, ...], tmp_path: Path
) -> None:
    with runner.started(tmp_path / "out", "hetero", "--cut", CUT, *decoding) as child:
        wait_for(child, "decoding")
        [worker] = children_of(child.pid)
        os.kill(worker, signal.SIGKILL)
        out, err = child.communicate(timeout=100)
    done = outcome(child.returncode, out, err)
    assert (done.status, done.report["gpu_lost"], done.report["finished"]) == (0, True, 3), done.said
    assert_decoded(runner, tmp_path / "out")
