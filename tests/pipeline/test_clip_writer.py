"""Frames as MP4, GIF or a folder of PNGs: whole or not at all, and refused before any work."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from hvdc import files
from hvdc.errors import HvdcError, UsageError
from hvdc.pipeline.clip_writer import check_clip_path, write_clip

av = pytest.importorskip("av")
image = pytest.importorskip("PIL.Image")

FRAMES = np.linspace(0, 1, 5 * 32 * 48 * 3, dtype=np.float32).reshape(5, 32, 48, 3)
PIXELS = np.rint(FRAMES * 255)


def beside(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir())


def test_an_mp4(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    write_clip(path, FRAMES, 16)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == 16
        found = np.stack([f.to_ndarray(format="rgb24") for f in container.decode(stream)])
    assert found.shape == PIXELS.shape
    assert np.abs(found - PIXELS).mean() < 4
    assert beside(path) == ["clip.mp4"]


def test_a_gif(tmp_path: Path) -> None:
    path = tmp_path / "clip.GIF"
    write_clip(path, FRAMES, 10)
    with image.open(path) as gif:
        assert (gif.n_frames, gif.size, gif.info["duration"], gif.info["loop"]) == (5, (48, 32), 100, 0)
    assert beside(path) == ["clip.GIF"]


def test_a_folder_of_pngs_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "clip"
    write_clip(path, FRAMES, 16)
    assert sorted(p.name for p in path.iterdir()) == [f"frame-{t:04d}.png" for t in range(5)]
    for t, due in enumerate(PIXELS):
        with image.open(path / f"frame-{t:04d}.png") as found:
            np.testing.assert_array_equal(np.asarray(found), due)
    assert path.stat().st_mode & 0o777 == 0o755
    assert beside(path) == ["clip"]


def test_a_shorter_clip_replaces_a_folder_of_frames(tmp_path: Path) -> None:
    path = tmp_path / "clip"
    write_clip(path, FRAMES, 16)
    check_clip_path(path, force=True)
    write_clip(path, FRAMES[:2], 16)
    assert len(list(path.iterdir())) == 2


@pytest.mark.parametrize("name", ["clip.mp4", "clip.gif", "clip"])
def test_a_failure_leaves_what_was_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / name
    write_clip(path, FRAMES[:2], 16)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    monkeypatch.setattr(image.Image, "save", full if name == "clip" else image.Image.save)
    with pytest.raises((HvdcError, OSError), match=r"disk is full|No space"):
        write_clip(path, FRAMES, 16)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("name", ["clip.mp4", "clip.gif", "clip"])
def test_nan_is_no_colour(name: str, tmp_path: Path) -> None:
    with pytest.raises(HvdcError, match="not finite"):
        write_clip(tmp_path / name, FRAMES * np.float32(np.nan), 16)
    assert list(tmp_path.iterdir()) == []


# --- before any work --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clip.avi", "clip.png", "clip.v2", "clip.mp4.part"])
def test_a_name_without_a_meaning(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no format for frames") as caught:
        check_clip_path(tmp_path / name, force=True)
    assert caught.value.expected == "NAME.mp4, NAME.gif, or a folder for PNG files"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="directory does not exist"):
        check_clip_path(tmp_path / "nowhere" / "clip.mp4", force=False)


@pytest.mark.parametrize("name", ["clip.mp4", "clip.gif", "clip"])
def test_what_exists_is_replaced_when_asked(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write_clip(path, FRAMES[:1], 16)
    with pytest.raises(UsageError, match="the output exists") as caught:
        check_clip_path(path, force=False)
    assert "--force" in caught.value.fix
    check_clip_path(path, force=True)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["holiday", "clip.gif"])
def test_a_folder_of_other_things_is_never_replaced(name: str, force: bool, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "photo.png").write_bytes(b"")
    with pytest.raises(UsageError, match="other things in it"):
        check_clip_path(tmp_path / name, force=force)


def test_a_file_does_not_become_a_folder(tmp_path: Path) -> None:
    (tmp_path / "clip").write_bytes(b"")
    with pytest.raises(UsageError, match="frames become a folder"):
        check_clip_path(tmp_path / "clip", force=True)


MISSING = [
    ("clip.mp4", "av", "writing videos needs PyAV, which is not installed"),
    ("clip.gif", "PIL.Image", "writing GIF and PNG files needs Pillow, which is not installed"),
    ("clip", "PIL.Image", "writing GIF and PNG files needs Pillow, which is not installed"),
]


@pytest.mark.parametrize(("name", "module", "words"), MISSING)
def test_a_missing_library_is_named_at_once(
    name: str, module: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError):
        importlib.import_module(module)
    with pytest.raises(HvdcError, match=words) as caught:
        check_clip_path(tmp_path / name, force=False)
    assert "pip install 'hvdc[quality]'" in caught.value.fix
    with pytest.raises(HvdcError, match=words):
        write_clip(tmp_path / name, FRAMES, 16)
    assert list(tmp_path.iterdir()) == []
