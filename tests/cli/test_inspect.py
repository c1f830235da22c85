"""`hvdc inspect` and `hvdc diff`: what an artifact holds, and how two differ."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from exporters.model import TINY
from hvdc.artifact.reader import open_artifact
from tests.artifacts import edit_tensor, read_manifest, write_manifest
from tests.commands import compiled, hvdc
from tests.conftest import RAGGED


def test_the_summary_says_what_it_is(tiny_artifact: Path) -> None:
    text = hvdc("inspect", tiny_artifact).out
    model_sha256 = json.loads((tiny_artifact / "manifest.json").read_text())["model_sha256"]
    for words in (
        "format 1.3", "2 blocks, width 256", "semantic, detail", "rank 16 × 2", "17 frames of 64 × 64", "80 tokens",
        "Snapdragon 8 Elite", model_sha256, "Bytes by kind", "Weight memory", "-0.008000",
    ):  # fmt: skip
        assert words in text, words


def test_json_holds_totals_memory_steps_and_experts(tiny_artifact: Path) -> None:
    facts = hvdc("inspect", tiny_artifact, "--json").json()
    layers, width, ffn = TINY.layers, TINY.width, TINY.ffn_width
    assert facts["totals"]["attention_base_bytes"] == layers * 8 * (width**2 + 4 * width)
    assert facts["totals"]["ffn_base_bytes"] == layers * 2 * width * ffn
    assert facts["totals"]["base_scale_bytes"] == layers * 4 * (9 * width + ffn)
    padded_rank = 32
    assert facts["totals"]["adapter_bytes"] == layers * 8 * (2 * padded_rank * width + 4 * (padded_rank + width))
    assert facts["experts"] == ["semantic", "detail"]
    assert len(facts["steps"]) == 6
    assert len(facts["memory"]) == 5
    held = sum(v for k, v in facts["totals"].items() if k not in ("padding_bytes", "data_bytes"))
    assert held + facts["totals"]["padding_bytes"] == facts["totals"]["data_bytes"]
    data = [path for path in tiny_artifact.glob("*/*.bin") if path.parent.name != "runtime"]
    assert facts["totals"]["data_bytes"] == sum(path.stat().st_size for path in data)


def test_memory_alone(tiny_artifact: Path) -> None:
    text = hvdc("inspect", tiny_artifact, "--memory").out
    assert "one merged INT8 copy per engine" in text
    assert "Bytes by kind" not in text


def test_tensors_by_pattern(tiny_artifact: Path) -> None:
    found = hvdc("inspect", tiny_artifact, "--tensors", "blocks.1.*.bias", "--json").json()
    assert len(found) == 10 + 1
    assert {f["file"] for f in found} == {"regions/block-001.bin"}
    text = hvdc("inspect", tiny_artifact, "--tensors", "blocks.1.*.bias").out
    assert "blocks.1.ffn.net.2.bias" in text
    assert "11 tensors" in text
    everything = hvdc("inspect", tiny_artifact, "--tensors", "*", "--json").json()
    with open_artifact(tiny_artifact) as artifact:
        assert [t["name"] for t in everything] == list(artifact)


def test_one_tile_as_a_grid(ragged_artifact: Path) -> None:
    """Rows are k, columns n; the last tile of a ragged weight shows its padding."""
    name = "blocks.0.ffn.net.0.proj.weight"
    with open_artifact(ragged_artifact) as artifact:
        matrix = artifact.tensor(name)
    last = (RAGGED.ffn_width // 32, RAGGED.width // 32)
    facts = hvdc("inspect", ragged_artifact, "--tile", name, *last, "--json").json()
    padded = np.zeros((224, 160), np.int8)
    padded[:200, :140] = matrix
    assert facts["tile"] == padded[192:, 128:].T.tolist()
    lines = hvdc("inspect", ragged_artifact, "--tile", name, *last).out.splitlines()
    assert "hmx-int8-k4" in lines[0]
    assert [int(n) for n in lines[1].split()[1:]] == list(range(32))
    assert [[int(v) for v in line.split()] for line in lines[2:]] == [
        [k, *row] for k, row in enumerate(padded[192:, 128:].T.tolist())
    ]


@pytest.mark.parametrize(("row", "col"), [("7", "0"), ("0", "5"), ("-1", "0"), ("a", "0"), ("0.5", "0")])
def test_a_tile_that_is_not_there(row: str, col: str, ragged_artifact: Path) -> None:
    done = hvdc("inspect", ragged_artifact, "--tile", "blocks.0.ffn.net.0.proj.weight", row, col)
    assert done.status == 2
    assert "n tile 0 to 6, k tile 0 to 4" in done.err


def test_a_row_major_tensor_has_no_tiles(ragged_artifact: Path) -> None:
    done = hvdc("inspect", ragged_artifact, "--tile", "blocks.0.ffn.net.2.bias", 0, 0)
    assert done.status == 2
    assert "row-major" in done.err


def test_the_same_artifact_does_not_differ(ragged_artifact: Path, tmp_path: Path) -> None:
    shutil.copytree(ragged_artifact, tmp_path / "b.hvdc")
    done = hvdc("diff", ragged_artifact, tmp_path / "b.hvdc")
    assert (done.status, done.out) == (0, "the same\n")
    facts = hvdc("diff", ragged_artifact, tmp_path / "b.hvdc", "--json").json()
    assert facts == {"same": True, "tools": [], "structure": [], "files": [], "tensors": []}


def test_versions_of_the_tools_are_said_but_are_no_difference(ragged_artifact: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(ragged_artifact, tmp_path / "b.hvdc"))
    write_manifest(other, read_manifest(other).model_copy(update={"tools": {"hvdc": "0.0.1"}}))
    done = hvdc("diff", ragged_artifact, other)
    assert done.status == 0
    assert done.out.endswith("the same\n")
    assert "0.0.1" in done.out


def test_a_difference_of_structure(ragged_checkpoint: Path, ragged_artifact: Path, tmp_path: Path) -> None:
    other = compiled(ragged_checkpoint, tmp_path / "b.hvdc", "--frames", 21)
    done = hvdc("diff", ragged_artifact, other, "--json")
    facts = done.json()
    assert done.status == 10
    assert "configuration.frames: 17 → 21" in facts["structure"]
    assert "video.tokens: 80 → 96" in facts["structure"]
    assert facts["files"] == []
    assert facts["tensors"] == []
    assert "configuration.frames: 17 → 21" in hvdc("diff", ragged_artifact, other).out


def test_another_number_of_steps(ragged_checkpoint: Path, ragged_artifact: Path, tmp_path: Path) -> None:
    other = compiled(ragged_checkpoint, tmp_path / "b.hvdc", "--set", "timesteps=[1000, 900]")
    facts = hvdc("diff", ragged_artifact, other, "--json").json()
    assert any(line.startswith("steps.") for line in facts["structure"])
    assert facts["files"] == ["schedule/tables.bin"]


def test_a_difference_of_numbers(ragged_artifact: Path, tmp_path: Path) -> None:
    """One INT8 value moved by one step: found, counted, and measured in the weight's unit."""
    name = "blocks.1.attn2.to_k.weight"
    other = tmp_path / "b.hvdc"
    shutil.copytree(ragged_artifact, other)

    def change(data: bytearray, entry: object) -> None:
        data[0] = (data[0] + 1) % 100

    edit_tensor(other, name, change)
    done = hvdc("diff", ragged_artifact, other, "--json")
    facts = done.json()
    assert done.status == 10
    assert facts["structure"] == []
    assert facts["files"] == ["regions/block-001.bin"]
    (tensor,) = facts["tensors"]
    assert (tensor["name"], tensor["changed"], tensor["elements"]) == (name, 1, 140 * 140)
    with open_artifact(ragged_artifact) as a, open_artifact(other) as b:
        assert tensor["max_abs"] == pytest.approx(float(np.abs(a.dequantized(name) - b.dequantized(name)).max()))
    assert 20 < tensor["sqnr_db"] < 120
    text = hvdc("diff", ragged_artifact, other).out
    assert "regions/block-001.bin" in text
    assert name in text


