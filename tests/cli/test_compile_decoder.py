"""`hvdc compile --vae`: the artifact that comes out, what is said of it, and what is refused before anything runs."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from exporters.decoder.checkpoint import open_decoder
from exporters.decoder.geometry import DecoderGeometry
from exporters.qnn.options import QnnOptions
from hvdc.cli import compile_decoder as compile_decoder_options
from hvdc.pipeline import decoder_build
from hvdc.pipeline.decoder_encodings import Quantised
from hvdc.pipeline.decoder_measured import Measured
from hvdc.pipeline.latents_file import latents_sha256
from quant.decoder.ranges import Ranges
from quant.decoder.sensitivity import Sensitivity
from tests.calibrations import assert_refused, trajectories_run
from tests.commands import Result, hvdc, tree
from tests.decoders import (
    CLIP,
    TILED,
    VAE,
    cached,
    compile_decoder,
    compiled_decoder,
    entry_of,
    random_latents,
    write_latents,
    write_vae,
)

pytestmark = pytest.mark.usefixtures("known_speed", "decoder_cache")

CANNOT = "ONNX only: it cannot decode on a phone yet"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "a.hvdc"


@pytest.fixture
def known_encodings(tiled_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Measuring is left out: whatever the latents, the encodings are those of the artifact. The latents given."""
    held = Quantised.from_json((tiled_artifact / "decoder" / "encodings.json").read_text())
    seen: list[np.ndarray] = []

    def measure(decoder, latents, progress):
        seen.append(latents)
        return Measured(Ranges({}, 0), Sensitivity({}, {}, (), 0))

    def choose(decoder, latents, measured, budget, say):
        return replace(held, latents_sha256=latents_sha256(latents), clips=len(latents))

    monkeypatch.setattr(decoder_build, "measure_decoder", measure)
    monkeypatch.setattr(decoder_build, "choose", choose)
    return seen


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the transformer nor the decoder."""

    def never(*arguments: object, **more: object) -> None:
        raise AssertionError("something was computed")

    monkeypatch.setattr("hvdc.pipeline.activations.calibrate_open", never)
    monkeypatch.setattr(decoder_build, "measure_decoder", never)
    monkeypatch.setattr(decoder_build, "_built", never)


# --- graphs alone -----------------------------------------------------------------------------------------------


def test_without_a_compiler_the_artifact_decodes_on_a_host_only(tiled_artifact: Path) -> None:
    entry = entry_of(tiled_artifact)
    assert (entry.backend, entry.binaries) == ("onnx", ())
    assert (entry.spatial_scale, entry.temporal_scale) == (8, 4)
    assert (entry.tiles.rows, entry.tiles.columns, entry.tiles.overlap_rows, entry.tiles.overlap_columns) == (
        4, 6, 2, 3,
    )  # fmt: skip
    assert (entry.quantisation.clips, entry.quantisation.psnr_on_unseen) == (3, False)
    assert entry.quantisation.psnr_db is not None
    assert entry.quantisation.psnr_db > 30
    done = hvdc("inspect", tiled_artifact)
    line = next(line for line in done.out.splitlines() if line.startswith("decoder "))
    assert line.startswith("decoder   INT8 in tiles of 4 × 6 latent pixels, ")
    assert line.endswith(CANNOT)
    facts = hvdc("inspect", tiled_artifact, "--json").json()["decoder"]
    assert (facts["backend"], facts["has_binary"], facts["binaries"]) == ("onnx", False, [])
    assert facts["text"].endswith(CANNOT)
    assert "inputs" not in facts["graphs"][0]
    done = hvdc("validate", tiled_artifact, "--deep", "-q")
    assert done.status == 0, done.out
    assert CANNOT in done.out
    assert "graphs   ok" in done.out.splitlines()
    facts = hvdc("validate", tiled_artifact, "--deep", "--json").json()
    assert facts["checks"] == ["layout", "runtime", "deep", "graphs"]
    assert facts["decoder"]["text"].endswith(CANNOT)


def test_files_are_usable_as_they_are(tiled_artifact: Path) -> None:
    folder = tiled_artifact / "decoder"
    assert sorted(p.name for p in folder.iterdir()) == ["encodings.json", "first.onnx", "later.onnx"]
    for graph in entry_of(tiled_artifact).graphs:
        model = onnx.load(folder / f"{graph.model.removeprefix('decoder.')}.onnx")
        onnx.checker.check_model(model, full_check=True)
        assert [v.name for v in model.graph.input] == [p.name for p in graph.inputs]
        assert [v.name for v in model.graph.output] == [p.name for p in graph.outputs]
    held = Quantised.from_json((folder / "encodings.json").read_text())
    assert held.probe.shape == (16, 2, 6, 8)


def test_the_decoder_changes_nothing_else(tiled_artifact: Path, whole_artifact: Path) -> None:
    tiled, whole = tree(tiled_artifact), tree(whole_artifact)
    assert tiled.keys() == whole.keys()
    differ = {name for name in tiled if tiled[name] != whole[name]}
    assert differ == {"decoder/first.onnx", "decoder/later.onnx", "index.bin", "manifest.json"}, "tiles alone"


def test_against_the_checkpoint(tiled_artifact: Path, watched_checkpoint: Path) -> None:
    done = hvdc("validate", tiled_artifact, "--against", watched_checkpoint, "--lora-alpha", 8, "--json")
    assert done.status == 0, done.out
    assert done.json()["checks"] == ["layout", "runtime", "against"]


def test_without_a_vae_there_is_no_decoder(watched_checkpoint: Path, output: Path) -> None:
    assert hvdc("compile", watched_checkpoint, "-o", output, *CLIP, "--lora-alpha", 8, "-q").status == 0
    line = "decoder   none: the artifact makes latents, not frames (compile with --vae)"
    assert line in hvdc("inspect", output).out.splitlines()
    assert hvdc("inspect", output, "--json").json()["decoder"] is None
    done = hvdc("validate", output, "--emulate")
    assert done.status == 2
    assert "the artifact holds no decoder to emulate" in done.err


# --- the cache, and the same bytes again ------------------------------------------------------------------------


def counted(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Which of the functions of `decoder_build` ran."""
    ran: list[str] = []

    def count(name: str) -> None:
        real = getattr(decoder_build, name)

        def run(*arguments, **more):
            ran.append(name)
            return real(*arguments, **more)

        monkeypatch.setattr(decoder_build, name, run)

    for name in names:
        count(name)
    return ran


