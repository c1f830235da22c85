"""The full-size DCM-Wan2.1, planned from its header alone: the sizes that must come out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporters.model import DCM_WAN21_1_3B, Geometry, base_tensors, canonical_tensors
from exporters.names import Layout, spell
from hvdc.pipeline.artifact_plan import plan_artifact
from hvdc.pipeline.prepare import parameters
from hvdc.plan.memory import GIB, MIB, WeightBytes, memory_table
from hvdc.targets import load_target
from layouts.regions import RegionTooLargeError
from tests.commands import hvdc

CAP = 535_822_336
WAN_14B = Geometry(
    layers=40, width=5120, ffn_width=13824, heads=40, text_width=4096, in_channels=16, out_channels=16,
    patch=(1, 2, 2), freq_dim=256, rank=128, alpha_over_rank=2.0,
)  # fmt: skip


def header_only(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Path:
    """A safetensors file of zeros that takes no disk: only its header is written."""
    header: dict[str, Any] = {}
    at = 0
    for name, shape in shapes.items():
        end = at + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    return path


def spelled_shapes(geometry: Geometry, layout: Layout) -> dict[str, tuple[int, ...]]:
    shapes = canonical_tensors(geometry) if layout == "dcm" else base_tensors(geometry)
    return {spell(name, layout): shape for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def full_size(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return header_only(tmp_path_factory.mktemp("full") / "dcm.safetensors", spelled_shapes(DCM_WAN21_1_3B, "dcm"))


@pytest.fixture(scope="module")
def plan(full_size: Path) -> dict[str, Any]:
    done = hvdc("compile", full_size, "--dry-run", "--json")
    assert done.status == 0, done.err
    facts: dict[str, Any] = done.json()
    return facts


def test_parameters() -> None:
    counted = parameters(DCM_WAN21_1_3B)
    assert counted.base == 1_418_996_800
    assert counted.text_embedder == 8_653_824
    assert counted.ffn_pair == 2 * 1536 * 8960
    assert len(base_tensors(DCM_WAN21_1_3B)) == 825
    assert len(canonical_tensors(DCM_WAN21_1_3B)) == 1317
    assert sum(math.prod(s) for s in canonical_tensors(DCM_WAN21_1_3B).values()) == 1_539_041_408


BYTES = {
    "attention_base": (30 * 8 * (1536**2 + 4 * 1536), "541.406"),
    "ffn_base": (30 * 2 * 1536 * 8960, "787.500"),
    "base_scale": (30 * 4 * (9 * 1536 + 8960), "2.607"),
    "adapter": (30 * 8 * (2 * 128 * 1536 + 4 * (128 + 1536)), "91.523"),
    "block_other": (30 * 4 * (8960 + 1536 + 6 * 1536), "2.256"),
    "schedule": (4 * (6 * 30 * 6 * 1536 + 6 * 2 * 1536) + 8 * 64, None),
}


@pytest.mark.parametrize("kind", BYTES)
def test_bytes_by_kind(kind: str, plan: dict[str, Any]) -> None:
    expected, printed = BYTES[kind]
    assert plan["totals"][f"{kind}_bytes"] == expected
    if printed is not None:
        assert f"{expected / MIB:.3f}" == printed


def test_the_sum_is_1423_mib_and_1_39_gib(plan: dict[str, Any]) -> None:
    stored = sum(plan["totals"][f"{kind}_bytes"] for kind in ("attention_base", "ffn_base", "base_scale", "adapter"))
    assert f"{stored / MIB:,.2f}" == "1,423.04"
    assert f"{stored / GIB:.2f}" == "1.39"


def test_the_host_holds_each_experts_text_projection_and_head(plan: dict[str, Any]) -> None:
    projection = 4096 * 1536 + 1536 + 1536**2 + 1536
    head, patch = 64 * 1536 + 64, 1536 * 64 + 1536
    assert plan["totals"]["host_bytes"] == 4 * (2 * (projection + head) + patch)


def test_memory_of_each_configuration(plan: dict[str, Any]) -> None:
    printed = [f"{row['bytes'] / GIB:.2f}" for row in plan["memory"]]
    assert printed == ["1.39", "1.47", "2.83", "3.71", "5.25"]


def test_transients() -> None:
    totals = plan_artifact(DCM_WAN21_1_3B, 6, CAP).totals()
    weights = WeightBytes(totals, parameters(DCM_WAN21_1_3B))
    assert weights.npu_transient_bytes / MIB == 52.5
    assert weights.gpu_transient_bytes / MIB == 26.25
    rows = {row.name: row for row in memory_table(weights)}
    assert rows["one FP16 copy per engine"].total_bytes == 2 * 2 * (1_418_996_800 - 8_653_824)
    assert rows["data parallel"].weight_bytes == 2 * rows["artifact"].weight_bytes


def test_regions(plan: dict[str, Any]) -> None:
    """One per block, each far below what both engines can map; the adapter in one; all within the mapping budget."""
    regions = [f for f in plan["files"] if f["kind"] == "region"]
    assert [f["path"] for f in regions] == [f"regions/block-{b:03d}.bin" for b in range(30)]
    assert len({f["bytes"] for f in regions}) == 1
    assert all(f["bytes"] % 4096 == 0 and f["bytes"] <= CAP for f in regions)
    assert [f["path"] for f in plan["files"] if f["kind"] == "adapter"] == ["adapters/detail-000.bin"]
    mapped = sum(f["bytes"] for f in plan["files"] if f["kind"] in ("region", "adapter"))
    assert plan["mapping"]["mapped_bytes"] == mapped < plan["mapping"]["budget_bytes"]
    assert plan["totals"]["data_bytes"] == sum(f["bytes"] for f in plan["files"])


@pytest.mark.parametrize(("frames", "tokens"), [(49, 20_280), (33, 14_040), (25, 10_920), (17, 7_800)])
def test_tokens(frames: int, tokens: int, full_size: Path) -> None:
    facts = hvdc("compile", full_size, "--dry-run", "--json", "--frames", frames).json()
    assert facts["video"]["tokens"] == tokens
    assert facts["video"]["latent"] == [(frames - 1) // 4 + 1, 60, 104]


def test_steps(plan: dict[str, Any]) -> None:
    assert [(s["timestep"], s["expert"]) for s in plan["steps"]] == [
        (1000, "semantic"), (992, "semantic"), (982, "semantic"), (949, "detail"), (905, "detail"), (810, "detail"),
    ]  # fmt: skip


def test_the_printed_plan_says_it_all(full_size: Path, tmp_path: Path) -> None:
    done = hvdc("compile", full_size, "--dry-run", "-o", tmp_path / "a.hvdc")
    assert done.status == 0
    for text in ("541.406", "787.500", "2.607", "91.523", "1.39", "1.47", "2.83", "3.71", "5.25", "20,280 tokens",
                 "3,200.000", "511.000", "1000 semantic", "949 detail", "disk", "memory"):  # fmt: skip
        assert text in done.out, text
    assert list(tmp_path.iterdir()) == [], "a dry run writes nothing"


def test_memory_estimate_stays_within_the_promise(plan: dict[str, Any]) -> None:
    assert plan["needs"]["memory_bytes"] <= 1.5 * GIB
    assert plan["needs"]["disk_bytes"] >= plan["totals"]["data_bytes"]


def test_a_14b_model_plans(tmp_path: Path) -> None:
    plan = plan_artifact(WAN_14B, 6, CAP)
    regions = [f.region.bytes for f in plan.files if f.kind == "region"]
    assert len(regions) == 40
    assert 8 * 5120**2 + 2 * 5120 * 13824 < max(regions) <= CAP
    adapters = [f for f in plan.files if f.kind == "adapter"]
    assert sum(f.block_count for f in adapters) == 40
    assert all(f.region.bytes <= CAP for f in adapters)
    path = header_only(tmp_path / "wan14b", spelled_shapes(replace(WAN_14B, rank=0), "wan"))
    done = hvdc("compile", path, "--dry-run", "--json")
    assert done.status == 0, done.err
    assert done.json()["geometry"]["heads"] == 40


def test_adapters_go_into_several_regions_where_one_would_be_too_large() -> None:
    """A group of blocks is never split, and no region is opened before the last one is full."""
    plan = plan_artifact(DCM_WAN21_1_3B, 6, 64 << 20)
    adapters = [f for f in plan.files if f.kind == "adapter"]
    assert len(adapters) == 2
    assert [f.first_block for f in adapters] == [0, adapters[0].block_count]
    assert sum(f.block_count for f in adapters) == 30
    one_block = adapters[0].region.bytes // adapters[0].block_count
    assert (64 << 20) - one_block < adapters[0].region.bytes <= 64 << 20


def test_a_block_above_the_cap_is_refused_with_its_name_and_bytes(tmp_path: Path) -> None:
    large = replace(DCM_WAN21_1_3B, layers=2, width=8192, heads=64, ffn_width=4096, rank=0)
    bytes_ = 8 * 8192**2 + 2 * 8192 * 4096
    assert bytes_ > CAP
    path = header_only(tmp_path / "large", spelled_shapes(large, "wan"))
    done = hvdc("compile", path, "-o", tmp_path / "a.hvdc")
    assert done.status == 3
    assert "block-000" in done.err
    assert f"{CAP:,}" in done.err
    found = next(line for line in done.err.splitlines() if "found:" in line)
    assert int("".join(c for c in found if c.isdigit())) >= bytes_
    assert sorted(p.name for p in tmp_path.iterdir()) == ["large"]


def test_a_cap_is_met_exactly_or_not_at_all() -> None:
    size = plan_artifact(DCM_WAN21_1_3B, 6, CAP).files[0].region.bytes
    plan_artifact(replace(DCM_WAN21_1_3B, rank=0), 6, size)
    with pytest.raises(RegionTooLargeError) as caught:
        plan_artifact(replace(DCM_WAN21_1_3B, rank=0), 6, size - 1)
    assert (caught.value.region_bytes, caught.value.cap_bytes) == (size, size - 1)


def test_the_cap_is_the_targets() -> None:
    assert load_target("sm8750").region_cap_bytes.value == CAP == 511 << 20
