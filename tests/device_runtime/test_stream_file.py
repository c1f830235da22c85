"""The stream's file: what Python writes, C reads; whatever is wrong with it is said in a sentence."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporters.prompts import read_prompts
from hvdc.artifact.reader import open_artifact
from hvdc.artifact.stream_records import HEADER, MAX_VIDEOS, STREAM_NAME, VIDEO
from hvdc.errors import HvdcError, UsageError
from hvdc.pipeline.sources import ArtifactSource
from hvdc.pipeline.stream_file import StreamVideo, planned_videos, write_stream
from quant.paths.host import initial_noise, to_tokens
from tests import calibrations
from tests.device_runtime.programs import Checker

VIDEOS = (StreamVideo(2, 7), StreamVideo(0, 7), StreamVideo(2, 8))
"""Two of three prompts: what nobody asks for is not written."""


@pytest.fixture(scope="module")
def small_artifact(watched_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("small") / "small.hvdc"
    done = calibrations.run_compile(watched_checkpoint, output, "-q")
    assert done.status == 0, done.err
    return output


@pytest.fixture(scope="module")
def stream(small_artifact: Path, embeds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stream")
    with open_artifact(small_artifact) as artifact, read_prompts(embeds) as prompts:
        write_stream(folder, artifact, prompts, VIDEOS)
    return folder


def header_of(data: bytes) -> np.void:
    return np.frombuffer(data[: HEADER.bytes], HEADER.dtype)[0]


def sealed(data: bytes) -> bytes:
    """With the right SHA-256, so that only other checks can object."""
    at = HEADER.offset("sha256")
    blank = data[:at] + bytes(32) + data[at + 32 :]
    return data[:at] + hashlib.sha256(blank).digest() + data[at + 32 :]


def test_both_files_hold_what_was_asked_for(stream: Path, small_artifact: Path, embeds: Path) -> None:
    data = (stream / STREAM_NAME).read_bytes()
    header = header_of(data)
    with open_artifact(small_artifact) as artifact, read_prompts(embeds) as prompts:
        assert header["artifact_sha256"].tobytes() == artifact.index.header["index_sha256"].tobytes()
        source, video = ArtifactSource(artifact), artifact.manifest.video
        latents = np.frombuffer(data, "<f4", 3 * video.tokens * 64, int(header["latents_offset"])).reshape(3, -1, 64)
        held = np.frombuffer(data, "<f4", offset=int(header["embeds_offset"]))[: 2 * prompts.embeds[0].size]
        for latent, asked in zip(latents, VIDEOS, strict=True):
            noise = initial_noise(asked.seed, source.shape.in_channels, video.latent)
            np.testing.assert_array_equal(latent, to_tokens(noise, source.shape).numpy())
        np.testing.assert_array_equal(held.reshape(2, *prompts.embeds[0].shape), [prompts.embeds[0], prompts.embeds[2]])
    table = np.frombuffer(data, VIDEO.dtype, 3, int(header["videos_offset"]))
    assert table["prompt"].tolist() == [1, 0, 1]
    assert table["seed"].tolist() == [7, 7, 8]
    described = json.loads((stream / "stream.json").read_text("utf-8"))
    assert [(v["prompt"], v["seed"], v["text"]) for v in described["videos"]] == [
        (2, 7, "prompt 2 of 0"), (0, 7, "prompt 0 of 0"), (2, 8, "prompt 2 of 0")
    ]  # fmt: skip
    assert described["stream_sha256"] == header["sha256"].tobytes().hex()
    assert sorted(p.name for p in stream.iterdir()) == ["stream.bin", "stream.json"]


def test_c_reads_it(stream: Path, checker: Checker) -> None:
    assert checker.stream(stream) == ""


def test_a_flipped_bit_anywhere_is_found(stream: Path, checker: Checker, tmp_path: Path) -> None:
    data = (stream / STREAM_NAME).read_bytes()
    rng = np.random.default_rng(3)
    for at in (*range(HEADER.bytes + 3 * VIDEO.bytes), *rng.integers(0, len(data), 100), len(data) - 1):
        flipped = bytearray(data)
        flipped[at] ^= 1 << int(rng.integers(8))
        (tmp_path / STREAM_NAME).write_bytes(flipped)
        assert checker.stream(tmp_path) != "", at


def test_a_file_cut_anywhere_is_refused(stream: Path, checker: Checker, tmp_path: Path) -> None:
    data = (stream / STREAM_NAME).read_bytes()
    for size in (*range(0, 300, 7), len(data) // 2, len(data) - 64, len(data) - 1):
        (tmp_path / STREAM_NAME).write_bytes(data[:size])
        assert "it was cut short" in checker.stream(tmp_path)
    (tmp_path / STREAM_NAME).write_bytes(data + bytes(64))
    assert "its header says" in checker.stream(tmp_path)


def field(name: str, value: object) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        header = np.frombuffer(data, HEADER.dtype, 1)
        header[name] = value

    return change


def video(name: str, value: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        np.frombuffer(data, VIDEO.dtype, 3, int(header_of(bytes(data))["videos_offset"]))[name][1] = value

    return change


def value(section: str, number: float) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        struct.pack_into("<f", data, int(header_of(bytes(data))[section]) + 40, number)

    return change


def one_video_fewer(data: bytearray) -> None:
    """The last latent would be read as an embedding."""
    field("videos", 2)(data)


def overflow(data: bytearray) -> None:
    field("tokens", 2**31)(data)
    field("latent_values", 2**31)(data)


SIZES = "do not make"
MALFORMED: list[tuple[str, Callable[[bytearray], None], str]] = [
    ("another magic", field("magic", 0), "does not begin with HVDCSTR"),
    ("another version", field("version", 2), "has version 2, this program reads 1"),
    ("another header", field("header_bytes", 144), "its header has 144 bytes, expected 136"),
    ("no videos", field("videos", 0), "videos is 0"),
    ("no prompts", field("prompts", 0), "prompts is 0"),
    ("too many videos", field("videos", MAX_VIDEOS + 1), "at most 100000"),
    ("no tokens", field("tokens", 0), "tokens is 0"),
    ("tokens that overflow", field("tokens", 2**32 - 1), SIZES),
    ("values that overflow", field("latent_values", 2**32 - 1), SIZES),
    ("both overflow to next to nothing", overflow, SIZES),
    ("embeddings that overflow", field("text_width", 2**31), SIZES),
    ("one video fewer", one_video_fewer, SIZES),
    ("videos elsewhere", field("videos_offset", 128), "are said to start at 128"),
    ("latents elsewhere", field("latents_offset", 2**63), "are said to start at"),
    ("embeddings in the latents", field("embeds_offset", 256), "are said to start at"),
    ("a prompt beyond the last", video("prompt", 2), "video 1 takes prompt 2"),
    ("something reserved", video("reserved", 1), "(reserved 1)"),
    ("a NaN latent", value("latents_offset", float("nan")), "value 10 of the latents is not finite"),
    ("an infinite embedding", value("embeds_offset", float("inf")), "value 10 of the embeddings is not finite"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "words"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_a_sealed_file_that_is_malformed(
    damage: Callable[[bytearray], None], words: str, stream: Path, checker: Checker, tmp_path: Path
) -> None:
    data = bytearray((stream / STREAM_NAME).read_bytes())
    damage(data)
    (tmp_path / STREAM_NAME).write_bytes(sealed(bytes(data)))
    said = checker.stream(tmp_path)
    assert words in said
    assert str(tmp_path) in said


NUMBERS = st.sampled_from([0, 1, 2, 3, 63, 64, 65, 136, 192, 2**16, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 33), NUMBERS, st.booleans()), min_size=1, max_size=4))
def test_no_header_makes_the_reader_look_beyond_the_file(
    stream: Path, checker: Checker, tmp_path: Path, changes: list[tuple[int, int, bool]]
) -> None:
    """Numbers at random in its fields, sealed again; a sanitizer watches. Only what means the same is accepted."""
    whole = (stream / STREAM_NAME).read_bytes()
    data = bytearray(whole)
    for word, number, wide in changes:
        size = min(8 if wide else 4, HEADER.bytes - 4 * word)
        data[4 * word : 4 * word + size] = number.to_bytes(8, "little")[:size]
    (tmp_path / STREAM_NAME).write_bytes(sealed(bytes(data)))
    if checker.stream(tmp_path) == "":
        found, due = header_of(bytes(data)), header_of(whole)
        names = [field.name for field in HEADER.fields if field.name not in ("sha256", "artifact_sha256")]
        assert [name for name in names if not np.array_equal(found[name], due[name])] == []


def test_what_is_no_regular_file_is_refused(stream: Path, checker: Checker, tmp_path: Path) -> None:
    path = tmp_path / STREAM_NAME
    assert "cannot be opened: No such file" in checker.stream(tmp_path)
    os.mkfifo(path)
    assert "not a regular file" in checker.stream(tmp_path)
    path.unlink()
    path.symlink_to(stream / STREAM_NAME)
    assert "cannot be opened" in checker.stream(tmp_path)
    assert "too long" in checker.stream(Path("/" + 4085 * "x"))


def test_the_same_request_gives_the_same_bytes(
    stream: Path, small_artifact: Path, embeds: Path, tmp_path: Path
) -> None:
    with open_artifact(small_artifact) as artifact, read_prompts(embeds) as prompts:
        write_stream(tmp_path, artifact, prompts, VIDEOS)
    for name in ("stream.bin", "stream.json"):
        assert (tmp_path / name).read_bytes() == (stream / name).read_bytes()


def test_a_full_disk_leaves_nothing(small_artifact: Path, embeds: Path, mounted: Callable[..., Path]) -> None:
    place = mounted(4096)
    with (
        open_artifact(small_artifact) as artifact, read_prompts(embeds) as prompts,
        pytest.raises(HvdcError, match="the disk is full"),
    ):  # fmt: skip
        write_stream(place, artifact, prompts, VIDEOS)
    assert list(place.iterdir()) == []


def test_videos_are_every_prompt_with_each_seed() -> None:
    assert planned_videos(2, (5, 6), None) == (
        StreamVideo(0, 5), StreamVideo(1, 5), StreamVideo(0, 6), StreamVideo(1, 6)
    )  # fmt: skip
    assert planned_videos(2, (5, 6), 3) == planned_videos(2, (5, 6), None)[:3]
    with pytest.raises(UsageError, match="fewer videos than were asked for"):
        planned_videos(2, (5,), 3)
    with pytest.raises(UsageError, match="too many videos"):
        planned_videos(MAX_VIDEOS, (1, 2), None)
