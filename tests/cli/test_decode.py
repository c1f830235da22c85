"""`hvdc decode`: latents become a clip that a person can look at."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from hvdc.pipeline.calibration_file import pack
from tests.commands import hvdc
from tests.decoders import random_latents, write_latents, write_vae

av = pytest.importorskip("av")
image = pytest.importorskip("PIL.Image")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "clip"


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """No frame is decoded."""

    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("frames were decoded")

    monkeypatch.setattr("hvdc.pipeline.host_decoder.HostDecoder.decode", refuse)


def pictures(folder: Path) -> np.ndarray:
    return np.stack([np.asarray(image.open(path)) for path in sorted(folder.iterdir())])


def test_a_clip_in_each_format(tiled_artifact: Path, latents: Path, tmp_path: Path) -> None:
    done = hvdc("decode", tiled_artifact, latents, "-o", tmp_path / "clip.mp4", "--clip", 1)
    assert done.status == 0, done.err
    assert done.out == f"wrote {tmp_path / 'clip.mp4'}: 5 frames of 64 × 48, INT8\n"
    assert "Traceback" not in done.err
    with av.open(str(tmp_path / "clip.mp4")) as container:
        found = np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])
    assert hvdc("decode", tiled_artifact, latents, "-o", tmp_path / "clip", "--clip", 1, "-q").status == 0
    exact = pictures(tmp_path / "clip")
    assert found.shape == exact.shape == (5, 48, 64, 3)
    assert hvdc("decode", tiled_artifact, latents, "-o", tmp_path / "clip.gif", "--clip", 1, "-q").status == 0
    with image.open(tmp_path / "clip.gif") as gif:
        assert (gif.n_frames, gif.size) == (5, (64, 48))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["clip", "clip.gif", "clip.mp4"]


def test_clips_are_counted_from_zero(tiled_artifact: Path, tmp_path: Path) -> None:
    values = random_latents(2)
    file = tmp_path / "l.safetensors"
    file.write_bytes(pack({"latents": values}, {"prompts": ["a cat", "a dog"]}))
    alone = write_latents(tmp_path / "one", values[1])
    done = hvdc("decode", tiled_artifact, file, "-o", tmp_path / "first")
    assert "note: the first of 2 clips: a cat; --clip N chooses another" in done.err
    assert done.out.endswith("INT8, 'a cat'\n")
    done = hvdc("decode", tiled_artifact, file, "-o", tmp_path / "second", "--clip", 1, "--json")
    facts = done.json()
    assert facts.pop("duration_s") > 0
    assert facts == {
        "output": str(tmp_path / "second"), "clip": 1, "prompt": "a dog", "frames": 5, "height": 48, "width": 64,
        "fps": 16, "arithmetic": "int8",
    }  # fmt: skip
    assert done.err == ""
    done = hvdc("decode", tiled_artifact, alone, "-o", tmp_path / "alone")
    assert "clips" not in done.err
    np.testing.assert_array_equal(pictures(tmp_path / "second"), pictures(tmp_path / "alone"))
    assert (pictures(tmp_path / "first") != pictures(tmp_path / "second")).any()


def test_in_float32(tiled_artifact: Path, latents: Path, vae: Path, tmp_path: Path) -> None:
    given = ("--fp32", "--vae", vae, "--json")
    facts = hvdc("decode", tiled_artifact, latents, "-o", tmp_path / "float", *given).json()
    assert facts["arithmetic"] == "fp32"
    hvdc("decode", tiled_artifact, latents, "-o", tmp_path / "int8", "-q")
    apart = pictures(tmp_path / "float").astype(int) - pictures(tmp_path / "int8")
    assert 0 < np.abs(apart).mean() < 8


def test_force_replaces_the_output(tiled_artifact: Path, latents: Path, output: Path) -> None:
    path = output.with_suffix(".gif")
    path.write_bytes(b"old")
    done = hvdc("decode", tiled_artifact, latents, "-o", path, "-q")
    assert done.status == 2
    assert path.read_bytes() == b"old"
    assert hvdc("decode", tiled_artifact, latents, "-o", path, "-q", "--force").status == 0
    assert path.read_bytes()[:3] == b"GIF"


def test_an_interrupt_writes_nothing(
    tiled_artifact: Path, latents: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hvdc.pipeline.host_decoder.HostDecoder.decode", stop)
    done = hvdc("decode", tiled_artifact, latents, "-o", output)
    assert done.status == 130
    assert "interrupted while decoding: nothing was written" in done.err
    assert list(output.parent.iterdir()) == []


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize(
    ("name", "more", "status", "words"),
    [
        ("clip.avi", (), 2, "this is no format for frames"),
        ("no/clip.mp4", (), 2, "the output's directory does not exist"),
        ("clip.mp4", ("--clip", 3), 2, "there is no such clip"),
        ("clip.mp4", ("--clip", -1), 2, "--clip"),
        ("clip.mp4", ("--fp32",), 2, "--fp32 and --vae belong together"),
        ("clip.mp4", ("--vae", "v"), 2, "--fp32 and --vae belong together"),
        ("clip.mp4", ("--fp32", "--vae", "nowhere"), 3, "there is no such file or folder"),
        ("clip.mp4", ("--fps", 0), 2, "--fps"),
    ],
)
def test_what_is_refused(
    name: str, more: tuple[object, ...], status: int, words: str, tiled_artifact: Path, latents: Path, tmp_path: Path
) -> None:
    done = hvdc("decode", tiled_artifact, latents, "-o", tmp_path / name, *more)
    assert done.status == status, done.err
    assert words in done.err
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


def test_there_are_clips_up_to(tiled_artifact: Path, latents: Path, output: Path) -> None:
    done = hvdc("decode", tiled_artifact, latents, "-o", output, "--clip", 3)
    assert "expected:  0 to 2" in done.err


def test_files_that_do_not_fit(tiled_artifact: Path, tiny_artifact: Path, latents: Path, tmp_path: Path) -> None:
    def refused(artifact: Path, file: Path, status: int, words: str, *more: object) -> None:
        done = hvdc("decode", artifact, file, "-o", tmp_path / "clip.mp4", *more)
        assert done.status == status, done.err
        assert words in done.err
        assert not (tmp_path / "clip.mp4").exists()

    refused(tmp_path / "nowhere", latents, 4, "nowhere")
    refused(tiny_artifact, latents, 2, "the artifact holds no decoder")
    refused(tiled_artifact, tmp_path / "nowhere", 3, "the latents cannot be read")
    refused(tiled_artifact, write_latents(tmp_path / "a", random_latents(channels=4)), 3, "another autoencoder")
    refused(tiled_artifact, write_latents(tmp_path / "b", random_latents(rows=3)), 2, "does not fit these latents")
    other = write_vae(tmp_path / "vae", seed=1)
    refused(tiled_artifact, latents, 1, "not the autoencoder", "--fp32", "--vae", other)


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize(
    ("name", "module", "words"),
    [("clip.mp4", "av", "writing videos needs PyAV"), ("clip", "PIL.Image", "writing GIF and PNG files needs Pillow")],
)
def test_a_missing_library_is_named_before_any_work(
    name: str, module: str, words: str, tiled_artifact: Path, latents: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, module, None)
    done = hvdc("decode", tiled_artifact, latents, "-o", tmp_path / name)
    assert done.status == 1
    assert words in done.err
    assert "pip install 'hvdc[quality]'" in done.err
    assert list(tmp_path.iterdir()) == []
