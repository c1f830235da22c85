"""``hvdc plan memory``: tables for people, bytes for programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdc.config import FRAMES_MAX
from tests.commands import hvdc
from tests.hollow import full_size_manifest, write_hollow


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hollow(tmp_path_factory.mktemp("full") / "dcm.hvdc", full_size_manifest())


def test_the_full_size_model_as_people_read_it(artifact: Path) -> None:
    done = hvdc("plan", "memory", artifact)
    assert done.status == 0, done.err
    for text in ("20,280 tokens", "Snapdragon 8 Elite", "10.85 GiB usable", "1.39", "1.47", "2.83", "3.71", "5.25",
                 "1,331.514", "91.523", "59.414", "178.242", "180.000", "hetero-tensor", "GiB left",
                 "no decoder's binaries"):  # fmt: skip
        assert text in done.out, text
    assert "Buffers of the" not in done.out
    assert "Buffers of the NPU's executor" in hvdc("plan", "memory", artifact, "--buffers").out


def test_json_is_in_bytes_and_adds_up(artifact: Path) -> None:
    facts = hvdc("plan", "memory", artifact, "--json").json()
    assert (facts["frames"], facts["tokens"], facts["target"]) == (49, 20_280, "sm8750")
    assert [f"{w['total_bytes'] / 2**30:.2f}" for w in facts["weights"]] == ["1.39", "1.47", "2.83", "3.71", "5.25"]
    assert [m["name"] for m in facts["modes"]] == ["npu", "gpu", "hetero", "dp", "hetero-tensor"]
    for c in facts["modes"] + facts["with_working_buffers"]:
        assert c["resident"]["needed_bytes"] == sum(part["bytes"] for part in c["parts"])
        assert c["fits"] is True
        assert c["resident"]["spare_bytes"] + c["resident"]["needed_bytes"] == c["resident"]["limit_bytes"]
        assert c["mapped"]["source"]


def test_a_clip_that_does_not_fit_is_said(artifact: Path) -> None:
    done = hvdc("plan", "memory", artifact, "--frames", FRAMES_MAX)
    assert done.status == 0, "it is an answer, not a failure"
    assert "GiB too much" in done.out
    facts = hvdc("plan", "memory", artifact, "--frames", FRAMES_MAX, "--json").json()
    assert not all(m["fits"] for m in facts["modes"])


def test_an_impossible_clip_is_refused(artifact: Path) -> None:
    done = hvdc("plan", "memory", artifact, "--frames", 48)
    assert done.status == 2
    assert "4 n + 1" in done.err


@pytest.mark.parametrize("frames", [FRAMES_MAX + 4, 4 * 10**12 + 1])
def test_so_is_one_that_is_longer_than_any_that_is_compiled(artifact: Path, frames: int) -> None:
    done = hvdc("plan", "memory", artifact, "--frames", frames)
    assert done.status == 2
    assert "at most 1,025 frames" in done.err
    assert f"{frames:,}" in done.err


def test_so_is_what_is_no_artifact(tmp_path: Path) -> None:
    assert hvdc("plan", "memory", tmp_path / "none.hvdc").status == 4
