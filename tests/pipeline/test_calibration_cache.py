"""Calibrations that `hvdc compile --prompts` ran and kept, with the latents that a decoder needs later."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from hvdc.config import CompileConfig
from hvdc.pipeline.activations import Activations, CalibrationChoice, activations_for
from hvdc.pipeline.calibration_file import read_calibration
from hvdc.pipeline.latents_file import read_latents, write_latents
from hvdc.pipeline.prepare import open_configured
from hvdc.pipeline.ranks import join
from hvdc.progress import Silent
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


def kept_in(cache: Path) -> tuple[Path, Path]:
    """The calibration that it holds, and the latents."""
    (latents,) = cache.glob("*.latents.safetensors")
    return latents.with_name(latents.name.replace(".latents", "")), latents


def test_prompts_are_run_once(
    watched_checkpoint: Path, embeds: Path, output: Path, calibration_cache: Path, tmp_path: Path
) -> None:
    done, ran = with_prompts(watched_checkpoint, embeds, output)
    assert (ran, "cache" in done.err) == (3, False)
    first = tree(output)
    kept, latents = kept_in(calibration_cache)
    more = ("--save-latents", tmp_path / "l.safetensors")
    file = calibrated(watched_checkpoint, embeds, tmp_path / "c.safetensors", *more, settings=SHORT)
    assert kept.read_bytes() == file.read_bytes()
    assert latents.read_bytes() == more[1].read_bytes()
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
        assert len(list(calibration_cache.iterdir())) == 2 * (count + 2), what


def test_a_damaged_cache_is_made_again(
    watched_checkpoint: Path, embeds: Path, output: Path, calibration_cache: Path
) -> None:
    with_prompts(watched_checkpoint, embeds, output)
    kept, _ = kept_in(calibration_cache)
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
    assert [p.suffix for p in calibration_cache.iterdir()] == [".safetensors"] * 2


def test_a_leftover_that_cannot_be_gone_on_with_is_removed(
    watched_checkpoint: Path, embeds: Path, output: Path, calibration_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows of the cache: an update of PyTorch, or a damaged file, must not stop each later compile."""

    def stopped() -> None:
        stopped_after(2, lambda: run_compile(watched_checkpoint, output, "--prompts", embeds, settings=SHORT))

    stopped()
    monkeypatch.setattr(torch, "__version__", "99.0")
    assert with_prompts(watched_checkpoint, embeds, output)[1] == 3
    kept, _ = kept_in(calibration_cache)
    whole = kept.read_bytes()
    kept.unlink()
    shutil.rmtree(output)
    stopped()
    (part,) = calibration_cache.glob("*.partial/part-*")
    part.write_bytes(part.read_bytes()[:-100])
    assert with_prompts(watched_checkpoint, embeds, output)[1] == 3
    assert kept_in(calibration_cache)[0].read_bytes() == whole
    assert len(list(calibration_cache.iterdir())) == 2


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
    assert len(list((tmp_path / "xdg" / "hvdc" / "calibrations").iterdir())) == 2


# --- latents of a calibration -----------------------------------------------------------------------------------


def for_a_decoder(checkpoint: Path, prompts: Path) -> tuple[Activations, int]:
    """What `hvdc compile --prompts --vae` asks for, and how many trajectories that ran."""
    config = CompileConfig(frames=5, height=32, width=32, lora_alpha=8, text_tokens=6, timesteps=(1000, 900))
    choice = CalibrationChoice(prompts=prompts, latents=True)
    with open_configured(checkpoint, None, config) as opened:
        return trajectories_run(
            lambda: activations_for(choice, config, opened, join("cpu"), Silent(), lambda note: None)
        )


def test_a_decoder_that_comes_later_finds_the_latents(
    watched_checkpoint: Path, embeds: Path, output: Path, calibration_cache: Path
) -> None:
    with_prompts(watched_checkpoint, embeds, output)
    calibration, latents = kept_in(calibration_cache)
    found, ran = for_a_decoder(watched_checkpoint, embeds)
    assert (found.latents, ran) == (latents, 0)
    held = read_latents(latents)
    assert held.values.shape == (3, 16, 2, 4, 4)
    assert held.provenance == read_calibration(calibration).provenance


def other_clips(latents: Path) -> None:
    """Another run's, as whole as can be."""
    held = read_latents(latents)
    assert held.provenance is not None
    other = held.provenance.model_copy(update={"seeds": (1,)})
    write_latents(latents, held.values, held.prompts, [1, 1, 1], other)


def fewer_clips(latents: Path) -> None:
    held = read_latents(latents)
    assert held.provenance is not None
    write_latents(latents, held.values[:2], held.prompts[:2], [0, 0], held.provenance)


def one_bit(latents: Path) -> None:
    data = bytearray(latents.read_bytes())
    data[-3] ^= 1
    latents.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda latents: latents.write_bytes(b""),
    "cut off": lambda latents: latents.write_bytes(latents.read_bytes()[:-4]),
    "one bit": one_bit,
    "not finite": lambda latents: latents.write_bytes(latents.read_bytes()[:-4] + b"\0\0\xc0\x7f"),
    "of other clips": other_clips,
    "of fewer clips": fewer_clips,
    "of whatever": lambda latents: save_file({"latents": np.zeros((3, 16, 2, 4, 4), np.float32)}, latents),
}


@pytest.fixture(scope="module")
def kept(watched_checkpoint: Path, embeds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of one calibration, to copy."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HVDC_CACHE_DIR", str(folder))
        for_a_decoder(watched_checkpoint, embeds)
    return folder / "calibrations"


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_latents_are_made_again(
    case: str, watched_checkpoint: Path, embeds: Path, kept: Path, calibration_cache: Path
) -> None:
    shutil.copytree(kept, calibration_cache)
    calibration, latents = kept_in(calibration_cache)
    whole = calibration.read_bytes(), latents.read_bytes()
    DAMAGES[case](latents)
    found, ran = for_a_decoder(watched_checkpoint, embeds)
    assert (found.latents, ran) == (latents, 3)
    assert (calibration.read_bytes(), latents.read_bytes()) == whole
    assert for_a_decoder(watched_checkpoint, embeds)[1] == 0


def test_without_a_decoder_latents_do_not_matter(
    watched_checkpoint: Path, embeds: Path, kept: Path, calibration_cache: Path, output: Path
) -> None:
    shutil.copytree(kept, calibration_cache)
    kept_in(calibration_cache)[1].unlink()
    assert with_prompts(watched_checkpoint, embeds, output)[1] == 0


def test_stopped_between_calibration_and_latents(
    watched_checkpoint: Path, embeds: Path, calibration_cache: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hvdc.pipeline.calibrate._write_latents", stop)
        assert run_compile(watched_checkpoint, output, "--prompts", embeds, settings=SHORT).status == 130
    found, ran = for_a_decoder(watched_checkpoint, embeds)
    assert (found.latents, ran) == (kept_in(calibration_cache)[1], 0), "finished trajectories are gone on with"
    assert len(list(calibration_cache.iterdir())) == 2
