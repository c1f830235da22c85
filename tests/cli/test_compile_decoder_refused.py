"""`hvdc compile --vae`, a dry run, and what is refused before anything runs."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from exporters.decoder.checkpoint import open_decoder
from hvdc.cli import compile_decoder as compile_decoder_options
from tests.calibrations import assert_refused
from tests.commands import Result, hvdc
from tests.decoders import (
    CLIP,
    VAE,
    compile_decoder,
    random_latents,
    write_latents,
    write_vae,
)

pytestmark = pytest.mark.usefixtures("known_speed", "decoder_cache")


@pytest.mark.usefixtures("nothing_runs")
def test_a_dry_run_says_what_would_be_compiled(
    watched_checkpoint: Path, embeds: Path, vae: Path, latents: Path, output: Path
) -> None:
    for more in (("--latents", latents), ("--prompts", embeds)):
        done = compile_decoder(watched_checkpoint, output, "--vae", vae, *more, "--dry-run")
        assert done.status == 0, done.err
        line = next(line for line in done.out.splitlines() if line.startswith("decoder "))
        assert "ONNX graphs for a host, none compiled for the NPU: tiles of 6 × 8 latent pixels" in line
        [about] = [row.split() for row in done.out.splitlines() if row.startswith("decoder, about")]
        assert float(about[-1]) == pytest.approx(decoder_bytes(vae) * 2 / 2**20, abs=0.01)
        assert "the decoder's measuring and compiler, which run before, not counted" in " ".join(done.out.split())
        assert not output.exists()
    facts = compile_decoder(watched_checkpoint, output, "--vae", vae, "--latents", latents, "--dry-run", "--json")
    assert "tiles of 6 × 8" in facts.json()["decoder_plan"]
    without = compile_decoder(watched_checkpoint, output, "--dry-run", "--json", backend=None).json()
    assert without["decoder_files_bytes_estimated"] == 0
    size = facts.json()["decoder_files_bytes_estimated"]
    assert size == 2 * decoder_bytes(vae)
    assert facts.json()["needs"]["disk_bytes"] == without["needs"]["disk_bytes"] + size


def decoder_bytes(vae: Path) -> int:
    """Of its weights in a byte each."""
    with open_decoder(vae) as decoder:
        return sum(math.prod(tensor.shape) for tensor in decoder.weights.tensors.values())


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("full", ["output", "cache"])
def test_a_disk_without_room_for_the_decoder(
    full: str, watched_checkpoint: Path, vae: Path, latents: Path, output: Path, decoder_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    plan = compile_decoder(watched_checkpoint, output, "--dry-run", "--json", backend=None).json()
    room = {"output": plan["needs"]["disk_bytes"] + 1, "cache": decoder_bytes(vae)}[full]
    real, folder = shutil.disk_usage, output.parent if full == "output" else decoder_cache

    def usage(path: Path) -> object:
        return real(path)._replace(free=room) if Path(path) == folder else real(path)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    done = compile_decoder(watched_checkpoint, output, "--vae", vae, "--latents", latents)
    what = {"output": "the artifact", "cache": "the decoder's graphs"}[full]
    assert_refused(done, 1, f"the disk has too little room for {what}", output)
    assert str(folder) in done.err


# --- what is refused --------------------------------------------------------------------------------------------

OTHERS = {
    "strides in space": replace(VAE, dim_mult=(1, 1, 1), temporal_upsample=(True, True)),
    "strides in time": replace(VAE, temporal_upsample=(True, False, False)),
    "channels": replace(VAE, z_dim=4),
}


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("dry", [False, True], ids=["compile", "dry-run"])
@pytest.mark.parametrize("case", OTHERS)
def test_an_autoencoder_that_does_not_fit(
    case: str, dry: bool, watched_checkpoint: Path, embeds: Path, output: Path, tmp_path: Path
) -> None:
    """Before prompts are run, which takes hours."""
    other = write_vae(tmp_path / "vae", OTHERS[case])
    given = ("--vae", other, "--prompts", embeds, *(["--dry-run"] if dry else []))
    words = "other latents" if case == "channels" else "other clips"
    assert_refused(compile_decoder(watched_checkpoint, output, *given), 3, words, output)


def refused_latents(done: Result, words: str, status: int, output: Path) -> None:
    assert_refused(done, status, words, output)
    assert "--latents" in done.err or "--save-latents" in done.err


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("dry", [False, True], ids=["compile", "dry-run"])
def test_latents_that_cannot_be_used(
    dry: bool, watched_checkpoint: Path, vae: Path, embeds: Path, output: Path, tmp_path: Path
) -> None:
    bad = random_latents()
    bad[1, 2, 1, 3, 4] = np.nan
    cases = [
        (random_latents(frames=1), "two latent frames or more", 2),
        (random_latents(channels=4), "latents are of another autoencoder", 3),
        (bad, "not finite", 3),
    ]
    for values, words, status in cases:
        given = ("--vae", vae, "--latents", write_latents(tmp_path / "l", values), *(["--dry-run"] if dry else []))
        refused_latents(compile_decoder(watched_checkpoint, output, *given), words, status, output)
    given = ("--vae", vae, "--latents", tmp_path / "nowhere", "--prompts", embeds, *(["--dry-run"] if dry else []))
    refused_latents(compile_decoder(watched_checkpoint, output, *given), "cannot be read", 3, output)


@pytest.mark.usefixtures("nothing_runs")
def test_a_picture_is_no_clip(watched_checkpoint: Path, vae: Path, embeds: Path, output: Path) -> None:
    done = compile_decoder(watched_checkpoint, output, "--vae", vae, "--prompts", embeds, "--frames", 1)
    assert_refused(done, 2, "two latent frames or more", output)


@pytest.mark.usefixtures("nothing_runs")
def test_an_impossible_tile(watched_checkpoint: Path, vae: Path, embeds: Path, output: Path) -> None:
    given = ("--vae", vae, "--prompts", embeds)
    done = compile_decoder(watched_checkpoint, output, *given, "--decoder-tile", "7x8")
    assert_refused(done, 2, "the decoder's tile is not possible", output)
    assert "up to 6x8" in done.err
    done = compile_decoder(watched_checkpoint, output, *given, "--decoder-tile", "half")
    assert done.status == 2
    assert "decoder_tile" in done.err


@pytest.mark.usefixtures("nothing_runs")
def test_latents_are_needed(watched_checkpoint: Path, vae: Path, calibration: Path, output: Path) -> None:
    for more in ((), ("--calibration", calibration)):
        done = compile_decoder(watched_checkpoint, output, "--vae", vae, *more)
        assert_refused(done, 2, "latents of the model's own clips, and none were given", output)
        assert "--latents FILE (of hvdc calibrate --save-latents), or --prompts" in " ".join(done.err.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--latents", "l"), "--latents would have"),
        (("--decoder-backend", "onnx"), "--decoder-backend would have"),
        (("--decoder-tile", "auto"), "--decoder-tile would have"),
        (("--decoder-minutes", "5"), "--decoder-minutes would have"),
        (("--emulate",), "--emulate would have"),
        (("--set", "decoder_budget=0.5"), "--set decoder_budget would have"),
        (("--set", "decoder_backend=onnx"), "--set decoder_backend would have"),
        (("--set", "aihub_profile=true"), "--set aihub_profile would have"),
    ],
)
def test_options_of_a_decoder_without_one(
    options: tuple[str, ...], words: str, watched_checkpoint: Path, output: Path
) -> None:
    done = hvdc("compile", watched_checkpoint, "-o", output, *CLIP, "--lora-alpha", 8, *options)
    assert_refused(done, 2, words, output)
    assert "add --vae" in done.err


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("key", ["decoder_optimization=1", "decoder_vtcm_mb=4", "decoder_share_weights=false"])
def test_settings_of_a_compiler_that_does_not_run(
    key: str, watched_checkpoint: Path, vae: Path, latents: Path, output: Path
) -> None:
    given = ("--vae", vae, "--latents", latents, "--set", key)
    done = compile_decoder(watched_checkpoint, output, *given)
    assert_refused(done, 2, f"--set {key.partition('=')[0]} would have no effect", output)


@pytest.mark.parametrize("option", ["--decoder-minutes", "--decoder-memory-gib"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0", "-1", "many"])
def test_limits_are_finite_numbers_above_zero(
    option: str, value: str, watched_checkpoint: Path, vae: Path, output: Path
) -> None:
    done = hvdc("compile", watched_checkpoint, "-o", output, "--vae", vae, option, value)
    assert (done.status, output.exists()) == (2, False)
    assert option in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("free_gib", "due"), [(5.04, 5.0), (64, 8)])
def test_the_compiler_may_use_what_the_machine_has(
    free_gib: float, due: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_decoder_options, "free_memory_bytes", lambda: int(free_gib * 2**30))
    assert compile_decoder_options.default_memory_gib() == due


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("wrong", ["nowhere", "empty"])
def test_no_autoencoder(wrong: str, watched_checkpoint: Path, embeds: Path, output: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = compile_decoder(watched_checkpoint, output, "--vae", tmp_path / wrong, "--prompts", embeds)
    assert_refused(done, 3, "there is no such file" if wrong == "nowhere" else "holds no autoencoder", output)


@pytest.mark.usefixtures("nothing_runs")
def test_without_qualcomms_libraries(
    watched_checkpoint: Path, vae: Path, embeds: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporters.qnn.available.why_not", lambda: "the package onnxruntime-qnn is not installed")
    done = compile_decoder(watched_checkpoint, output, "--vae", vae, "--prompts", embeds, backend="qnn")
    assert_refused(done, 2, "the package onnxruntime-qnn is not installed", output)
    assert "pip install 'hvdc[qnn]'" in done.err
    assert "--decoder-backend onnx" in done.err
