"""``hvdc plan tensor``: what it prints, what it refuses, and that it starts fast."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvdc.artifact.reader import open_artifact
from hvdc.plan.gemms import BlockSizes, block_gemms
from tests.artifacts import make_artifact
from tests.commands import ROOT, hvdc, process

PUBLISHED = ROOT / "examples" / "rates" / "gemms" / "snapdragon-8-gen-3.toml"
HEAD = """
name = "mine"
device = "a phone"
conditions = "each engine alone"
[exchange]
sync_s = 1e-4
source = "measured today"
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_artifact(tmp_path_factory.mktemp("plan") / "a.hvdc")


def gemm_lines(tokens: int, k: int, n: int, gpu_s: float, npu_s: float) -> str:
    return "".join(
        f'[[gemm]]\nname = "{k} to {n}"\nengine = "{engine}"\ntokens = {tokens}\nin_features = {k}\n'
        f'out_features = {n}\nseconds = {seconds}\nsource = "measured today"\n'
        for engine, seconds in (("gpu", gpu_s), ("npu", npu_s))
    )


def of_artifact(artifact: Path, folder: Path, *, leave_out: int = 0) -> Path:
    with open_artifact(artifact) as opened:
        gemms = block_gemms(BlockSizes.of(opened.manifest))
    shapes = sorted({(g.tokens, g.in_features, g.out_features) for g in gemms})
    path = folder / "gemms.toml"
    path.write_text(HEAD + "".join(gemm_lines(*shape, 0.03, 0.02) for shape in shapes[leave_out:]), "utf-8")
    return path


def test_the_published_gemms_are_decided_and_printed() -> None:
    done = hvdc("plan", "tensor", "--rates", PUBLISHED)
    assert done.status == 0, done.err
    chosen = [line.split("*", 1)[1].split()[0] for line in done.out.splitlines() if " * " in line]
    assert chosen == ["row-cut", "row-cut", "gpu", "npu", "npu", "row-cut", "row-cut"]
    assert "21,504 columns" in done.out
    assert "gain: over the GPU alone" in done.out


def test_json_says_the_same() -> None:
    facts = hvdc("plan", "tensor", "--rates", PUBLISHED, "--json").json()
    by_name = {g["name"]: g for g in facts["gemms"]}
    gate = by_name["gate and up, decoding"]
    chosen = next(p for p in gate["considered"] if p["kind"] == gate["chosen"])
    assert (chosen["gpu_columns"], chosen["npu_columns"], chosen["gpu_share"]) == (21504, 7168, 0.75)
    assert chosen["total_s"] == max(chosen["gpu_s"], chosen["npu_s"]) + chosen["exchange_s"]
    assert gate["gain_s"] == pytest.approx(1903e-6 - chosen["total_s"])
    assert facts["gpu_share"] is None, "GEMMs of another model are no block"


def test_the_block_of_an_artifact_gets_its_share(artifact: Path, tmp_path: Path) -> None:
    table = of_artifact(artifact, tmp_path)
    facts = hvdc("plan", "tensor", artifact, "--rates", table, "--json").json()
    assert [g["name"] for g in facts["gemms"]][:2] == ["attn1.to_q", "attn1.to_k"]
    assert len(facts["gemms"]) == 10
    assert facts["not_measured"] == []
    assert 0 < facts["gpu_share"] < 1
    assert facts["linears_s"] < facts["npu_linears_s"]
    printed = hvdc("plan", "tensor", artifact, "--rates", table).out
    assert f"--mode hetero-tensor --gpu-share {facts['gpu_share']:g}" in printed
    assert "once per prompt" in printed


def test_linears_without_times_are_named(artifact: Path, tmp_path: Path) -> None:
    table = of_artifact(artifact, tmp_path, leave_out=2)
    done = hvdc("plan", "tensor", artifact, "--rates", table)
    assert done.status == 0, done.err
    assert "not measured on both engines" in done.out
    facts = hvdc("plan", "tensor", artifact, "--rates", table, "--json").json()
    assert facts["not_measured"]
    assert facts["gpu_share"] is None


def test_a_rate_table_without_gemms_is_refused_in_a_sentence() -> None:
    done = hvdc("plan", "tensor", "--rates", ROOT / "examples" / "rates" / "galaxy-s25-49-frames.toml")
    assert done.status == 2
    assert "has no GEMM times" in done.err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sync_s = 1e-4", "sync_s = -1.0", r"'exchange\.sync_s' .* greater than or equal to 0"),
        ("sync_s = 1e-4", "sync_s = nan", r"finite"),
        ("sync_s = 1e-4", 'sync_s = 1e-4\nhome = "cpu"', "exchange.home"),
        ("sync_s = 1e-4", "sync_s = 1e-4\nnpu_standard_tokens = [64, 32]", "must ascend"),
        ("sync_s = 1e-4", "sync_s = 1e-4\nratios = [[1, 0]]", "ratios"),
        ("seconds = 0.5", "seconds = 0.0", "greater than 0"),
        ("seconds = 0.5", "seconds = inf", "finite"),
        ('engine = "gpu"', 'engine = "dsp"', "engine"),
        ("tokens = 8", "tokens = 0", "tokens"),
        ('"measured today"', '"?"', "10 characters"),
        ('name = "mine"', 'name "mine"', "cannot be read"),
        ('name = "mine"', 'name = "mine"\nnonsense = 1', "nonsense"),
        ('engine = "npu"', 'engine = "gpu"', "two times of one GEMM on the gpu"),
    ],
)
def test_a_table_that_is_not_valid_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = HEAD + gemm_lines(8, 32, 64, 0.5, 0.25)
    assert old in text
    path = tmp_path / "gemms.toml"
    path.write_text(text.replace(old, new, 1), "utf-8")
    done = hvdc("plan", "tensor", "--rates", path)
    assert done.status == 2
    assert re.search(message, done.err), done.err


def test_names_from_the_table_cannot_move_the_cursor(tmp_path: Path) -> None:
    text = HEAD.replace('"mine"', '"mi\\u001b[2Jne"') + gemm_lines(8, 32, 64, 0.5, 0.25)
    path = tmp_path / "gemms.toml"
    path.write_text(text, "utf-8")
    done = hvdc("plan", "tensor", "--rates", path)
    assert done.status == 0, done.err
    assert "\x1b" not in done.out


def test_it_imports_nothing_heavy() -> None:
    code = "import sys, hvdc.cli.plan_tensor; print([m for m in ('torch', 'onnx', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert process("plan", "tensor", "--help").status == 0
