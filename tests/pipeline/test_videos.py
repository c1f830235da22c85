"""A folder that VBench can score: names, contents, and nothing else inside."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from hvdc.errors import HvdcError, UsageError
from hvdc.pipeline.videos import export_videos, video_name

PROMPT = "A 3D model of a 1800s victorian house."


def clip(frames: int = 5, height: int = 32, width: int = 48, seed: int = 0) -> np.ndarray:
    """Smooth, as videos are."""
    rng = np.random.default_rng(seed)
    t, y, x = np.meshgrid(*(np.linspace(0, 1, n) for n in (frames, height, width)), indexing="ij")
    waves = [0.5 + 0.4 * np.sin(3 * t + rng.uniform(1, 5) * x + rng.uniform(1, 5) * y) for _ in range(3)]
    return np.stack(waves, axis=-1).astype(np.float32)


def read(path: Path) -> tuple[np.ndarray, float]:
    """Frames in [0, 1], and frames a second."""
    import av

    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        return np.stack(frames) / np.float32(255), float(container.streams.video[0].average_rate)


def names_that_vbench_looks_for(prompt: str, present: list[str]) -> list[str]:
    """VBench 0.1.5, build_full_info_json: the suffix is that of whichever file comes first."""
    suffix = Path(present[0]).suffix
    return [f"{prompt}-{i}{suffix}" for i in range(5)]


def prompt_that_vbench_reads(name: str) -> str:
    """VBench 0.1.5, get_prompt_from_filename."""
    return re.sub(r"-\d+$", "", Path(name).stem)


def test_vbench_finds_every_sample(tmp_path: Path) -> None:
    folder = tmp_path / "gpu" / "videos"
    done = export_videos(folder, ((PROMPT, i, clip(1)) for i in range(5)))
    present = [p.name for p in folder.iterdir()]
    assert sorted(present) == names_that_vbench_looks_for(PROMPT, present) == list(done.names)
    assert {prompt_that_vbench_reads(name) for name in present} == {PROMPT}
    assert done.renamed == ()


def test_frames_survive(tmp_path: Path) -> None:
    frames = clip(9, 64, 96)
    done = export_videos(tmp_path / "videos", [(PROMPT, 0, frames)], fps=16)
    video, fps = read(done.folder / done.names[0])
    assert video.shape == frames.shape
    assert fps == 16
    assert np.abs(video - frames).mean() < 0.01
    assert (
        np.abs((video - frames).mean(axis=(0, 1, 2))).max() < 0.008
    )  # no shift of colour beyond what an 8-bit reader truncates


def test_the_same_frames_make_the_same_bytes(tmp_path: Path) -> None:
    a, b = (export_videos(tmp_path / n, [(PROMPT, 0, clip())]) for n in "ab")
    assert (a.folder / a.names[0]).read_bytes() == (b.folder / b.names[0]).read_bytes()


HARD = ["and/or", "two\nlines", "x" * 250, "é" * 125, "nul\0", "\ud800"]
EASY = ["", ".", "..", "a: b?", "x" * 249, "é" * 124 + "x", "façades", "-", "take-5", 'a "quote" & $HOME']


@pytest.mark.parametrize("prompt", EASY)
def test_most_prompts_are_names(tmp_path: Path, prompt: str) -> None:
    done = export_videos(tmp_path / "v", [(prompt, 3, clip(1, 16, 16))])
    assert done.names == (f"{prompt}-3.mp4",)
    assert prompt_that_vbench_reads(done.names[0]) == prompt
    assert (done.folder / done.names[0]).is_file()


def test_prompts_that_are_no_names_are_in_the_mapping(tmp_path: Path) -> None:
    prompts = [*HARD[:-1], PROMPT]
    done = export_videos(tmp_path / "v", [(p, i, clip(1, 16, 16)) for p in prompts for i in (0, 10)])
    mapping = json.loads(done.prompts.read_text("utf-8"))
    assert done.prompts == tmp_path / "v.prompts.json"
    assert set(mapping) == {p.name for p in done.folder.iterdir()} == set(done.names)
    assert [mapping[name] for name in done.names] == [p for p in prompts for _ in range(2)]
    assert len(done.renamed) == 2 * len(HARD[:-1])
    assert all(re.fullmatch(r"prompt [0-9a-f]{16}-(0|10)\.mp4", name) for name in done.renamed)


@pytest.mark.parametrize("prompt", HARD)
def test_every_name_is_one_that_a_file_system_takes(prompt: str) -> None:
    name, as_given = video_name(prompt, 4)
    assert not as_given
    assert len(name.encode()) <= 255
    assert "/" not in name


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "notes.txt").touch()
    for place in (tmp_path / "v", tmp_path / "v" / "notes.txt"):
        with pytest.raises(UsageError, match="not empty"):
            export_videos(place, [])


def test_the_same_sample_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="same prompt and index"):
        export_videos(tmp_path / "v", [(PROMPT, 0, clip(1)), (PROMPT, 0, clip(1))])


def test_a_failure_leaves_whole_videos_only(tmp_path: Path) -> None:
    broken = clip(3)
    broken[2, 0, 0, 0] = np.nan
    with pytest.raises(HvdcError, match="not finite") as caught:
        export_videos(tmp_path / "v", [(PROMPT, 0, clip(3)), (PROMPT, 1, broken)])
    assert caught.value.where == f"{PROMPT}-1.mp4, frame 2"
    assert [p.name for p in (tmp_path / "v").iterdir()] == [f"{PROMPT}-0.mp4"]
    assert len(read(tmp_path / "v" / f"{PROMPT}-0.mp4")[0]) == 3


@pytest.mark.parametrize("bad", [clip(1, 31), clip(1).astype(np.float64), clip(1)[..., :2], clip(1)[0], clip(1)[:0]])
def test_what_is_no_clip_is_refused(tmp_path: Path, bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"clip|even"):
        export_videos(tmp_path / "v", [(PROMPT, 0, bad)])


def test_numbers_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="index -1"):
        export_videos(tmp_path / "v", [(PROMPT, -1, clip(1))])
    with pytest.raises(ValueError, match="0 frames a second"):
        export_videos(tmp_path / "w", [], fps=0)


def test_without_pyav_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(HvdcError) as caught:
        export_videos(tmp_path / "v", [])
    assert caught.value.fix == "pip install 'hvdc[quality]'"
    assert not (tmp_path / "v").exists()