def test_a_damaged_copy_differs_although_its_manifest_does_not(ragged_artifact: Path, tmp_path: Path) -> None:
    """Bytes are compared, not what was once recorded about them."""
    other = tmp_path / "b.hvdc"
    shutil.copytree(ragged_artifact, other)
    file = other / "regions" / "block-000.bin"
    data = bytearray(file.read_bytes())
    data[77] ^= 0x10
    file.write_bytes(data)
    facts = hvdc("diff", ragged_artifact, other, "--json").json()
    assert facts["same"] is False
    assert facts["files"] == ["regions/block-000.bin"]
    assert [t["name"] for t in facts["tensors"]] == ["blocks.0.attn1.to_q.weight"]


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_numbers_that_json_does_not_have(value: float, ragged_artifact: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.hvdc"
    shutil.copytree(ragged_artifact, other)
    edit_tensor(
        other, "blocks.0.ffn.net.2.bias", lambda data, _: data.__setitem__(slice(0, 4), np.float32(value).tobytes())
    )
    done = hvdc("diff", ragged_artifact, other, "--json")
    assert done.status == 10, done.err
    assert [t["name"] for t in done.json()["tensors"]] == ["blocks.0.ffn.net.2.bias"]
    assert hvdc("diff", ragged_artifact, other).status == 10


def test_one_expert_against_two(tiny_artifact: Path, ragged_artifact: Path) -> None:
    done = hvdc("diff", tiny_artifact, ragged_artifact, "--json")
    assert done.status == 10
    assert "geometry.width: 256 → 140" in done.json()["structure"]


def test_views_exclude_each_other_and_memory_can_be_json(tiny_artifact: Path) -> None:
    assert hvdc("inspect", tiny_artifact, "--memory", "--tensors", "*").status == 2
    rows = hvdc("inspect", tiny_artifact, "--memory", "--json").json()
    assert [row["name"] for row in rows][:2] == ["artifact", "two engines, one copy"]
