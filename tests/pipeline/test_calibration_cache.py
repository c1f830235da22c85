"""Calibrations that `hvdc compile --prompts` ran and kept."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tests.calibrations import (
    SHORT,
    assert_refused,
    calibrated,
    run_compile,
    stopped_after,
    trajectories_run,
    write_embeds,
    write_model,
)
from tests.commands import Result, tree

pytestmark = pytest.mark.usefixtures("known_speed")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "a.hvdc"


def with_prompts(checkpoint: Path, prompts: Path, output: Path, *more: object) -> tuple[Result, int]:
    """Compile with the short schedule; how many trajectories that ran."""
    given = ("--prompts", prompts, "--force", *more)
    done, ran = trajectories_run(lambda: run_compile(checkpoint, output, *given, settings=SHORT))
    assert done.status == 0, done.err
    return done, ran


def test_prompts_are_run_once(
    watched_checkpoint: Path, embeds: Path, output: Path, calibration_cache: Path, tmp_path: Path
) -> None:
    done, ran = with_prompts(watched_checkpoint, embeds, output)
    assert (ran, "cache" in done.err) == (3, False)
    first = tree(output)
    (kept,) = calibration_cache.iterdir()
    file = calibrated(watched_checkpoint, embeds, tmp_path / "c.safetensors", settings=SHORT)
    assert kept.read_bytes() == file.read_bytes()
    done, ran = with_prompts(watched_checkpoint, embeds, output)
    assert (ran, f"calibration taken from the cache: {kept}" in done.err) == (0, True)
    assert tree(output) == first
    by_file = tmp_path / "b.hvdc"
    assert run_compile(watched_checkpoint, by_file, "--calibration", file, settings=SHORT).status == 0
    assert tree(by_file) == first
    assert with_prompts(watched_checkpoint, embeds, output, "--scale-mode", "mse")[1] == 0
    assert with_prompts(watched_checkpoint, embeds, output, "--smooth", 0.5)[1] == 0
    copy = Path(shutil.copy(watched_checkpoint, tmp_path / "copy"))
    renamed = Path(shutil.copy(embeds, tmp_path / "embeds"))
    assert with_prompts(copy, renamed, output)[1] == 0, "contents count, names do not"
    assert with_prompts(watched_checkpoint, embeds, output, "-q")[0].err.count("cache") == 0


def test_what_makes_another_calibration(
    watched_checkpoint: Path, embeds: Path, output: Path, calibration_cache: Path, tmp_path: Path
) -> None:
    with_prompts(watched_checkpoint, embeds, output)
    others: dict[str, tuple[Path, Path, tuple[object, ...]]] = {
        "prompts": (watched_checkpoint, write_embeds(tmp_path / "other", seed=1), ()),
        "fewer prompts": (watched_checkpoint, embeds, ("--prompts-limit", 1)),
        "seeds": (watched_checkpoint, embeds, ("--seeds", 1)),
        "size": (watched_checkpoint, embeds, ("--height", 16)),
        "dtype": (watched_checkpoint, embeds, ("--dtype", "bf16")),
        "schedule": (watched_checkpoint, embeds, ("--set", "timesteps=[1000,800]")),
        "alpha": (watched_checkpoint, embeds, ("--lora-alpha", 4)),
        "weights": (write_model(tmp_path / "model", seed=1), embeds, ()),
    }
    for count, (what, (model, prompts, more)) in enumerate(others.items()):
        assert with_prompts(model, prompts, output, *more)[1] > 0, what
        assert len(list(calibration_cache.iterdir())) == count + 2, what


def test_a_damaged_cache_is_made_again(
    watched_checkpoint: Path, embeds: Path, output: Path, calibration_cache: Path
) -> None:
    with_prompts(watched_checkpoint, embeds, output)
    (kept,) = calibration_cache.iterdir()
    whole = kept.read_bytes()
    for data in (b"", whole[:-4] + b"\0\0\0\x7f"):
        kept.write_bytes(data)
        assert with_prompts(watched_checkpoint, embeds, output)[1] == 3
        assert kept.read_bytes() == whole


def test_an_interrupted_run_is_gone_on_with(
    watched_checkpoint: Path, embeds: Path, output: Path, calibration_cache: Path, tmp_path: Path
) -> None:
    stopped = stopped_after(2, lambda: run_compile(watched_checkpoint, output, "--prompts", embeds, settings=SHORT))
    assert "interrupted while calibrating" in stopped.err
    assert list(output.parent.iterdir()) == []
    copy = Path(shutil.copy(watched_checkpoint, tmp_path / "copy"))
    assert with_prompts(copy, embeds, output, "--scale-mode", "global")[1] == 1, "it is the contents that count"
    assert [p.suffix for p in calibration_cache.iterdir()] == [".safetensors"]


def test_a_leftover_that_cannot_be_gone_on_with_is_removed(
    watched_checkpoint: Path, embeds: Path, output: Path, calibration_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows of the cache: an update of PyTorch, or a damaged file, must not stop each later compile."""

    def stopped() -> None:
        stopped_after(2, lambda: run_compile(watched_checkpoint, output, "--prompts", embeds, settings=SHORT))

    stopped()
    monkeypatch.setattr(torch, "__version__", "99.0")
    assert with_prompts(watched_checkpoint, embeds, output)[1] == 3
    (kept,) = calibration_cache.iterdir()
    whole = kept.read_bytes()
    kept.unlink()
    shutil.rmtree(output)
    stopped()
    (part,) = calibration_cache.glob("*.partial/part-*")
    part.write_bytes(part.read_bytes()[:-100])
    assert with_prompts(watched_checkpoint, embeds, output)[1] == 3
    assert [p.read_bytes() for p in calibration_cache.iterdir()] == [whole]


def test_a_cache_folder_that_cannot_be_written(
    watched_checkpoint: Path,
    embeds: Path,
    output: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    file = output.with_name("file")
    file.write_text("mine")
    places = [file]
    if os.geteuid() == 0:
        disk = request.getfixturevalue("mounted")(1 << 20)
        (disk / "calibrations").mkdir()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        places.append(disk)
    for place in places:
        monkeypatch.setenv("HVDC_CACHE_DIR", str(place))
        done = run_compile(watched_checkpoint, output, "--prompts", embeds)
        assert_refused(done, 2, "the folder of cached calibrations cannot be made or written", output)
        assert "HVDC_CACHE_DIR" in done.err


def test_where_the_cache_is(watched_checkpoint: Path, embeds: Path, output: Path, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HVDC_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    with_prompts(watched_checkpoint, embeds, output, "--prompts-limit", 1)
    assert len(list((tmp_path / "xdg" / "hvdc" / "calibrations").iterdir())) == 1
