"""Artifacts of every released minor version still open, and the current version's bytes come out the same anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdc.artifact import records
from hvdc.artifact.reader import open_artifact
from hvdc.artifact.validate import validate_deep
from tests.fixtures.make import FOLDER, compile_fixture, fixture_scales

VERSIONS = sorted(path.name for path in FOLDER.iterdir() if path.is_dir() and path.name[0].isdigit())
CURRENT = f"{records.MAJOR}.{records.MINOR}"


def test_the_current_version_has_a_fixture() -> None:
    assert CURRENT in VERSIONS, "run python -m tests.fixtures.make"


@pytest.mark.parametrize("version", VERSIONS)
def test_it_opens_and_is_sound(version: str) -> None:
    with open_artifact(FOLDER / version / "tiny.hvdc") as artifact:
        assert f"{artifact.manifest.format.major}.{artifact.manifest.format.minor}" == version
        assert validate_deep(artifact) == []


def test_compiling_its_checkpoint_again_gives_its_bytes(tmp_path: Path) -> None:
    """The fixture was made on another machine, perhaps by another numpy: only the versions in `tools` may differ."""
    kept = FOLDER / CURRENT / "tiny.hvdc"
    source = FOLDER / CURRENT / "source.safetensors"
    compile_fixture(source, tmp_path / "tiny.hvdc", activations=fixture_scales())
    with open_artifact(kept) as a, open_artifact(tmp_path / "tiny.hvdc") as b:
        assert a.manifest.model_copy(update={"tools": {}}) == b.manifest.model_copy(update={"tools": {}})
        for file in a.manifest.files:
            assert (kept / file.path).read_bytes() == (tmp_path / "tiny.hvdc" / file.path).read_bytes(), file.path
