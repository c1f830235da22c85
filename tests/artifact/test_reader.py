"""Opening an artifact in Python and reading tensors from it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from hvdc.artifact.codes import Code
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.manifest import INDEX_NAME, MANIFEST_NAME
from hvdc.artifact.reader import Artifact, open_artifact
from hvdc.errors import Exit, UsageError
from layouts.grid import TileGrid, pack
from layouts.order import HMX_INT8_K4
from tests.artifacts import Spec, make, make_artifact
from tests.malformed.make import CORPUS, assemble

SPEC = Spec(layers=2, width=36, heads=2, ffn_width=70, rank=5, linears=2)
WEIGHT = "blocks.1.ffn.net.0.proj.weight"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_artifact(tmp_path_factory.mktemp("reader") / "model.hvdc", SPEC)


@pytest.fixture(scope="module")
def artifact(root: Path) -> Artifact:
    return open_artifact(root)


def test_names_come_in_id_order(artifact: Artifact) -> None:
    ids = [artifact.index.text(int(t["name"])) for t in artifact.index.tensors]
    assert list(artifact) == ids
    assert len(artifact) == len(ids)
    assert WEIGHT in artifact
    assert "blocks.9.ffn.net.2.weight" not in artifact


def test_raw_is_exactly_the_stored_bytes(artifact: Artifact) -> None:
    manifest, data = make(SPEC)
    for file, tensor in manifest.tensors():
        assert artifact.raw(tensor.name).tobytes() == data[file.path][tensor.offset : tensor.offset + tensor.bytes]


def test_tensors_have_logical_shape_and_dtype(artifact: Artifact) -> None:
    for name in artifact:
        entry, value = artifact.entry(name), artifact.tensor(name)
        assert value.shape == entry.shape
        assert value.dtype.name == entry.dtype
        assert not value.flags.writeable


def test_a_tiled_weight_packs_to_its_stored_bytes(artifact: Artifact) -> None:
    assert pack(HMX_INT8_K4, artifact.tensor(WEIGHT)).tobytes() == artifact.raw(WEIGHT).tobytes()


def test_tiles_cut_the_padded_weight(artifact: Artifact) -> None:
    n, k = artifact.entry(WEIGHT).shape
    grid = TileGrid(HMX_INT8_K4, n, k)
    padded = np.zeros((grid.padded_n, grid.padded_k), np.int8)
    padded[:n, :k] = artifact.tensor(WEIGHT)
    for i in range(grid.n_tiles):
        for j in range(grid.k_tiles):
            expected = padded[32 * i : 32 * i + 32, 32 * j : 32 * j + 32].T
            np.testing.assert_array_equal(artifact.tile(WEIGHT, i, j), expected)
    with pytest.raises(IndexError, match="outside the grid of 3 × 2 tiles"):
        artifact.tile(WEIGHT, 3, 0)


def test_dequantized_is_q_times_s(artifact: Artifact) -> None:
    value = artifact.dequantized(WEIGHT)
    q, s = artifact.tensor(WEIGHT), artifact.scale(WEIGHT)
    assert value.dtype == np.float32
    np.testing.assert_array_equal(value, q.astype(np.float32) * s[:, None])
    table = artifact.dequantized("schedule.rope_freqs_row")
    assert table.dtype == np.float32


def test_questions_that_make_no_sense_are_usage_errors(artifact: Artifact) -> None:
    with pytest.raises(UsageError, match=r"no tensor 'blocks\.0\.x'"):
        artifact.tensor("blocks.0.x")
    with pytest.raises(UsageError, match="row-major: it has no tiles"):
        artifact.tile("schedule.head", 0, 0)
    with pytest.raises(UsageError, match="no scale"):
        artifact.scale("schedule.head")


def test_arrays_outlive_the_artifact(root: Path) -> None:
    with open_artifact(root) as artifact:
        value = artifact.tensor("schedule.head")
        expected = value.copy()
    np.testing.assert_array_equal(value, expected)
    with pytest.raises(ValueError, match="closed"):
        artifact.raw("schedule.head")
    artifact.close()


def refusal(path: Path) -> ArtifactError:
    with pytest.raises(ArtifactError) as caught:
        open_artifact(path)
    assert caught.value.exit_status is Exit.BAD_ARTIFACT
    return caught.value


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    assert "there is no such artifact" in refusal(tmp_path / "none.hvdc").what


def test_an_unfinished_artifact(root: Path, tmp_path: Path) -> None:
    partial = tmp_path / "model.hvdc.partial"
    shutil.copytree(root, partial)
    error = refusal(partial)
    assert "not finished" in error.what
    assert "--resume" in error.fix


def test_a_file_of_an_artifact_instead_of_the_artifact(root: Path) -> None:
    error = refusal(root / MANIFEST_NAME)
    assert error.code is Code.IO
    assert str(root) in error.fix


def test_a_checkpoint_instead_of_an_artifact(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x")
    assert "a directory, not a file" in refusal(tmp_path / "model.safetensors").what
    assert "this directory is not an artifact" in refusal(tmp_path).what


def test_a_failed_opening_gives_every_descriptor_back(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.hvdc"
    shutil.copytree(root, copy)
    (copy / "schedule" / "tables.bin").unlink()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        assert refusal(copy).code is Code.MISSING_FILE
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_index_of_another_artifact_is_refused(root: Path, tmp_path: Path) -> None:
    copy, other = tmp_path / "copy.hvdc", make_artifact(tmp_path / "other.hvdc", Spec())
    shutil.copytree(root, copy)
    shutil.copy(other / INDEX_NAME, copy / INDEX_NAME)
    assert refusal(copy).code is Code.MANIFEST_HASH


def test_a_newer_minor_version_asks_for_an_update(tmp_path: Path) -> None:
    row = {"name": "manifest-newer-minor", "missing": []}
    error = refusal(assemble(CORPUS, row, tmp_path / "newer.hvdc"))
    assert "written by a newer hvdc" in error.what
    assert error.fix == "update hvdc"
