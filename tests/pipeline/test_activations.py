"""`hvdc compile` with prompts or a calibration: what is refused, and the scales that an artifact gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvdc.artifact.reader import open_artifact
from hvdc.pipeline.activation_scales import stored_scales
from hvdc.pipeline.calibration_file import pack, read_calibration, unpack
from hvdc.pipeline.workspace import Workspace
from quant.calibration.modes import activation_scales
from quant.calibration.statistics import from_arrays
from quant.smooth import Rescaling, rescaled_statistics
from tests.calibrations import (
    SHAPE,
    assert_refused,
    run_compile,
    trajectories_run,
    write_embeds,
    write_model,
)
from tests.commands import hvdc, tree

pytestmark = pytest.mark.usefixtures("known_speed")

TABLE = "calibration.activation_scales"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "a.hvdc"


def sound(artifact: Path, checkpoint: Path) -> None:
    done = hvdc("validate", "--deep", "--against", checkpoint, "--lora-alpha", 8, artifact, "-q")
    assert done.status == 0, done.out + done.err


MODES: dict[str, tuple[str, ...]] = {
    "per-step": (),
    "global": ("--scale-mode", "global"),
    "percentile": ("--scale-mode", "percentile"),
    "percentile 90": ("--scale-mode", "percentile", "--set", "percentile=90"),
    "mse": ("--scale-mode", "mse"),
}


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_gives_its_table(mode: str, watched_checkpoint: Path, calibration: Path, output: Path) -> None:
    done = run_compile(watched_checkpoint, output, "--calibration", calibration, *MODES[mode])
    assert done.status == 0, done.err
    held = read_calibration(calibration)
    name, _, percentile = mode.partition(" ")
    due = activation_scales(held.statistics, held.provenance.steps, name, float(percentile or 99.9))
    with open_artifact(output) as artifact:
        np.testing.assert_array_equal(artifact.tensor(TABLE), due.table)
        entry = artifact.manifest.calibration
        assert entry is not None
        assert (entry.mode, entry.prompts, entry.seeds, entry.dtype) == (name, 3, (0,), "fp32")
        assert entry.percentile == (float(percentile or 99.9) if name == "percentile" else None)
        assert entry.statistics_sha256 == held.provenance.statistics_sha256
        assert not entry.other_geometry
        assert [i.name for i in entry.inputs] == list(due.inputs)
    sound(output, watched_checkpoint)


def table_of(artifact: Path) -> np.ndarray:
    with open_artifact(artifact) as opened:
        return np.array(opened.tensor(TABLE))


def test_the_table_by_hand(watched_checkpoint: Path, calibration: Path, tmp_path: Path) -> None:
    tables = {}
    for mode, options in MODES.items():
        assert (
            run_compile(watched_checkpoint, tmp_path / f"{mode}.hvdc", "--calibration", calibration, *options).status
            == 0
        )
        tables[mode] = table_of(tmp_path / f"{mode}.hvdc")
    held = read_calibration(calibration).statistics
    names = [i.name for i in held.inputs]
    column = names.index("attn1.input")
    peaks = held.channel_absmax["attn1.input"].max(axis=2)
    np.testing.assert_array_equal(tables["per-step"][:, :, column], peaks / np.float32(127))
    np.testing.assert_array_equal(tables["global"][:, :, column], np.tile(peaks.max(axis=0) / np.float32(127), (6, 1)))
    hidden = [n for n, name in enumerate(names) if name.endswith("lora_hidden")]
    text = names.index("attn2.text")
    for mode, table in tables.items():
        assert (table[:3, :, hidden] == 0).all(), "no adapters in the semantic steps"
        assert (table[3:] > 0).all()
        assert (table[:3, :, text] == table[0, :, text]).all()
        assert (table[3:, :, text] == table[3, :, text]).all()
        assert (table <= tables["per-step"]).all() or mode == "global"
    assert (tables["percentile 90"] <= tables["percentile"]).all()
    assert (tables["percentile 90"] < tables["percentile"]).any()
    assert (tables["mse"] < tables["per-step"]).any()


@pytest.mark.parametrize("mode", ["per-step", "global"])
def test_smoothing(mode: str, watched_checkpoint: Path, calibration: Path, output: Path) -> None:
    given = ("--calibration", calibration, "--scale-mode", mode, "--smooth", 0.5)
    assert run_compile(watched_checkpoint, output, *given).status == 0
    sound(output, watched_checkpoint)
    held = read_calibration(calibration)
    with open_artifact(output) as artifact:
        stored = stored_scales(artifact)
        assert stored is not None
        assert stored.smoothing_strength == 0.5
        rescaled = rescaled_statistics(Rescaling(SHAPE, stored.smoothing), held.statistics)
        due = activation_scales(rescaled, held.provenance.steps, mode)
        np.testing.assert_array_equal(artifact.tensor(TABLE), due.table)
        assert all((factors != 1).any() for factors in stored.smoothing.values())
    assert "smoothed with strength 0.5" in hvdc("inspect", output).out


def test_the_same_bytes_twice(watched_checkpoint: Path, calibration: Path, tmp_path: Path) -> None:
    a, b = tmp_path / "a.hvdc", tmp_path / "b.hvdc"
    given = ("--calibration", calibration, "--smooth", 0.5)
    assert run_compile(watched_checkpoint, a, *given, "--jobs", 1).status == 0
    assert run_compile(watched_checkpoint, b, *given, "--jobs", 4).status == 0
    assert tree(a) == tree(b)


REFUSALS: dict[str, tuple[tuple[object, ...], str]] = {
    "smoothing alone": (("--smooth", 0.5), "smoothing needs to know the activations"),
    "smoothing by a setting alone": (("--set", "smooth=0.5"), "smoothing needs to know the activations"),
    "both": (("--calibration", "C", "--prompts", "P"), "--prompts and --calibration exclude each other"),
    "smoothing and percentile": (
        ("--calibration", "C", "--smooth", 1, "--scale-mode", "percentile"),
        "'percentile' ca",
    ),
    "smoothing and mse": (("--prompts", "P", "--smooth", 0, "--scale-mode", "mse"), "'mse' cannot be joined with"),
    "too strong": (("--calibration", "C", "--smooth", 1.5), "smooth"),
    "an unknown device": (("--prompts", "P", "--device", "tpu"), "there is no such device"),
    "no seeds": (("--prompts", "P", "--seeds", ""), "the seeds are not a list"),
    "a smaller clip": (("--calibration", "C", "--height", 64), "the calibration was run at another size"),
    "a percentile of 0": (("--calibration", "C", "--set", "percentile=0"), "percentile"),
}


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["", "dry"])
@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be(
    case: str,
    dry: tuple[str, ...],
    watched_checkpoint: Path,
    embeds: Path,
    calibration: Path,
    output: Path,
    calibration_cache: Path,
) -> None:
    options, words = REFUSALS[case]
    given = [{"C": calibration, "P": embeds}.get(str(o), o) for o in options]
    done, ran = trajectories_run(lambda: run_compile(watched_checkpoint, output, *given, *dry))
    assert ran == 0
    assert done.status == 2, done.err
    assert words in done.err
    assert list(output.parent.iterdir()) == []
    assert not calibration_cache.exists()


def test_a_calibration_of_another_model(calibration: Path, embeds: Path, output: Path, tmp_path: Path) -> None:
    def one_block(model: dict[str, np.ndarray]) -> None:
        for name in [name for name in model if name.startswith("blocks.1.")]:
            del model[name]

    model = write_model(tmp_path / "model", one_block)
    done = run_compile(model, output, "--calibration", calibration)
    assert_refused(done, 3, "the calibration is of another model", output)
    assert "layers" in done.err


def test_a_calibration_of_another_schedule(watched_checkpoint: Path, calibration: Path, output: Path) -> None:
    for setting in ("timesteps=[1000,900]", "expert_boundary=900"):
        done = run_compile(watched_checkpoint, output, "--calibration", calibration, "--set", setting)
        assert_refused(done, 3, "the calibration is of another schedule", output)
        assert "1000 semantic" in done.err


def test_a_calibration_of_other_weights_is_refused_at_the_end(calibration: Path, output: Path, tmp_path: Path) -> None:
    def one_value(model: dict[str, np.ndarray]) -> None:
        model["blocks.1.attn1.to_q.weight"][0, 0] += 1e-3

    model = write_model(tmp_path / "model", one_value)
    done = run_compile(model, output, "--calibration", calibration)
    assert_refused(done, 3, "the calibration is of another checkpoint: sizes agree, weights do not", output)
    assert read_calibration(calibration).provenance.tensors_sha256 in done.err
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_another_alpha_is_another_model(watched_checkpoint: Path, calibration: Path, output: Path) -> None:
    done = run_compile(watched_checkpoint, output, "--calibration", calibration, "--lora-alpha", 4)
    assert_refused(done, 3, "alpha_over_rank", output)


def test_another_size_with_leave(watched_checkpoint: Path, calibration: Path, output: Path) -> None:
    given = ("--calibration", calibration, "--frames", 9)
    done = run_compile(watched_checkpoint, output, *given)
    assert_refused(done, 2, "--allow-geometry", output)
    assert "5 frames of 32 × 32" in done.err
    assert run_compile(watched_checkpoint, output, *given, "--allow-geometry").status == 0
    entry = json.loads((output / "manifest.json").read_text())["calibration"]
    assert (entry["other_geometry"], entry["video"]) == (True, {"frames": 5, "height": 32, "width": 32})
    assert "at 5 × 32×32, not the artifact's size" in hvdc("inspect", output).out
    sound(output, watched_checkpoint)


def test_a_forged_text_scale(watched_checkpoint: Path, calibration: Path, output: Path, tmp_path: Path) -> None:
    """Numbers that no calibration gives, with a hash that fits them."""
    arrays, facts = unpack(calibration.read_bytes())
    arrays["channel_absmax.attn2.text"] = arrays["channel_absmax.attn2.text"].copy()
    arrays["channel_absmax.attn2.text"][1] = 99.0
    facts["statistics_sha256"] = from_arrays(SHAPE, 6, arrays).sha256()
    forged = tmp_path / "forged.safetensors"
    forged.write_bytes(pack(arrays, facts))
    assert_refused(run_compile(watched_checkpoint, output, "--calibration", forged), 2, "for it is per expert", output)


def test_an_uncalibrated_artifact_says_so(watched_checkpoint: Path, output: Path) -> None:
    assert run_compile(watched_checkpoint, output).status == 0
    for verb in ("inspect", "validate"):
        assert "uncalibrated" in hvdc(verb, output).out


def test_a_dry_run(
    watched_checkpoint: Path, calibration: Path, embeds: Path, output: Path, calibration_cache: Path
) -> None:
    plain = run_compile(watched_checkpoint, output, "--dry-run", "--json").json()
    done = run_compile(watched_checkpoint, output, "--dry-run", "--json", "--calibration", calibration, "--smooth", 0.5)
    paths = {f["path"] for f in done.json()["files"]} - {f["path"] for f in plain["files"]}
    assert paths == {"calibration/scales.bin"}
    done, ran = trajectories_run(
        lambda: run_compile(watched_checkpoint, output, "--dry-run", "--prompts", embeds, "--smooth", 0.5)
    )
    assert (done.status, ran) == (0, 0)
    wrong = write_embeds(output.with_name("one"), count=1)
    wrong.write_bytes(wrong.read_bytes()[:-4])
    assert run_compile(watched_checkpoint, output, "--dry-run", "--prompts", wrong).status == 3
    assert [p.name for p in output.parent.iterdir()] == ["one"]
    assert not calibration_cache.exists()


def test_resumed_with_a_calibration(watched_checkpoint: Path, calibration: Path, tmp_path: Path) -> None:
    whole, output = tmp_path / "whole.hvdc", tmp_path / "a.hvdc"
    given = ("--calibration", calibration, "--smooth", 0.5, "--jobs", 1)
    assert run_compile(watched_checkpoint, whole, *given).status == 0
    write, left = Workspace.write, [3]

    def counted(self: Workspace, *arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return write(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Workspace, "write", counted)
        assert run_compile(watched_checkpoint, output, *given).status == 130
    other = run_compile(watched_checkpoint, output, "--calibration", calibration, "--scale-mode", "mse", "--resume")
    assert (other.status, "another checkpoint or configuration" in other.err) == (2, True)
    done = run_compile(watched_checkpoint, output, *given, "--resume", "--json")
    assert done.json()["resumed_files"] == 3
    assert tree(output) == tree(whole)


def test_several_processes_are_refused(watched_checkpoint: Path, embeds: Path, output: Path, monkeypatch) -> None:
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    done = run_compile(watched_checkpoint, output, "--prompts", embeds)
    assert_refused(done, 2, "a compilation is one process, and torchrun started several", output)
    assert "-m hvdc calibrate" in done.err