def test_nothing_is_made_twice(
    watched_checkpoint: Path, vae: Path, latents: Path, output: Path, decoder_cache: Path,
    tiled_artifact: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given = ("--vae", vae, "--latents", latents, "--decoder-tile", TILED)
    ran = counted(monkeypatch, "measure_decoder", "choose", "quantise")
    done = compile_decoder(watched_checkpoint, output, *given)
    assert ran == ["quantise"], "encodings were in the cache"
    assert "the decoder's encodings are taken from the cache" in done.err
    done = compile_decoder(watched_checkpoint, output, *given, "--force")
    assert ran == ["quantise"], "now graphs are as well"
    assert "the decoder's graphs are taken from the cache" in done.err
    assert tree(output) == tree(tiled_artifact)
    assert [p.name for p in decoder_cache.glob(".*")] == []


@pytest.mark.parametrize("damage", ["cut off", "one bit", "gone", "entry"])
def test_a_damaged_cache_is_made_again(
    damage: str, watched_checkpoint: Path, vae: Path, latents: Path, output: Path, graphs_cache: Path,
    tiled_artifact: Path,
) -> None:  # fmt: skip
    graph = graphs_cache / "later.onnx"
    data = bytearray(graph.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "cut off":
        graph.write_bytes(data[:-1])
    elif damage == "one bit":
        graph.write_bytes(data)
    elif damage == "gone":
        graph.unlink()
    else:
        (graphs_cache / "entry.json").write_text("{}")
    given = ("--vae", vae, "--latents", latents, "--decoder-tile", TILED)
    compiled_decoder(watched_checkpoint, output, *given)
    assert tree(output) == tree(tiled_artifact)


def test_damaged_encodings_are_measured_again(
    watched_checkpoint: Path, vae: Path, latents: Path, output: Path, decoder_cache: Path, known_encodings: list[object]
) -> None:
    for path in decoder_cache.glob("*.json"):
        path.write_text(path.read_text()[:1000])
    given = ("--vae", vae, "--latents", latents, "--decoder-tile", TILED)
    compiled_decoder(watched_checkpoint, output, *given)
    assert len(known_encodings) == 1


def test_what_a_killed_compile_left_is_swept_away_a_day_later(
    watched_checkpoint: Path, vae: Path, latents: Path, output: Path, decoder_cache: Path
) -> None:
    old, new = decoder_cache / ".making-old", decoder_cache / ".making-new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "first.onnx").write_bytes(b"half")
    os.utime(old, (0, 0))
    compiled_decoder(watched_checkpoint, output, "--vae", vae, "--latents", latents, "--decoder-tile", TILED)
    assert [p.name for p in decoder_cache.glob(".*")] == [".making-new"]


def test_an_interrupt_leaves_nothing_half_made(
    watched_checkpoint: Path, vae: Path, latents: Path, output: Path, decoder_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    before = cached(decoder_cache)

    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(decoder_build, "serialised", stop)
    done = compile_decoder(watched_checkpoint, output, "--vae", vae, "--latents", latents)
    assert done.status == 130
    assert "interrupted while the decoder was compiled" in done.err
    assert not output.exists()
    assert cached(decoder_cache) == before


def test_a_build_that_was_interrupted_is_resumed_with_its_decoder(
    watched_checkpoint: Path, vae: Path, latents: Path, output: Path, tiled_artifact: Path, graphs_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given = ("--vae", vae, "--latents", latents, "--decoder-tile", TILED, "--jobs", 1)
    with monkeypatch.context() as patch:
        from hvdc.pipeline.workspace import Workspace

        def stop(self: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(Workspace, "publish", stop)
        done = compile_decoder(watched_checkpoint, output, *given)
    assert done.status == 130
    assert not output.exists()
    done = compile_decoder(watched_checkpoint, output, *given, "--resume", "--json")
    assert done.status == 0, done.err
    assert done.json()["resumed_files"] == 10
    assert tree(output) == tree(tiled_artifact)


def test_a_resumed_build_has_the_same_decoder_or_starts_over(
    watched_checkpoint: Path, vae: Path, latents: Path, output: Path, graphs_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given = ("--vae", vae, "--latents", latents)
    with monkeypatch.context() as patch:
        from hvdc.pipeline.workspace import Workspace

        def stop(self: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(Workspace, "publish", stop)
        compile_decoder(watched_checkpoint, output, *given, "--decoder-tile", TILED)
    done = compile_decoder(watched_checkpoint, output, *given, "--resume")
    assert done.status == 2, done.err
    assert "--force" in done.err


# --- where latents come from ------------------------------------------------------------------------------------


def test_prompts_alone_provide_the_latents(
    watched_checkpoint: Path, embeds: Path, vae: Path, output: Path, known_encodings: list[np.ndarray], tmp_path: Path
) -> None:
    given = ("--prompts", embeds, "--prompts-limit", 2, "--set", "timesteps=[1000,900]")
    done, ran = trajectories_run(lambda: compile_decoder(watched_checkpoint, output, *given, "--vae", vae))
    assert done.status == 0, done.err
    assert ran == 2
    [found] = known_encodings
    assert found.shape == (2, 16, 2, 6, 8)
    file, other = tmp_path / "c.safetensors", tmp_path / "other.safetensors"
    settings = (*CLIP, "--lora-alpha", 8, "--set", "text_tokens=6", "--set", "timesteps=[1000,900]")
    options = ("--prompts", embeds, "--prompts-limit", 2, "--save-latents", other, "-o", file, "-q")
    assert hvdc("calibrate", watched_checkpoint, *options, *settings).status == 0
    more = ("--set", "timesteps=[1000,900]", "--calibration", file)
    again = compiled_decoder(watched_checkpoint, tmp_path / "b.hvdc", *more, "--vae", vae, "--latents", other)
    assert tree(again) == tree(output), "what calibrate saved are the same latents"
    _, ran = trajectories_run(lambda: compile_decoder(watched_checkpoint, output, *given, "--vae", vae, "--force"))
    assert ran == 0
    assert len(known_encodings) == 1


def test_another_decoder_setting_goes_on_with_an_interrupted_calibration(
    watched_checkpoint: Path, embeds: Path, vae: Path, output: Path, known_encodings: list[np.ndarray]
) -> None:
    from tests.calibrations import stopped_after

    given = ("--prompts", embeds, "--set", "timesteps=[1000,900]", "--vae", vae)
    stopped_after(2, lambda: compile_decoder(watched_checkpoint, output, *given))
    done, ran = trajectories_run(lambda: compile_decoder(watched_checkpoint, output, *given, "--decoder-tile", TILED))
    assert done.status == 0, done.err
    assert ran == 1, "a tile changes nothing about a trajectory"


# --- a plan -----------------------------------------------------------------------------------------------------


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


def test_full_size_is_what_is_assumed_without_options() -> None:
    """The small autoencoder is of Wan 2.1's kind."""
    full = DecoderGeometry()
    assert (VAE.z_dim, VAE.spatial_scale, VAE.temporal_scale) == (full.z_dim, full.spatial_scale, full.temporal_scale)
    assert QnnOptions().arch == 79
