"""`hvdc synth`: checkpoints and artifacts without a trained model."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from exporters.checkpoint import open_checkpoint
from exporters.model import TINY, base_tensors, canonical_tensors
from hvdc.artifact.reader import open_artifact
from tests.commands import SMALL_VIDEO, compiled, hvdc, tree


@pytest.mark.parametrize("layout", ["dcm", "wan", "diffusers"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_every_layout_and_dtype_opens_and_plans(layout: str, dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    done = hvdc("synth", "checkpoint", "--layers", 1, "--layout", layout, "--dtype", dtype, "-o", path, "--json")
    assert done.status == 0, done.err
    assert done.json()["bytes"] == path.stat().st_size
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.report.layout == layout
        assert set(checkpoint.report.stored_dtypes) == {dtype.upper()}
        assert checkpoint.geometry.layers == 1
        assert len(checkpoint.geometry.experts) == (2 if layout == "dcm" else 1)
        assert len(checkpoint.tensors) == done.json()["tensors"]
    assert hvdc("compile", path, "--dry-run").status == 0


def test_a_seed_gives_the_same_checkpoint_again(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        assert hvdc("synth", "checkpoint", "--layers", 1, "--seed", seed, "-o", tmp_path / name, "-q").status == 0
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_what_is_there_is_replaced_only_by_force(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_text("months of work")
    done = hvdc("synth", "checkpoint", "--layers", 1, "-o", path)
    assert done.status == 2, "the arguments are wrong, not a checkpoint"
    assert "exists" in done.err
    assert path.read_text() == "months of work"
    assert hvdc("synth", "checkpoint", "--layers", 1, "-o", path, "--force", "-q").status == 0
    done = hvdc("synth", "checkpoint", "--layers", 1, "-o", tmp_path / "no" / "m")
    assert done.status == 2
    assert hvdc("synth", "checkpoint", "--layers", 1, "-o", tmp_path, "--force").status == 2
    assert list(tmp_path.iterdir()) == [path]


def test_progress_of_a_checkpoint(tmp_path: Path) -> None:
    done = hvdc("synth", "checkpoint", "-o", tmp_path / "m")
    lines = [line for line in done.err.splitlines() if line.startswith("writing")]
    assert "100 %" in lines[-1]
    assert "6.2" in done.out


@pytest.mark.parametrize("value", ["1.0", "-0.25", "0", "1e-45", "3e38"])
def test_a_splat_artifact_is_sound(value: str, tmp_path: Path) -> None:
    path = tmp_path / "s.hvdc"
    done = hvdc("synth", "artifact", "--layers", 1, f"--splat={value}", "-o", path, "--json", "--jobs", 1)
    assert done.status == 0, done.err
    assert done.json()["artifact"] == str(path)
    assert (done.json()["lacks"] == "") == (path / "runtime" / "answer.bin").exists()
    assert hvdc("validate", path, "--deep", "-q").status == 0


def test_a_splat_artifact_holds_its_constant(tmp_path: Path) -> None:
    path = tmp_path / "s.hvdc"
    assert hvdc("synth", "artifact", "--splat", -0.5, "-o", path, "-q").status == 0
    with open_artifact(path) as artifact:
        assert artifact.manifest.experts == ("semantic", "detail")
        for name in artifact:
            if name.startswith("blocks.") and name.endswith(".weight") and ".norm" not in name:
                expected = -1.0 if ".lora_B." in name else -0.5  # alpha / r is 2
                np.testing.assert_allclose(artifact.dequantized(name), expected, rtol=1e-6)
        assert not artifact.tensor("schedule.adaln").any()


def test_a_splat_artifact_has_the_structure_of_a_compiled_one(tiny_checkpoint: Path, tmp_path: Path) -> None:
    real = compiled(tiny_checkpoint, tmp_path / "real.hvdc", "--frames", 49, "--height", 480, "--width", 832)
    splat = tmp_path / "splat.hvdc"
    assert hvdc("synth", "artifact", "-o", splat, "-q").status == 0
    sizes = [
        {n: len(d) for n, d in tree(root).items() if n.endswith("n") and "/" in n and not n.startswith("runtime/")}
        for root in (splat, real)
    ]
    assert sizes[0] == sizes[1]
    structure = hvdc("diff", real, splat, "--json").json()["structure"]
    assert [
        line for line in structure if not line.startswith(("geometry.text_tokens", "configuration.text_tokens"))
    ] == []


def test_a_target_is_a_name_or_a_file_as_for_compile(tmp_path: Path) -> None:
    own, words = tmp_path / "own.toml", resources.files("hvdc.targets").joinpath("sm8750.toml").read_text("utf-8")
    own.write_text(words.replace('name = "sm8750"', 'name = "own"'))
    assert hvdc("synth", "artifact", "--target", own, "-o", tmp_path / "a.hvdc", "-q").status == 0
    with open_artifact(tmp_path / "a.hvdc") as artifact:
        assert artifact.manifest.target.name == "own"
    done = hvdc("synth", "artifact", "--target", "sm1", "-o", tmp_path / "b.hvdc")
    assert done.status == 2
    assert "there is no target 'sm1'" in done.err
    assert "FILE.toml" in done.err


@pytest.mark.parametrize("value", ["nan", "inf", "x"])
def test_a_splat_must_be_a_number(value: str, tmp_path: Path) -> None:
    done = hvdc("synth", "artifact", "--splat", value, "-o", tmp_path / "s.hvdc")
    assert done.status == 2
    assert list(tmp_path.iterdir()) == []


def test_a_splat_artifact_respects_what_is_there(tiny_artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "s.hvdc").mkdir()
    (tmp_path / "s.hvdc" / "thesis.txt").write_text("months of work")
    for more in ([], ["--force"]):
        assert hvdc("synth", "artifact", "-o", tmp_path / "s.hvdc", *more).status == 2
    assert (tmp_path / "s.hvdc" / "thesis.txt").exists()


def test_counts_of_the_tiny_preset(tiny_checkpoint: Path) -> None:
    with open_checkpoint(tiny_checkpoint) as checkpoint:
        assert len(checkpoint.tensors) == len(canonical_tensors(TINY)) > len(base_tensors(TINY))
    assert hvdc("compile", tiny_checkpoint, "--dry-run", *SMALL_VIDEO).status == 0
