"""Graphs of a decoder that are not what the manifest says, or damaged: every command sees it, on any machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx.external_data_helper import set_external_data

from hvdc.artifact.reader import open_artifact
from hvdc.pipeline.decoder_checks import port_findings
from tests.artifacts import forget_answer, replace_opaque
from tests.commands import hvdc
from tests.pipeline.decoder_edits import (
    Edit,
    another_scale,
    caches_in_another_order,
    edited,
    exchanged_caches,
    flipped,
)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "a.hvdc"


@pytest.mark.parametrize("edit", [another_scale, exchanged_caches, caches_in_another_order])
def test_a_manifest_that_says_something_else_of_a_graph(edit: Edit, tiled_artifact: Path, output: Path) -> None:
    """A host needs no library of Qualcomm's to see it: an engine takes ports from the manifest, in its order."""
    edited(tiled_artifact, output, edit)
    with open_artifact(output) as artifact:
        found = port_findings(artifact)
    assert found
    assert {f.where for f in found} <= {"first", "later"}
    assert all("has other inputs than" in f.what or "has other outputs than" in f.what for f in found)
    assert all(f.expected != f.found for f in found)
    done = hvdc("validate", output, "--deep", "-q")
    assert done.status == 4
    assert "deep     ok" in done.out
    assert done.out.splitlines()[-1].endswith("NOT sound")


def elsewhere(model: onnx.ModelProto) -> bytes:
    """Of weights in another file of the artifact, which nobody has to open to see that they are not here."""
    tensor = model.graph.initializer[-1]
    set_external_data(tensor, "../manifest.json")
    tensor.ClearField("raw_data")
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("damage", "what", "expected"),
    [
        (lambda model: b"\xff" * 1000, "is no ONNX model", "ONNX of 1000 bytes"),
        (elsewhere, "refers to external data", "all weights in its own file"),
    ],
    ids=["no model", "external data"],
)
def test_a_graph_that_cannot_be_used(
    damage: Callable[[onnx.ModelProto], bytes], what: str, expected: str, tiled_artifact: Path, output: Path
) -> None:
    """What `hvdc decode` refuses is a finding of `hvdc validate`, in the same words."""
    shutil.copytree(tiled_artifact, output)
    replace_opaque(forget_answer(output), "decoder/later.onnx", damage(onnx.load(output / "decoder" / "later.onnx")))
    with open_artifact(output) as artifact:
        [finding] = port_findings(artifact)
    assert (finding.where, finding.expected) == ("later", expected)
    assert what in finding.what
    facts = hvdc("validate", output, "--deep", "--json").json()
    assert [(f["check"], f["where"]) for f in facts["findings"]] == [("graphs", "later")]


def test_a_flipped_bit_in_a_graph(tiled_artifact: Path, output: Path, latents: Path, tmp_path: Path) -> None:
    flipped(tiled_artifact, output, "decoder/later.onnx")
    done = hvdc("validate", output, "--deep", "-q")
    assert done.status == 4
    assert "decoder/later.onnx" in done.out
    done = hvdc("decode", output, latents, "-o", tmp_path / "clip.gif", "-q")
    assert done.status == 4
    assert "decoder/later.onnx" in done.err
    assert not (tmp_path / "clip.gif").exists()
