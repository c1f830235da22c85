"""`hvdc run --decode-with emulator`: the runtime decodes by the artifact's binaries, here through a stand-in for the
emulator's libraries, and once through Qualcomm's own."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.qnn.available import why_not
from hvdc.artifact.reader import open_artifact
from hvdc.pipeline import run as run_module
from hvdc.pipeline import run_decoders
from hvdc.pipeline.run_clips import strip_of
from hvdc.pipeline.run_frames import read_frames
from hvdc.pipeline.run_process import Watched
from hvdc.pipeline.run_results import read_result
from hvdc.progress import Silent
from tests.artifacts import read_manifest
from tests.cli import runs
from tests.commands import Result
from tests.decoders import compiled_decoder
from tests.device_runtime.qnn_stand_in import add_binaries, build_stand_in, decoded

image = pytest.importorskip("PIL.Image")
pytest.importorskip("av")

GIVEN = ("--mode", "npu", "--prompts-limit", 2)
EMULATED = ("--decode-with", "emulator")
APART = ("--set", "decoder_share_weights=false")


@pytest.fixture(autouse=True)
def _cache(runtimes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture(scope="module")
def artifact(runnable_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = shutil.copytree(runnable_artifact, tmp_path_factory.mktemp("apart") / "a.hvdc")
    add_binaries(copy)
    return copy


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stand_in(tmp_path_factory.mktemp("qnn"), sanitized=False)


@pytest.fixture
def _stand_in(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the installed emulator."""
    monkeypatch.setattr(run_decoders, "library_folder", lambda: libraries)
    monkeypatch.setattr(run_decoders, "why_not_read", lambda: "")
    monkeypatch.setattr(run_decoders, "other_build", lambda entry: "")


def run(artifact: Path, embeds: Path, output: Path, *more: object) -> Result:
    return runs.run(artifact, embeds, output, *GIVEN, *more)


def ran(artifact: Path, embeds: Path, output: Path, *more: object) -> Any:
    return runs.ran(artifact, embeds, output, *GIVEN, *more)


def assert_clips(artifact: Path, output: Path) -> None:
    """Strips, which lose nothing, are of the frames that the stand-in's graphs give for the latents."""
    entry = read_manifest(artifact).decoder
    assert entry is not None
    with open_artifact(artifact) as opened:
        for video in range(2):
            due = decoded(entry, read_result(output / "results" / f"video-{video:06d}.safetensors", opened))
            found = read_frames(output / "results" / f"video-{video:06d}.ppm", opened)
            np.testing.assert_array_equal(found.pixels, due)
            with image.open(output / "strips" / f"video-{video:06d}.png") as strip:
                np.testing.assert_array_equal(np.asarray(strip), strip_of(due.astype(np.float32) / np.float32(255)))
            assert (output / f"video-{video:06d}.mp4").stat().st_size > 0


@pytest.mark.usefixtures("_stand_in")
def test_clips_are_of_the_runtimes_frames(artifact: Path, embeds: Path, out: Path) -> None:
    done = run(artifact, embeds, out, *EMULATED)
    assert done.status == 0, done.err
    assert_clips(artifact, out)
    assert "on the x86 emulator of the NPU: Qualcomm's emulator on this machine, no phone" in done.out
    facts = ran(artifact, embeds, out, *EMULATED, "--resume")
    assert facts["decoded_by"] == "QNN v2.51.0.260929181845 on the x86 emulator of the NPU"
    assert [video["host_decode_s"] for video in facts["videos"]] == [None, None]
    assert all(video["decode_s"] > 0 for video in facts["videos"])


@pytest.mark.usefixtures("_stand_in")
def test_each_clip_says_what_decoded_it(artifact: Path, embeds: Path, out: Path) -> None:
    """Also where an earlier start of the same run decoded otherwise, and where the decoder was changed in between."""
    emulator, host = "QNN v2.51.0.260929181845 on the x86 emulator of the NPU", f"onnxruntime {version('onnxruntime')}"
    first = ran(artifact, embeds, out, *EMULATED)
    assert (first["decoded_by"], first["decoder"]["name"]) == (emulator, emulator)
    assert [video["decoded_by"] for video in first["videos"]] == [emulator] * 2
    again = ran(artifact, embeds, out, "--resume")
    assert (again["decoded_by"], again["decoder"]) == (host, None)
    assert [video["decoded_by"] for video in again["videos"]] == [host] * 2
    assert [video["decode_s"] for video in again["videos"]] == [0, 0]
    held = json.loads((out / "run.json").read_text())
    held["clips"]["video-000000.mp4"]["decoded_by"] = "onnxruntime 1.0"  # by an older one
    del held["clips"]["video-000001.mp4"]["decoded_by"]  # as it was kept before
    (out / "run.json").write_text(json.dumps(held))
    mixed = ran(artifact, embeds, out, "--resume")
    assert [video["host_decode_s"] for video in mixed["videos"]] == [None, None]
    assert [video["decoded_by"] for video in mixed["videos"]] == ["onnxruntime 1.0", "onnxruntime"]
    assert mixed["decoded_by"] == "onnxruntime 1.0, onnxruntime"
    back = ran(artifact, embeds, out, *EMULATED, "--resume")
    assert (back["decoded_by"], back["skipped"]) == (emulator, 2)
    assert all(video["decode_s"] > 0 for video in back["videos"])
    latents = ran(artifact, embeds, out, "--no-decode", "--resume")
    assert (latents["decoded_by"], latents["decoder"]) == (None, None)


