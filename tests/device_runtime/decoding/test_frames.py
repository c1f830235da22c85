"""`hvdc_runner` decoding by the artifact's binaries, through a stand-in for QNN's libraries. Built with sanitizers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from hvdc.errors import HvdcError
from tests.device_runtime.decoder_program import Decoded
from tests.device_runtime.decoding.small import (
    PIECES,
    VIDEOS,
    assert_decoded,
    frames,
    in_every_mode,
    latent,
    times,
)
from tests.device_runtime.runs import Runner


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


# --- going on ---------------------------------------------------------------------------------------------------


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
