"""`hvdc validate`, as a CI job calls it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from exporters.checkpoint import open_checkpoint
from exporters.model import canonical_tensors
from exporters.qnn.errors import QnnError
from exporters.synth import write_checkpoint
from hvdc.artifact.manifest import TensorEntry
from tests.artifacts import edit_tensor, forget_answer, read_manifest, write_manifest
from tests.commands import hvdc, process
from tests.conftest import RAGGED
from tests.exporters.models import base_of, spelled, write


@pytest.fixture
def copy(ragged_artifact: Path, tmp_path: Path) -> Path:
    return forget_answer(Path(shutil.copytree(ragged_artifact, tmp_path / "copy.hvdc")))


def test_a_sound_artifact(ragged_artifact: Path, ragged_checkpoint: Path) -> None:
    done = hvdc("validate", ragged_artifact, "--deep", "--against", ragged_checkpoint)
    assert done.status == 0, done.out
    assert done.out.splitlines()[:5] == [
        f"{check:<8} ok" for check in ("layout", "runtime", "deep", "answer", "against")
    ]
    assert done.out.splitlines()[-1].endswith(": sound")
    assert "ffn.net.0.proj" in done.out


def test_json_gives_sqnr_and_largest_error_of_each_weight(ragged_artifact: Path, ragged_checkpoint: Path) -> None:
    done = hvdc("validate", ragged_artifact, "--deep", "--against", ragged_checkpoint, "--json")
    facts = done.json()
    assert done.err == ""
    assert facts["ok"] is True
    assert facts["checks"] == ["layout", "runtime", "deep", "answer", "against"]
    assert facts["findings"] == []
    assert len(facts["weights"]) == RAGGED.layers * (10 + 16)
    for weight in facts["weights"]:
        assert 25 < weight["sqnr_db"] < 80, weight
        assert 0.3 < weight["max_error_steps"] <= 0.5 * (1 + 2**-16), weight


def test_one_error_measured_by_hand(ragged_artifact: Path, ragged_checkpoint: Path) -> None:
    """SQNR and largest error of one weight, computed here from the artifact's numbers."""
    from hvdc.artifact.reader import open_artifact

    name = "blocks.1.attn1.to_v.lora_B.weight"
    with open_checkpoint(ragged_checkpoint) as checkpoint, open_artifact(ragged_artifact) as artifact:
        source = checkpoint.tensors[name].read().astype(np.float64) * RAGGED.alpha_over_rank
        held, scale = artifact.dequantized(name).astype(np.float64), artifact.scale(name).astype(np.float64)
    facts = hvdc("validate", ragged_artifact, "--against", ragged_checkpoint, "--json").json()
    found = next(w for w in facts["weights"] if w["name"] == name)
    sqnr = 10 * np.log10((source**2).sum() / ((source - held) ** 2).sum())
    assert found["sqnr_db"] == pytest.approx(sqnr, abs=1e-3)
    assert found["max_error_steps"] == pytest.approx(float((np.abs(source - held) / scale[:, None]).max()), abs=1e-4)


def nudge(data: bytearray, entry: object) -> None:
    """The first value of a tiled INT8 weight moves by three steps."""
    value = data[0] - 256 if data[0] > 127 else data[0]
    data[0] = (value - 3 if value > 0 else value + 3) & 0xFF


