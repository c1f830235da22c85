"""``hvdc plan tensor``: what it prints, what it refuses, and that it starts fast."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from hvdc.artifact.reader import open_artifact
from hvdc.plan.gemm_table import measured_gemms
from hvdc.plan.gemms import BlockSizes, block_gemms
from hvdc.plan.rates import load_rates
from hvdc.plan.tensor_plan import plan_tensor, shared_block_costs
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


CO_RUN = "".join(
    f'[{key}]\nvalue = {seconds}\nsource = "measured today"\n'
    for key, seconds in (
        ("npu.solo_block_s", 3.0), ("npu.co_run_block_s", 3.0), ("gpu.solo_block_s", 12.0),
        ("gpu.co_run_block_s", 12.0), ("decode.solo_s", 200.0), ("decode.co_run_s", 200.0),
    )
)  # fmt: skip


def phone_table(folder: Path, *lines: str, npu_s: float = 0.1) -> Path:
    """Rates of DCM-Wan2.1's blocks with the times of its GEMMs."""
    head = 'name = "r"\ndevice = "a phone"\ntarget = "sm8750"\nthermal = "cold"\n'
    sizes = "frames = 49\ntokens = 20280\nsteps = 6\nlayers = 30\n"
    gemms = "".join(gemm_lines(20_280, k, n, 0.2, npu_s) for k, n in ((1536, 1536), (1536, 8960), (8960, 1536)))
    path = folder / "rates.toml"
    path.write_text("\n".join([head + sizes, CO_RUN, *lines, gemms]), "utf-8")
    return path


def tensor_facts(*arguments: object) -> dict[str, Any]:
    (facts,) = hvdc("plan", "simulate", "--mode", "hetero-tensor", "--json", *arguments).json()["configurations"]
    return cast("dict[str, Any]", facts)


def test_the_simulator_takes_the_solvers_block(tmp_path: Path) -> None:
    table = phone_table(tmp_path, EXCHANGE)
    solved = plan_tensor(measured_gemms(load_rates(table))).tensor_block_s
    assert solved is not None
    assert solved[0] < 3.0
    assert tensor_facts("--rates", table)["period_s"] == pytest.approx(sum(solved) + 200.0)


def test_a_measured_block_wins_over_the_solvers(tmp_path: Path) -> None:
    measured = '[tensor_block_s]\nvalue = 2.5\nsource = "measured today"\n'
    table = phone_table(tmp_path, EXCHANGE, measured)
    assert tensor_facts("--rates", table)["period_s"] == pytest.approx(180 * 2.5 + 200.0)


def test_without_the_cost_of_an_exchange_no_block_is_solved(tmp_path: Path) -> None:
    assert shared_block_costs(load_rates(phone_table(tmp_path))).tensor_block_s is None


def test_gemms_that_take_longer_than_their_block_are_refused_where_they_count(tmp_path: Path) -> None:
    table = phone_table(tmp_path, EXCHANGE, npu_s=1.0)
    done = hvdc("plan", "simulate", "--rates", table)
    assert (done.status, "contradict each other" in done.err) == (2, True), done.err
    assert hvdc("plan", "simulate", "--rates", table, "--mode", "npu").status == 0


def test_a_model_of_which_nothing_was_measured_is_refused(artifact: Path) -> None:
    done = hvdc("plan", "tensor", artifact, "--rates", PUBLISHED)
    assert (done.status, done.out) == (2, "")
    assert "no time of any linear of this model" in done.err


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "9" * 10_000], ids=["nested", "digits"])
def test_what_no_reader_survives_is_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "gemms.toml"
    path.write_text(text, "utf-8")
    done = hvdc("plan", "tensor", "--rates", path)
    assert (done.status, "cannot be read" in done.err) == (2, True), done.err


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