@pytest.mark.usefixtures("_stand_in")
def test_latents_of_an_earlier_run_are_only_decoded(artifact: Path, embeds: Path, out: Path) -> None:
    first = ran(artifact, embeds, out, "--no-decode")
    again = ran(artifact, embeds, out, *EMULATED, "--resume")
    assert_clips(artifact, out)
    for earlier, video in zip(first["videos"], again["videos"], strict=True):
        assert (video["kept"], video["npu_s"]) == (True, earlier["npu_s"])
        assert video["decode_s"] > 0
    held = json.loads((out / "run.json").read_text())
    assert [held["videos"][str(i)]["npu_s"] for i in range(2)] == [video["npu_s"] for video in first["videos"]]


@pytest.mark.usefixtures("_stand_in")
def test_clips_of_another_decoder_are_made_again(artifact: Path, embeds: Path, out: Path) -> None:
    clip = out / "video-000000.mp4"
    ran(artifact, embeds, out, *EMULATED)
    held = json.loads((out / "run.json").read_text())
    assert held["clips"]["video-000000.mp4"]["decoder"] == "emulator"
    held["clips"]["video-000000.mp4"].pop("decoder")  # as one of onnxruntime has it
    (out / "run.json").write_text(json.dumps(held))
    before = [clip.stat().st_mtime_ns, (out / "video-000001.mp4").stat().st_mtime_ns]
    ran(artifact, embeds, out, *EMULATED, "--resume")
    after = [clip.stat().st_mtime_ns, (out / "video-000001.mp4").stat().st_mtime_ns]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True]


@pytest.mark.usefixtures("_stand_in")
def test_without_work_for_it_the_runtime_is_not_started(
    artifact: Path, embeds: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(artifact, embeds, out, *EMULATED)
    (out / "video-000001.mp4").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "run_runner", None)
        facts = ran(artifact, embeds, out, *EMULATED, "--resume")
    assert (facts["finished"], facts["skipped"]) == (0, 2)
    assert facts["decoded_by"] == "QNN v2.51.0.260929181845 on the x86 emulator of the NPU"
    assert_clips(artifact, out)
    (out / "results" / "video-000001.ppm").unlink()
    facts = ran(artifact, embeds, out, *EMULATED, "--resume")
    assert (facts["finished"], facts["skipped"]) == (1, 1)
    assert_clips(artifact, out)


def test_a_long_decoding_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 4.0, 11.0, 12.0, 30.0, 41.0])
    monkeypatch.setattr("hvdc.pipeline.run_process.time.monotonic", lambda: next(now))
    said: list[str] = []
    watched = Watched(2, 12, Silent(), said.append, lambda *cut: None)
    for video, done in ((0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2)):
        watched.take(json.dumps({"event": "decoding", "video": video, "position": 12, "done": done, "total": 4}))
    assert said == [f"video {video}: {done} of 4 latent frames of tiles decoded" for video, done in ((0, 3), (1, 2))]


# --- what is refused --------------------------------------------------------------------------------------------


def refused(done: Result, output: Path, words: str, fix: str) -> None:
    assert done.status == 2, done.err
    assert words in done.err
    assert fix in done.err
    assert not output.exists()


FIX = "--decoder-backend qnn --set decoder_share_weights=false"


def test_an_artifact_that_the_emulator_cannot_decode(
    runnable_artifact: Path, tiny_artifact: Path, embeds: Path, out: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(run_module, "find_runtime", None)
    refused(run(tiny_artifact, embeds, out, *EMULATED), out, "the artifact holds no decoder", FIX)
    done = run(runnable_artifact, embeds, out, *EMULATED)
    refused(done, out, "the artifact's decoder was not compiled for the NPU", FIX)
    shared = shutil.copytree(runnable_artifact, tmp_path / "shared.hvdc")
    add_binaries(shared, shared=True)
    done = run(shared, embeds, out, *EMULATED)
    refused(done, out, "their graphs share weights, and the emulator crashes on such", FIX)


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is here")
def test_binaries_of_another_build(artifact: Path, embeds: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "find_runtime", None)
    done = run(artifact, embeds, out, *EMULATED)
    refused(done, out, "the emulator is of another build than the artifact's binaries", FIX)
    assert "v2.50.0.test" in done.err


def test_without_an_emulator(artifact: Path, embeds: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "find_runtime", None)
    monkeypatch.setattr(run_decoders, "why_not_read", lambda: "there is none")
    refused(run(artifact, embeds, out, *EMULATED), out, "there is none", "pip install 'hvdc[qnn]'")


def test_an_option_without_effect(artifact: Path, embeds: Path, out: Path) -> None:
    done = run(artifact, embeds, out, *EMULATED, "--no-decode")
    refused(done, out, "--decode-with would have no effect", "leave out --no-decode")


# --- Qualcomm's emulator ----------------------------------------------------------------------------------------


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is here")
def test_by_the_emulator_itself(
    watched_checkpoint: Path, vae: Path, latents: Path, embeds: Path, out: Path, measured: Path, tmp_path: Path,
    runtimes: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Frames of one clip, as emulating takes long, are near those of onnxruntime; the bounds of one frame are in
    test_decoder_emulator.py."""
    with monkeypatch.context() as patch:
        patch.setenv("HVDC_CACHE_DIR", str(measured))
        given = ("--vae", vae, "--latents", latents, *APART)
        artifact = compiled_decoder(watched_checkpoint, tmp_path / "a.hvdc", *given, backend="qnn")
    given = ("--mode", "npu", "--prompts-limit", 1)
    facts = runs.ran(artifact, embeds, out, *given, *EMULATED)
    assert facts["decoded_by"].endswith("on the x86 emulator of the NPU")
    runs.ran(artifact, embeds, tmp_path / "other", *given)
    name = "strips/video-000000.png"
    with image.open(out / name) as one, image.open(tmp_path / "other" / name) as other:
        apart = np.abs(np.asarray(one).astype(np.int64) - np.asarray(other))
        assert np.asarray(one).std() > 10
    assert apart.mean() < 4
