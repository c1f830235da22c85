"""Deep validation in Python, and the corpus of malformed artifacts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from hvdc.artifact import validate
from hvdc.artifact.codes import Code
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.reader import open_artifact
from tests.artifacts import Spec, edit_tensor, make_artifact
from tests.malformed.make import CORPUS, assemble, files_of, make
from tests.malformed.registry import BASE, BASES, CASES, REGION

ROWS = json.loads((CORPUS / "cases.json").read_text("utf-8"))


def findings(root: Path) -> list[ArtifactError]:
    with open_artifact(root) as artifact:
        return validate.validate_deep(artifact)


def test_the_kept_corpus_is_fresh(tmp_path: Path) -> None:
    """Run ``python -m tests.malformed.make`` when this fails, and look at what changed."""
    for base in BASES:
        shutil.copytree(CORPUS / base, tmp_path / base)
    make(tmp_path)
    kept, fresh = files_of(CORPUS), files_of(tmp_path)
    assert sorted(kept) == sorted(fresh)
    assert [path for path in kept if kept[path] != fresh[path]] == []


def test_the_corpus_reaches_every_code() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    reached = {case.code for case in CASES}
    # Of checkpoints, libraries, a list, and numeric paths.
    beyond = {Code.DATA_SOURCE, Code.DATA_DECODER, Code.DATA_RUNTIME, Code.DATA_ANSWER}
    assert set(Code) - reached == beyond


def test_c_differs_only_where_the_manifests_contents_matter() -> None:
    lenient = [row for row in ROWS if row["c"] != row["code"]]
    assert all(row["c"] == "OK" and row["code"].startswith("MANIFEST_") for row in lenient)
    assert lenient == [row for row in ROWS if row.get("only_python")]


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_every_malformed_artifact_is_refused_with_its_code(row: dict[str, str], tmp_path: Path) -> None:
    root = assemble(CORPUS, row, tmp_path / "artifact")
    try:
        found = findings(root)
    except ArtifactError as error:
        found = [error]
    assert all(error.where for error in found), "a refusal says where"
    assert [error.code.name for error in found[:1]] == ([row["code"]] if row["code"] != "OK" else [])


@pytest.mark.parametrize("chunk", [1, 4096, 1 << 22])
def test_chunks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(validate, "CHUNK_BYTES", max(chunk, 8))
    root = make_artifact(tmp_path / "a.hvdc", Spec(layers=1, width=40, ffn_width=70, rank=5, linears=1))
    assert findings(root) == []
    name = "blocks.0.ffn.net.0.proj.weight"

    def damage(part: bytearray, _: object) -> None:
        part[2 * 1024 * 2 + 4 * 31] = 1  # the third column of tiles: n = 64 + 31, beyond 70
        part[5] = 0x80

    edit_tensor(root, name, damage)
    padding, values = findings(root)
    assert (padding.code, padding.found) == (Code.DATA_PADDING, "[95, 0] is 1")
    assert (values.code, values.found) == (Code.DATA_MINUS_128, "[1, 1] is -128")


def test_all_findings_are_collected_in_order(tmp_path: Path) -> None:
    root = make_artifact(tmp_path / "a.hvdc", BASE)

    def nan(part: bytearray, _: object) -> None:
        part[:8] = np.array([np.nan, np.inf], "<f4").tobytes()

    def minus_128(part: bytearray, _: object) -> None:
        part[0] = 0x80

    edit_tensor(root, "blocks.0.attn1.to_q.weight_scale", nan)
    edit_tensor(root, "blocks.0.attn1.to_q.weight", minus_128)
    edit_tensor(root, "schedule.adaln", nan)
    data = bytearray((root / REGION).read_bytes())
    data[-1] = 1
    (root / REGION).write_bytes(data)  # this one without its hash
    found = findings(root)
    assert [error.code for error in found] == [
        Code.DATA_HASH,
        Code.DATA_MINUS_128,
        Code.DATA_SCALE,
        Code.DATA_PADDING,
        Code.DATA_NOT_FINITE,
    ]
    assert found[2].found == "[0] is nan, and 1 more"
    assert found[2].where.endswith("regions/block-000.bin: blocks.0.attn1.to_q.weight_scale")


def test_progress_sums_up_to_all_data(tmp_path: Path) -> None:
    seen: dict[str, int] = {}

    def progress(path: str, size: int) -> None:
        seen[path] = seen.get(path, 0) + size

    with open_artifact(make_artifact(tmp_path / "a.hvdc", BASE)) as artifact:
        assert validate.validate_deep(artifact, progress) == []
        assert seen == {file.path: file.bytes for file in artifact.manifest.files}


def test_a_file_that_shrinks_while_it_is_open(tmp_path: Path) -> None:
    root = make_artifact(tmp_path / "a.hvdc", BASE)
    with open_artifact(root) as artifact:
        (root / REGION).write_bytes(b"")
        with pytest.raises(ArtifactError, match="FILE_SIZE"):
            validate.validate_deep(artifact)
