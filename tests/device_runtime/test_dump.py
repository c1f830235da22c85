"""The C reader and the Python reader see the same artifact."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from hvdc.artifact.reader import open_artifact
from tests.artifacts import Spec, make_artifact
from tests.device_runtime.dump import dump
from tests.fixtures.make import FOLDER
from tests.malformed.make import CORPUS

SPECS = {
    "two-blocks": Spec(),
    "calibrated": Spec(calibrated=True),
    "calibrated-one-expert": Spec(layers=1, rank=0, linears=1, calibrated=True),
    "decoder": Spec(layers=1, decoder="onnx"),
    "decoder-compiled": Spec(layers=1, calibrated=True, decoder="qnn"),
    "one-expert": Spec(layers=1, rank=0, seed=1),
    "ragged": Spec(layers=3, width=36, heads=2, ffn_width=70, rank=5, linears=3, seed=2),
}


def c_dump(program: Path, *arguments: object) -> tuple[int, str]:
    done = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60)
    assert not done.stderr, done.stderr  # a sanitizer reports there
    return done.returncode, done.stdout


@pytest.mark.parametrize("deep", [False, True], ids=["shallow", "deep"])
@pytest.mark.parametrize("name", SPECS)
def test_both_readers_dump_the_same(programs: dict[str, Path], tmp_path: Path, name: str, deep: bool) -> None:
    root = make_artifact(tmp_path / f"{name}.hvdc", SPECS[name])
    status, text = c_dump(programs["hvdc_dump"], *(["--deep"] if deep else []), root)
    with open_artifact(root) as artifact:
        assert (status, json.loads(text)) == (0, dump(artifact, deep))


@pytest.mark.parametrize("fixture", ["tiny_artifact", "ragged_artifact"])
def test_both_readers_dump_a_compiled_artifact_the_same(
    programs: dict[str, Path], request: pytest.FixtureRequest, fixture: str
) -> None:
    root: Path = request.getfixturevalue(fixture)
    status, text = c_dump(programs["hvdc_dump"], "--deep", root)
    with open_artifact(root) as artifact:
        assert (status, json.loads(text)) == (0, dump(artifact, True))


@pytest.mark.parametrize("root", sorted(FOLDER.glob("*/tiny.hvdc")), ids=lambda root: root.parent.name)
def test_both_readers_open_every_older_minor_version(programs: dict[str, Path], root: Path) -> None:
    status, text = c_dump(programs["hvdc_dump"], "--deep", root)
    with open_artifact(root) as artifact:
        assert (status, json.loads(text)) == (0, dump(artifact, True))


def test_a_dump_is_deterministic(programs: dict[str, Path]) -> None:
    assert c_dump(programs["hvdc_dump"], CORPUS / "base") == c_dump(programs["hvdc_dump"], CORPUS / "base")


def test_a_refusal_is_json_with_status_4(programs: dict[str, Path], tmp_path: Path) -> None:
    status, text = c_dump(programs["hvdc_dump"], tmp_path)
    assert status == 4
    assert json.loads(text) == {
        "code": 2,
        "name": "MISSING_FILE",
        "meaning": "a file that the artifact names is missing",
        "file": "index.bin",
        "message": "No such file or directory",
    }


def test_an_artifact_that_does_not_exist_is_missing(programs: dict[str, Path], tmp_path: Path) -> None:
    status, text = c_dump(programs["hvdc_dump"], tmp_path / "none.hvdc")
    assert (status, json.loads(text)["name"]) == (4, "MISSING_FILE")


def test_other_arguments_are_a_usage_error(programs: dict[str, Path]) -> None:
    done = subprocess.run([str(programs["hvdc_dump"])], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage:" in done.stderr