def test_against_another_checkpoint_is_a_bad_artifact_by_name(ragged_artifact: Path, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other", RAGGED, seed=1).path
    done = hvdc("validate", ragged_artifact, "--against", other)
    assert done.status == 4
    assert "blocks.0.attn1.to_q.weight" in done.out
    assert "this is not the checkpoint that the artifact was compiled from" in done.out
    assert done.out.splitlines()[-1].endswith("NOT what this checkpoint compiles to")


@pytest.mark.parametrize(
    "name", ["blocks.1.ffn.net.2.bias", "blocks.0.norm2.weight", "proj_out_lora.weight", "patch_embedding.bias",
             "blocks.1.scale_shift_table", "condition_embedder_lora.time_proj.bias"],
)  # fmt: skip
def test_against_a_checkpoint_that_differs_in_one_value(name: str, tmp_path: Path, ragged_artifact: Path) -> None:
    """Copies are compared bit for bit; what only tables are made from shows in the tables."""
    from exporters.synth import synthetic_tensors

    model = {n: t.read().copy() for n, t in synthetic_tensors(RAGGED).items()}
    flat = model[name].reshape(-1)
    flat[3] = (
        np.nextafter(flat[3], np.float32(np.inf)) if "table" not in name and "time" not in name else flat[3] + 0.01
    )
    done = hvdc("validate", ragged_artifact, "--against", write(tmp_path / "w", spelled(model, "dcm")), "--json")
    assert done.status == 4
    where = [f["where"] for f in done.json()["findings"]]
    stored = "schedule.adaln" if "table" in name or "time" in name else name
    assert any(w.startswith(stored) for w in where), where
    assert any("tensors_sha256" in w for w in where)


def test_a_moved_weight_is_found_against_its_source(copy: Path, ragged_checkpoint: Path) -> None:
    """With its hashes made right again, --deep cannot see it and --against does."""
    edit_tensor(copy, "blocks.0.attn2.to_k.weight", nudge)
    assert hvdc("validate", copy, "--deep", "-q").status == 0
    done = hvdc("validate", copy, "--against", ragged_checkpoint, "-q")
    assert done.status == 4
    assert "blocks.0.attn2.to_k.weight [0, 0]" in done.out
    assert "half a step" in done.out


def test_a_checkpoint_of_another_shape(ragged_artifact: Path, tiny_checkpoint: Path) -> None:
    done = hvdc("validate", ragged_artifact, "--against", tiny_checkpoint)
    assert done.status == 4
    assert "geometry.width" in done.out


def test_a_checkpoint_without_the_detail_expert(ragged_artifact: Path, tmp_path: Path) -> None:
    from exporters.synth import synthetic_tensors

    base = base_of({n: t.read() for n, t in synthetic_tensors(RAGGED).items()})
    done = hvdc("validate", ragged_artifact, "--against", write(tmp_path / "w", spelled(base, "wan")))
    assert done.status == 4
    assert "--adapter" in done.out


def test_a_bad_checkpoint_is_no_bad_artifact(ragged_artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "w").write_text("<html></html>")
    assert hvdc("validate", ragged_artifact, "--against", tmp_path / "w").status == 3
    assert hvdc("validate", ragged_artifact, "--against", tmp_path / "nowhere").status == 3


def test_damage_that_only_deep_sees(copy: Path) -> None:
    file = copy / "host" / "shared.bin"
    data = bytearray(file.read_bytes())
    data[10] ^= 1
    file.write_bytes(data)
    assert hvdc("validate", copy).status == 0
    done = hvdc("validate", copy, "--deep", "--json")
    assert done.status == 4
    assert [f["where"] for f in done.json()["findings"]] == [str(file)]
    assert not done.json()["ok"]


def suite(path: Path) -> ElementTree.Element:
    return ElementTree.parse(path).getroot()  # noqa: S314 - our own file


def test_junit_of_a_sound_artifact(ragged_artifact: Path, ragged_checkpoint: Path, tmp_path: Path) -> None:
    arguments = ["--deep", "--against", ragged_checkpoint, "--junit", tmp_path / "j.xml"]
    assert hvdc("validate", ragged_artifact, *arguments, "-q").status == 0
    root = suite(tmp_path / "j.xml")
    assert root.tag == "testsuite"
    assert (root.get("tests"), root.get("failures")) == ("5", "0")
    assert [case.get("name") for case in root] == ["layout", "runtime", "deep", "answer", "against"]
    assert all(case.find("failure") is None for case in root)


def test_junit_of_a_failing_one(copy: Path, tmp_path: Path) -> None:
    edit_tensor(copy, "blocks.0.attn2.to_k.weight", lambda data, _: data.__setitem__(0, 0x80))
    assert hvdc("validate", copy, "--deep", "--junit", tmp_path / "j.xml", "-q").status == 4
    root = suite(tmp_path / "j.xml")
    assert root.get("failures") == "1"
    failure = root.find("testcase[@name='deep']/failure")
    assert failure is not None
    assert failure.get("type") == "DATA_MINUS_128"
    assert "blocks.0.attn2.to_k.weight" in (failure.text or "")


def test_junit_of_what_is_no_artifact(tmp_path: Path) -> None:
    assert hvdc("validate", tmp_path / "no.hvdc", "--junit", tmp_path / "j.xml").status == 4
    assert suite(tmp_path / "j.xml").find("testcase[@name='layout']/failure") is not None


def test_junit_of_a_checkpoint_that_cannot_be_read(ragged_artifact: Path, tmp_path: Path) -> None:
    """A CI system reads the file, not the terminal: it must be there, and red."""
    (tmp_path / "w").write_text("<html></html>")
    done = hvdc("validate", ragged_artifact, "--against", tmp_path / "w", "--junit", tmp_path / "j.xml", "-q")
    assert done.status == 3
    assert suite(tmp_path / "j.xml").find("testcase[@name='against']/error") is not None


def test_a_place_for_junit_that_is_not_there_is_refused_at_once(ragged_artifact: Path, tmp_path: Path) -> None:
    done = hvdc("validate", ragged_artifact, "--deep", "--junit", tmp_path / "no" / "j.xml")
    assert done.status == 2
    assert "validating" not in done.err


def test_progress_in_a_pipe_ends_at_the_end(tiny_artifact: Path, tiny_checkpoint: Path) -> None:
    done = process("validate", tiny_artifact, "--deep", "--against", tiny_checkpoint)
    for what in ("validating", "comparing"):
        lines = [line.split()[1] for line in done.err.splitlines() if line.startswith(what)]
        assert lines == [f"{i}/7" for i in range(1, 8)], what


def test_a_column_of_zeros_is_within_half_a_step_too(tmp_path: Path) -> None:
    from tests.commands import compiled
    from tests.pipeline.test_numbers import ONE_BLOCK, hard_values

    assert set(canonical_tensors(ONE_BLOCK)) == set(hard_values())
    checkpoint = write(tmp_path / "w", spelled(hard_values(), "dcm"))
    artifact = compiled(checkpoint, tmp_path / "a.hvdc")
    done = hvdc("validate", artifact, "--deep", "--against", checkpoint, "-q")
    assert done.status == 0, done.out


def scaled(factor: float) -> Callable[[bytearray, TensorEntry], None]:
    def edit(data: bytearray, entry: TensorEntry) -> None:
        scales = np.frombuffer(data, "<f4").copy()
        scales[: entry.shape[0]] *= np.float32(factor)
        data[:] = scales.tobytes()

    return edit


@pytest.mark.parametrize("factor", [2.0, 1e9, float("nan"), 0.0, 1 + 2**-20])
def test_a_scale_must_be_its_sources_even_where_every_error_is_small(
    copy: Path, ragged_checkpoint: Path, factor: float
) -> None:
    """With a huge scale and zeros every error is below half a step; NaN compares with nothing."""
    edit_tensor(copy, "blocks.1.attn1.to_q.weight_scale", scaled(factor))
    edit_tensor(copy, "blocks.1.attn1.to_q.weight", lambda data, _: data.__setitem__(slice(None), bytes(len(data))))
    done = process("validate", copy, "--against", ragged_checkpoint)
    assert done.status == 4
    assert "blocks.1.attn1.to_q.weight_scale [0]" in done.out
    assert "Warning" not in done.err


def test_an_index_beyond_the_first_strip_is_the_tensors_own(
    copy: Path, ragged_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hvdc.pipeline.tensors.STRIP_BYTES", 4096)

    def edit(data: bytearray, entry: TensorEntry) -> None:
        values = np.frombuffer(data, "<f4").reshape(entry.padded_shape).copy()
        values[100, 7] += 1
        data[:] = values.tobytes()

    edit_tensor(copy, "condition_embedder.text_embedder.linear_1.weight", edit)
    done = hvdc("validate", copy, "--against", ragged_checkpoint)
    assert done.status == 4
    assert "condition_embedder.text_embedder.linear_1.weight [100, 7]" in done.out


def test_minus_zero_is_not_zero(copy: Path, ragged_checkpoint: Path, tmp_path: Path) -> None:
    def edit(data: bytearray, entry: TensorEntry) -> None:
        data[3] ^= 0x80

    edit_tensor(copy, "proj_out.bias", edit)
    done = hvdc("validate", copy, "--against", ragged_checkpoint)
    assert (done.status, "proj_out.bias [0]" in done.out) == (4, True)


def test_the_manifest_must_be_what_the_checkpoint_and_the_configuration_give(
    copy: Path, ragged_checkpoint: Path
) -> None:
    """Sound in itself, but every step is routed to the semantic expert."""
    manifest = read_manifest(copy)
    steps = tuple(step.model_copy(update={"expert": "semantic"}) for step in manifest.steps)
    write_manifest(copy, manifest.model_copy(update={"steps": steps}))
    assert hvdc("validate", "--deep", copy).status == 0
    done = hvdc("validate", copy, "--against", ragged_checkpoint)
    assert done.status == 4
    assert "steps.3.expert: detail → semantic" in done.out


def test_a_decoders_checks_are_test_cases_too(tiled_artifact: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiled_artifact, tmp_path / "copy.hvdc"))
    graph = copy / "decoder" / "first.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"?")
    for artifact, failures in ((tiled_artifact, {}), (copy, {"deep": 1, "graphs": 1})):
        answer = ["answer"] if not failures else []  # of damaged weights it is not computed
        done = hvdc("validate", artifact, "--deep", "--junit", tmp_path / "junit.xml", "-q")
        assert done.status == (4 if failures else 0), done.out
        cases = ElementTree.parse(tmp_path / "junit.xml").getroot()  # noqa: S314
        assert [case.get("name") for case in cases] == ["layout", "runtime", "deep", *answer, "graphs"]
        assert {c.get("name"): len(c) for c in cases if len(c)} == failures


def test_a_library_that_fails_is_no_fault_of_the_artifact_and_in_the_junit_file(
    tiled_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit status 1, and what was found out before is there; a library may say anything, also what XML cannot hold."""

    def crashed(*arguments: object) -> None:
        raise QnnError(
            "Qualcomm's library crashed", where="graph decoder_first", found="SIGSEGV; last words: \x1b\x00[31m"
        )

    monkeypatch.setattr("hvdc.pipeline.decoder_checks.why_not_read", lambda: "")
    monkeypatch.setattr("hvdc.pipeline.decoder_checks.emulate", crashed)
    done = hvdc("validate", tiled_artifact, "--emulate", "--junit", tmp_path / "j.xml", "-q")
    assert done.status == 1
    assert "Qualcomm's library crashed" in done.err
    root = suite(tmp_path / "j.xml")
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("4", "0", "1")
    assert [case.get("name") for case in root] == ["layout", "runtime", "graphs", "emulator"]
    error = root.find("testcase[@name='emulator']/error")
    assert error is not None
    assert (error.get("type"), error.get("message")) == ("QnnError", "Qualcomm's library crashed")
    assert "SIGSEGV; last words: ??[31m" in (error.text or "")


def test_an_emulator_that_is_not_here_is_in_the_junit_file(
    tiled_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hvdc.pipeline.decoder_checks.why_not", lambda: "this is a Mac")
    done = hvdc("validate", tiled_artifact, "--emulate", "--junit", tmp_path / "j.xml", "-q")
    assert done.status == 2
    assert suite(tmp_path / "j.xml").find("testcase[@name='emulator']/error") is not None


def test_nothing_to_emulate_is_said_before_anything_is_read(ragged_artifact: Path) -> None:
    done = hvdc("validate", ragged_artifact, "--deep", "--emulate")
    assert done.status == 2
    assert "the artifact holds no decoder to emulate" in done.err
    assert "validating" not in done.err
