"""``hvdc plan tensor``: what it prints, what it refuses, and that it starts fast."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hvdc.artifact.reader import open_artifact
from hvdc.plan.costs import Costs, EngineCosts
from hvdc.plan.gemm_table import measured_gemms
from hvdc.plan.gemms import BlockSizes, block_gemms
from hvdc.plan.rates import load_rates
from hvdc.plan.tensor_plan import plan_tensor, with_shared_blocks
from tests.artifacts import make_artifact
from tests.commands import ROOT, hvdc, process

PUBLISHED = ROOT / "examples" / "rates" / "gemms" / "snapdragon-8-gen-3.toml"
HEAD = """
name = "mine"
device = "a phone"
conditions = "each engine alone"
[exchange]
home = "npu"
source = "measured today"
[exchange.sync_s]
value = 1e-4
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


def rate_table(artifact: Path, folder: Path, *lines: str) -> Path:
    """The GEMMs of `of_artifact` in a whole rate table, with the NPU's time of a block."""
    gemms = of_artifact(artifact, folder).read_text("utf-8").partition("[[gemm]]")[2]
    path = folder / "rates.toml"
    head = (
        'name = "r"\ndevice = "a phone"\ntarget = "sm8750"\nthermal = "cold"\n'
        "frames = 17\ntokens = 8\nsteps = 2\nlayers = 2\n"
        '[npu.solo_block_s]\nvalue = 1.0\nsource = "measured today"\n'
    )
    path.write_text("\n".join([head, *lines, "[[gemm]]"]) + gemms, "utf-8")
    return path


EXCHANGE = '[exchange]\nsource = "measured today"\n[exchange.sync_s]\nvalue = 1e-4\nsource = "measured today"\n'


def test_a_rate_table_says_what_a_shared_block_takes(artifact: Path, tmp_path: Path) -> None:
    table = rate_table(artifact, tmp_path, EXCHANGE)
    facts = hvdc("plan", "tensor", artifact, "--rates", table, "--json").json()
    saved = facts["npu_linears_s"] - facts["linears_s"]
    assert saved > 0
    assert facts["tensor_block_s"] == pytest.approx([1.0 - saved] * 4)
    printed = hvdc("plan", "tensor", artifact, "--rates", table).out
    assert f"a block: 1.000 s on the NPU alone, {1 - saved:.3f} s shared" in printed


def test_a_rate_table_of_another_clip_length_is_refused(artifact: Path, tmp_path: Path) -> None:
    table = rate_table(artifact, tmp_path, EXCHANGE)
    table.write_text(table.read_text("utf-8").replace("tokens = 8\n", "tokens = 9\n", 1), "utf-8")
    done = hvdc("plan", "tensor", artifact, "--rates", table)
    assert done.status == 2
    assert "another clip length" in done.err


def test_the_simulators_costs_take_it(artifact: Path, tmp_path: Path) -> None:
    rates = load_rates(rate_table(artifact, tmp_path, EXCHANGE))
    with open_artifact(artifact) as opened:
        plan = plan_tensor(measured_gemms(rates), BlockSizes.of(opened.manifest))
    costs = Costs(4, EngineCosts(None, None), EngineCosts((1.0,) * 4, None), 0.0)
    assert with_shared_blocks(costs, plan).tensor_block_s == plan.tensor_block_s
    assert plan.tensor_block_s is not None
    measured = replace(costs, tensor_block_s=(2.0,) * 4)
    assert with_shared_blocks(measured, plan) == measured, "what was measured wins over what was planned"


def test_a_rate_table_with_gemms_and_no_exchange_is_refused(artifact: Path, tmp_path: Path) -> None:
    done = hvdc("plan", "tensor", artifact, "--rates", rate_table(artifact, tmp_path))
    assert done.status == 2
    assert "not what it costs that both engines meet" in done.err


def test_a_rate_table_without_gemms_is_refused_in_a_sentence() -> None:
    done = hvdc("plan", "tensor", "--rates", ROOT / "examples" / "rates" / "galaxy-s25-49-frames-b.toml")
    assert done.status == 2
    assert "has no GEMM times" in done.err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("value = 1e-4", "value = -1.0", r"'exchange\.sync_s\.value' .* greater than or equal to 0"),
        ("value = 1e-4", "value = nan", r"finite"),
        ('home = "npu"', 'home = "cpu"', "exchange.home"),
        ('home = "npu"', "npu_standard_tokens = [64, 32]", "must ascend"),
        ('home = "npu"', "npu_standard_tokens = []", "npu_standard_tokens"),
        ('home = "npu"', "ratios = [[1, 0]]", "ratios"),
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
    heavy = ("torch", "onnx", "matplotlib", "numpy")
    code = f"import sys, hvdc.cli.plan_tensor; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert process("plan", "tensor", "--help").status == 0
