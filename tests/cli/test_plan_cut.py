"""`hvdc plan cut`: what it prints, what it refuses, and that it answers at once."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hvdc.cli.output import seconds_like
from tests.commands import ROOT, Result, environment, hvdc, process

A, B, SHORT = (
    ROOT / "examples" / "rates" / f"galaxy-s25-{name}.toml" for name in ("49-frames-a", "49-frames-b", "17-frames")
)
HEAVY = ("torch", "onnx", "onnxruntime", "numpy", "simpy", "matplotlib", "diffusers", "transformers", "tomli_w")


def cut(rates: Path, *more: object) -> Result:
    return hvdc("plan", "cut", "--rates", rates, *more)


def facts(rates: Path, *more: object) -> Any:
    done = cut(rates, *more, "--json")
    assert done.status == 0, done.err
    return done.json()


def refusal(rates: Path, *more: object) -> dict[str, Any]:
    done = cut(rates, *more, "--json")
    assert done.status == 2
    error: dict[str, Any] = json.loads(done.out)["error"]
    return error


def edited(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    text = B.read_text("utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "rates.toml"
    path.write_text(text, "utf-8")
    return path


def test_the_papers_rates_give_the_papers_cut() -> None:
    done = cut(B)
    assert done.status == 0
    for line in (
        "cut       51 of 180 blocks: a video every 677.0 s, 5.32 an hour",
        "stages    GPU 677.0 s, NPU with the decoder 677.0 s",
        "NPU only  a video every 916.7 s: the cut gives 1.35 times as many",
        "adapter   on the NPU only: the cut is not beyond the expert switch at block κ·L = 90",
        "note: the table has no handoff: it counts as 0 s",
    ):
        assert line in done.out
    assert "step boundary 30" in done.out
    assert "step boundary 60" in done.out
    assert "> 51" in done.out


def test_json_has_what_is_printed_and_the_neighbourhood() -> None:
    told = facts(B, "--around", 2)
    assert (told["cut"], told["executions"], told["expert_switch"], told["adapter_on_gpu"]) == (51, 180, 90, False)
    assert told["period_s"] == pytest.approx(677, abs=0.01)
    assert told["videos_per_hour"] == pytest.approx(3600 / 677, rel=1e-4)
    assert [entry["cut"] for entry in told["cuts"]] == [30, 49, 50, 51, 52, 53, 60]
    for entry in told["cuts"]:
        stages = entry["gpu_s"], entry["npu_s"]
        assert entry["period_s"] == max(stages)
        assert (entry["gpu_idle_s"], entry["npu_idle_s"]) == tuple(max(stages) - stage for stage in stages)
        assert entry["latency_s"] == sum(stages)
        assert entry["period_s"] >= told["period_s"]
    assert [entry["cut"] for entry in facts(B, "--around", 0)["cuts"]] == [51]


def test_sensitivity_says_what_a_rate_that_is_5_percent_off_changes() -> None:
    told = {(entry["rate"], entry["factor"]): entry for entry in facts(B)["sensitivity"]}
    assert set(told) == {(rate, factor) for rate in ("gpu", "npu", "decode") for factor in (0.95, 1.05)}
    slower = told["gpu", 1.05]
    assert slower["cut"] < 51
    assert slower["kept_cut_period_s"] == pytest.approx(51 * 13.2745 * 1.05)
    assert slower["period_s"] < slower["kept_cut_period_s"]
    assert told["decode", 1.05]["cut"] == 52


def test_idle_times_alone_give_a_cut_and_no_period() -> None:
    told = facts(A)
    assert (told["cut"], told["period_s"]) == (52, None)
    assert told["both_blocks_s"] == pytest.approx(15.9)
    assert told["period_least_s"] < told["period_most_s"]
    idle = {entry["cut"]: (entry["gpu_idle_s"], entry["npu_idle_s"]) for entry in told["cuts"]}
    assert idle[30] == (pytest.approx(356), 0)
    assert idle[60] == (0, pytest.approx(121))
    points = {(entry["sum"], entry["factor"]): entry["balance_point"] for entry in told["sensitivity"]}
    assert points["both_blocks_s", 1.05] == pytest.approx(833 / 15.9 / 1.05)
    assert points["npu_whole_s", 0.95] == pytest.approx(0.95 * 833 / 15.9)
    done = cut(A)
    assert "cut       52 of 180 blocks; the engines balance at 52.39" in done.out
    assert "period    between 592 and 833 s" in done.out
    assert "T_G + T_N = 15.900 s; N·L·T_N + T_V = 833.0 s" in done.out


def test_a_table_without_rates_is_said_to_have_none() -> None:
    assert refusal(SHORT)["what"].endswith("it has no gpu.co_run_block_s, npu.co_run_block_s, decode.co_run_s")


def test_a_legal_range_limits_the_cut() -> None:
    assert facts(B, "--max-cut", 40)["cut"] == 40
    assert facts(B, "--min-cut", 60)["cut"] == 60
    assert facts(A, "--max-cut", 40)["cut"] == 40
    for wrong in (("--max-cut", 181), ("--min-cut", 60, "--max-cut", 40), ("--min-cut", 181)):
        assert refusal(B, *wrong)["what"] == "there is no such range of cuts"
    assert cut(B, "--min-cut", -1).status == 2


def test_a_cut_beyond_the_expert_switch_brings_the_adapter_to_the_gpu(tmp_path: Path) -> None:
    assert facts(B, "--min-cut", 90)["adapter_on_gpu"] is False, "block 90 is the NPU's"
    assert facts(B, "--min-cut", 91)["adapter_on_gpu"] is True
    assert "adapter   the GPU needs it: the cut is beyond the expert switch" in cut(B, "--min-cut", 91).out
    unknown = edited(tmp_path, ("semantic_steps = 3\n", ""))
    assert facts(unknown)["adapter_on_gpu"] is None
    assert "does not say where the expert switch is" in cut(unknown).out
    one_expert = edited(tmp_path, ("semantic_steps = 3\n", "semantic_steps = 6\n"))
    assert "adapter   none: there is no expert switch" in cut(one_expert).out


def test_blocks_may_differ(tmp_path: Path) -> None:
    """The NPU's mean is as before, but its share is of the longer blocks: more of the others go to the GPU."""
    steps = "per_step = [2.5, 2.5, 2.5, 3.8566, 3.8566, 3.8566]"
    told = facts(edited(tmp_path, ("value = 3.1783", steps)))
    assert told["cut"] == 53
    assert told["npu_s"] == pytest.approx(37 * 2.5 + 90 * 3.8566 + 267)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("value = 13.2745", "value = -13.2745", "'gpu.co_run_block_s.value' of the rate table is not valid"),
        ("value = 13.2745", "value = nan", "'gpu.co_run_block_s.value' of the rate table is not valid"),
        ("value = 13.2745", 'value = "13270 ms"', "'gpu.co_run_block_s.value' of the rate table is not valid"),
        ("value = 13.2745", "per_block = [1.0]", "has 1 values, not 30"),
        ("value = 13.2745", "", "one of value, per_block, per_step, per_execution, not none"),
    ],
)
def test_bad_rates_are_a_sentence(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert message in refusal(edited(tmp_path, (old, new)))["what"]


def fitting(tmp_path: Path, artifact: Path, *changes: tuple[str, str]) -> Path:
    """A table for an artifact of the tests."""
    m = json.loads((artifact / "manifest.json").read_text())
    semantic = sum(step["expert"] == "semantic" for step in m["steps"])
    sizes = {
        "frames = 49": f"frames = {m['video']['frames']}",
        "tokens = 20280": f"tokens = {m['video']['tokens']}",
        "steps = 6\n": f"steps = {len(m['steps'])}\n",
        "layers = 30": f"layers = {m['geometry']['layers']}",
        "semantic_steps = 3": f"semantic_steps = {semantic}",
    }
    return edited(tmp_path, *sizes.items(), *changes)


def test_an_artifact_must_fit_and_says_where_its_switch_is(tiny_artifact: Path, tmp_path: Path) -> None:
    m = json.loads((tiny_artifact / "manifest.json").read_text())
    layers, steps = m["geometry"]["layers"], len(m["steps"])
    switch = sum(step["expert"] == "semantic" for step in m["steps"]) * layers
    told = facts(fitting(tmp_path, tiny_artifact, (f"semantic_steps = {switch // layers}\n", "")), tiny_artifact)
    assert (told["executions"], told["expert_switch"]) == (steps * layers, switch)
    assert any("no activation scales" in note for note in told["notes"])
    for old, new in (
        (f"frames = {m['video']['frames']}", "frames = 1001"),
        (f"tokens = {m['video']['tokens']}", "tokens = 7"),
        (f"layers = {layers}", f"layers = {layers + 1}"),
    ):
        assert (
            "another model or clip length"
            in refusal(fitting(tmp_path, tiny_artifact, (old, new)), tiny_artifact)["what"]
        )
    other = fitting(tmp_path, tiny_artifact, (f"semantic_steps = {switch // layers}", "semantic_steps = 1"))
    assert "another schedule" in refusal(other, tiny_artifact)["what"]
    assert "was measured on another" in refusal(B, tiny_artifact)["what"]


def test_what_is_no_artifact_is_said(tmp_path: Path) -> None:
    assert cut(B, tmp_path / "none.hvdc").status == 4


def test_a_name_cannot_draw_on_the_terminal(tmp_path: Path) -> None:
    done = cut(edited(tmp_path, ('name = "galaxy-s25-49-frames-b"', 'name = "a\\u001b[31mb"')))
    assert done.status == 0
    assert "\x1b" not in done.out


def test_the_table_is_asked_for() -> None:
    assert "--rates" in hvdc("plan", "cut").err


def test_it_imports_nothing_heavy_and_answers_at_once() -> None:
    """The limit is 0.5 s of processor time: the clock on the wall also counts what else runs on this machine."""
    code = (
        "import sys, time\n"
        "from hvdc.cli.main import run\n"
        f"status = run(['plan', 'cut', '--rates', {str(B)!r}])\n"
        "print(f'{status} {time.process_time()}', *sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True, timeout=60
    )
    status, seconds, *modules = done.stderr.split()
    assert status == "0"
    assert "hvdc.plan.cut_plan" in modules
    assert sorted({name.split(".")[0] for name in modules} & set(HEAVY)) == []
    assert float(seconds) < 0.5


def test_as_a_process() -> None:
    begun = time.monotonic()
    done = process("plan", "cut", "--rates", B, "--json")
    assert (done.status, json.loads(done.out)["cut"]) == (0, 51)
    assert time.monotonic() - begun < 10


def test_engines_whose_rates_are_in_different_units_are_doubted(tmp_path: Path) -> None:
    """Where there are no solo rates that would show it."""
    text = B.read_text("utf-8").replace("value = 13.2745", "value = 13274.5").replace("[gpu.solo_block_s]", "[x]")
    text = re.sub(r"\[x\]\n(?:.+\n)+", "", text)
    (tmp_path / "ms.toml").write_text(text, "utf-8")
    done = cut(tmp_path / "ms.toml")
    assert done.status == 0, done.err
    assert "4,177 times as long as the other: are both in seconds?" in done.out


@pytest.mark.parametrize(
    ("scale_s", "least", "shown"),
    [(677.0, 1, "677.0"), (45.25, 1, "45.2"), (1.0175, 1, "1.02"), (0.0123, 1, "0.0123"), (917.0, 0, "917")],
)
def test_seconds_have_three_digits_whatever_a_model_takes(scale_s: float, least: int, shown: str) -> None:
    assert seconds_like(scale_s, least=least)(scale_s) == shown


@pytest.mark.parametrize("scale_s", [0.0, math.inf, 1e-300])
def test_seconds_of_no_scale_are_written_too(scale_s: float) -> None:
    assert seconds_like(scale_s, least=1)(1.0).startswith("1.0")
