"""`hvdc compile --vae`: the artifact that comes out, what is said of it, and where its latents come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from exporters.decoder.geometry import DecoderGeometry
from exporters.qnn.options import QnnOptions
from hvdc.pipeline.decoder_encodings import Quantised
from tests.calibrations import trajectories_run
from tests.commands import hvdc, model_tree, tree
from tests.decoders import (
    CLIP,
    TILED,
    VAE,
    compile_decoder,
    compiled_decoder,
    entry_of,
)

pytestmark = pytest.mark.usefixtures("known_speed", "decoder_cache")

CANNOT = "ONNX only: it cannot decode on a phone yet"


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
    assert facts["checks"] == ["layout", "runtime", "deep", "answer", "graphs"]
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
    tiled, whole = model_tree(tiled_artifact), model_tree(whole_artifact)
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


def test_full_size_is_what_is_assumed_without_options() -> None:
    """The small autoencoder is of Wan 2.1's kind."""
    full = DecoderGeometry()
    assert (VAE.z_dim, VAE.spatial_scale, VAE.temporal_scale) == (full.z_dim, full.spatial_scale, full.temporal_scale)
    assert QnnOptions().arch == 79
