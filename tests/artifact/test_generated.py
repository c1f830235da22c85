"""Generated files are committed, and none is stale."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from hvdc.artifact.generate import ROOT, generated
from hvdc.artifact.manifest import MANIFEST_NAME
from tests.malformed.make import CORPUS
from tests.malformed.registry import BASES


@pytest.mark.parametrize("path", generated(), ids=lambda path: path.name)
def test_a_generated_file_is_fresh(path: Path) -> None:
    """Run ``python -m hvdc.artifact.generate`` when this fails."""
    assert path.read_text("utf-8") == generated()[path]


@pytest.mark.parametrize("base", BASES)
def test_the_shipped_schema_accepts_a_manifest_and_refuses_an_unknown_key(base: str) -> None:
    schema = json.loads((ROOT / "hvdc" / "artifact" / "manifest.schema.json").read_text("utf-8"))
    manifest = json.loads((CORPUS / base / MANIFEST_NAME).read_text("utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    validator.validate(manifest)
    manifest["files"][0]["colour"] = "red"
    with pytest.raises(jsonschema.ValidationError, match="colour"):
        validator.validate(manifest)
