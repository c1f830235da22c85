"""The encodings' file of an artifact: what it keeps, and what is said of one that cannot be used."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.qnn.available import why_not
from hvdc.artifact.codes import Code
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.reader import open_artifact
from hvdc.pipeline.decoder_checks import read_encodings
from hvdc.pipeline.decoder_encodings import Quantised
from quant.decoder.graph import LATENT
from tests.artifacts import forget_answer, replace_opaque
from tests.commands import hvdc
from tests.decoders import entry_of
from tests.emulators import emulator

needs_qnn = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is here")


def test_encodings_and_probe_come_back_from_their_text(whole_artifact: Path) -> None:
    text = (whole_artifact / "decoder" / "encodings.json").read_text()
    held = Quantised.from_json(text)
    assert held.to_json() == text
    assert held.probe.dtype == np.float32
    assert np.isfinite(held.probe).all()
    for damaged in ("", "{}", "[]", text[: len(text) // 2]):
        with pytest.raises((ValueError, KeyError, TypeError)):
            Quantised.from_json(damaged)


def changed(text: str, change: Callable[[dict[str, Any]], None]) -> bytes:
    held = json.loads(text)
    change(held)
    return json.dumps(held).encode()


def probe_of(*shape: int, value: float = 0.0) -> dict[str, Any]:
    data = np.full(shape, value, "<f4").tobytes()
    return {"shape": list(shape), "float32": base64.b64encode(data).decode("ascii")}


def first_group(held: dict[str, Any]) -> list[dict[str, Any]]:
    group = next(name for variant, tensor, name in held["encodings"]["tensors"] if tensor == LATENT)
    return held["encodings"]["groups"][group]


@pytest.mark.parametrize(
    ("change", "where", "found"),
    [
        (lambda held: held.pop("probe"), "", "KeyError"),
        (lambda held: held.update(encodings=[]), "", "TypeError"),
        (lambda held: held["encodings"].update(groups=[]), "", "AttributeError"),
        (lambda held: held["probe"].update(float32="%"), "", "Error"),
        (lambda held: held["encodings"].update(groups={}), "", "KeyError"),
        (lambda held: held["encodings"].update(tensors=[]), "", "there is no encoding for a tensor"),
        (lambda held: first_group(held)[0].update(scale="1"), "", "TypeError"),
        (lambda held: first_group(held)[0].update(dtype="int4"), "", "KeyError"),
        (lambda held: first_group(held)[0].update(scale=0.0), ": latent", "scale=0.0"),
        (lambda held: first_group(held)[0].update(scale=0.25), ": first.latent", "scale=0.25"),
        (lambda held: first_group(held)[1].update(zero_point=-1), ": latent", "zero_point=-1"),
        (lambda held: held.update(probe=probe_of(15, 2, 6, 8)), ": probe", "[15, 2, 6, 8]"),
        (lambda held: held.update(probe=probe_of(16, 1, 6, 8)), ": probe", "[16, 1, 6, 8]"),
        (lambda held: held.update(probe=probe_of(16, 2, 0, 8)), ": probe", "[16, 2, 0, 8]"),
        (lambda held: held.update(probe=probe_of(16, 2, 6, 8, value=np.nan)), ": probe", "NaN or Inf"),
        (lambda held: held.update(probe=probe_of(32)), ": probe", "[32]"),
    ],
)  # fmt: skip
def test_encodings_that_cannot_be_used_are_a_finding(
    change: Callable[[dict[str, Any]], None], where: str, found: str, whole_artifact: Path, tmp_path: Path
) -> None:
    """Of an artifact whose hashes are right: somebody else may have written it."""
    copy = Path(shutil.copytree(whole_artifact, tmp_path / "copy.hvdc"))
    text = (copy / "decoder" / "encodings.json").read_text()
    replace_opaque(copy, "decoder/encodings.json", changed(text, change))
    with open_artifact(copy) as artifact, pytest.raises(ArtifactError) as raised:
        read_encodings(artifact, entry_of(whole_artifact))
    assert raised.value.code == Code.DATA_DECODER
    assert raised.value.where == f"decoder.encodings{where}"
    assert found in raised.value.found


@pytest.mark.parametrize("data", [b" ", b"\xff\xfe", b"[" * 100_000, b"{}"], ids=["nothing", "bytes", "deep", "empty"])
def test_validate_reports_them_as_the_emulators_check(
    data: bytes, whole_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(whole_artifact, tmp_path / "copy.hvdc"))
    replace_opaque(forget_answer(copy), "decoder/encodings.json", data)
    ran = emulator(monkeypatch, lambda name, outputs: outputs)
    done = hvdc("validate", copy, "--emulate", "--json")
    assert done.status == 4
    [finding] = done.json()["findings"]
    assert (finding["check"], finding["code"], finding["where"]) == ("emulator", "DATA_DECODER", "decoder.encodings")
    assert ran == []
