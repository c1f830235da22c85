"""`hvdc bench --host`: a table that `hvdc plan cut` reads, or a sentence. Times are a stand-in's but in one test."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvdc.artifact.reader import open_artifact
from hvdc.measure.conditions import Conditions
from hvdc.plan.cut import best_cut
from hvdc.plan.rates import load_rates
from tests.commands import Result, hvdc, undocumented
from tests.device_runtime.runs import why_no_gpu
from tests.measure.programs import MEDIANS, events, report, series, stand_in

TOKENS = 8


@pytest.fixture
def bench(tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """``bench(answer, *options)``: `hvdc bench` whose program answers so."""

    def run(
        answer: object, *options: object, status: int = 0, said: tuple[str, ...] = (), write: bool = True
    ) -> Result:
        text = answer if isinstance(answer, str) else json.dumps(answer)
        runtime = stand_in(tmp_path / "runtime", text, status, said)
        monkeypatch.setattr("hvdc.measure.bench_run.find_runtime", lambda target, progress, say: runtime)
        more = ("-o", tmp_path / "rates.toml") if write else ()
        return hvdc("bench", artifact, "--host", *more, *options)

    return run


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "rates.toml"


def words(tmp_path: Path) -> list[str]:
    """What the program was called with."""
    return (tmp_path / "runtime" / "words").read_text().splitlines()


def test_the_table_places_a_cut(bench: Callable[..., Result], table: Path, artifact: Path) -> None:
    done = bench(report(TOKENS), "--cooling", "fan, plugged in", said=tuple(events(3)))
    assert done.status == 0, done.err
    rates = load_rates(table)
    with open_artifact(artifact) as opened:
        experts = [step.expert for step in opened.manifest.steps]
        layers = opened.manifest.geometry.layers
    assert (rates.tokens, rates.steps, rates.layers) == (TOKENS, len(experts), layers)
    assert rates.semantic_steps == experts.count("semantic")
    for engine, other in (("gpu", "npu"), ("npu", "gpu")):
        for field, beside in (("solo_block_s", "nothing"), ("co_run_block_s", other)):
            rate = getattr(getattr(rates, engine), field)
            expected = [MEDIANS[engine, beside, expert] for expert in experts for _ in range(layers)]
            assert list(rate.expanded(rates.steps, rates.layers)) == expected
            assert "by hvdc bench: median of 5 of each expert, spread 2.0%" in rate.source
    assert rates.thermal.startswith("cooling: fan, plugged in; 1 blocks of warm-up; before: ")
    assert "Adreno of a test" in rates.device
    assert "Hexagon v79 of a test" in rates.device
    cut = hvdc("plan", "cut", "--rates", table, "--json")
    assert cut.status == 0, cut.err
    assert cut.json()["cut"] == best_cut(rates.rates, rates.executions)


def test_a_decoder_that_is_not_there_takes_no_time(bench: Callable[..., Result], table: Path) -> None:
    assert bench(report(TOKENS)).status == 0
    decode = load_rates(table).decode
    assert decode.co_run_s is not None
    assert (decode.co_run_s.value, decode.co_run_s.source) == (0.0, "the artifact has no decoder: nothing is decoded")


def unsteady(spread: float = 0.5) -> dict[str, Any]:
    blocks = [series(e, "block", b, x, s) for (e, b, x), s in MEDIANS.items()]
    blocks[2] = series("npu", "block", "gpu", "semantic", 3.3, spread)
    return report(TOKENS, series=blocks, steady=False)


def test_a_run_that_is_not_steady_is_not_written(bench: Callable[..., Result], table: Path) -> None:
    done = bench(unsteady(), status=3)
    assert done.status == 1
    assert "the run is not steady, and nothing was written" in done.err
    assert "NPU block beside the GPU, semantic expert: 2.475 to 4.125 s, spread 50%" in done.err
    assert "--keep-unsteady" in done.err
    assert "NPU works" in done.out, "what was measured is shown all the same"
    assert not table.exists()


def test_it_can_be_kept_and_says_so(bench: Callable[..., Result], table: Path) -> None:
    done = bench(unsteady(), "--keep-unsteady", status=3)
    assert done.status == 0, done.err
    rates = load_rates(table)
    assert rates.thermal.startswith("NOT STEADY: spread up to 50%; ")
    assert rates.npu.co_run_block_s is not None
    assert rates.npu.co_run_block_s.source.startswith("NOT STEADY: measured ")
    assert rates.gpu.co_run_block_s is not None
    assert "NOT STEADY" not in rates.gpu.co_run_block_s.source
    assert "NOT STEADY" in done.out


def test_the_limit_is_the_persons(bench: Callable[..., Result], table: Path, tmp_path: Path) -> None:
    assert bench(unsteady(), "--max-spread", "0.5", status=3).status == 0
    assert words(tmp_path)[words(tmp_path).index("--spread-limit") + 1] == "0.5"
    assert bench(unsteady(0.51), "--max-spread", "0.5", "--force").status == 1


def test_only_what_a_table_holds_must_be_steady(bench: Callable[..., Result]) -> None:
    """The CPU's text projection of the stand-in differs, and decides nothing."""
    assert bench(report(TOKENS), status=3).status == 0


def test_options_reach_the_program(bench: Callable[..., Result], tmp_path: Path, artifact: Path) -> None:
    options = ("--repeat", 7, "--warm-up", 2, "--npu-sums", "exact", "--threads", 3, "--opencl-device", "cpu")
    assert bench(report(TOKENS), *options).status == 0
    found = words(tmp_path)
    assert found[0] == str(artifact)
    for option, value in (("--repeat", "7"), ("--warm-up", "2"), ("--npu-sums", "exact"), ("--threads", "3"),
                          ("--device", "cpu"), ("--engine", "both")):  # fmt: skip
        assert found[found.index(option) + 1] == value
    assert {"--json", "--progress"} <= set(found)


def test_one_engine_is_a_table_that_places_no_cut(bench: Callable[..., Result], table: Path) -> None:
    alone = [series("npu", "block", "nothing", x, MEDIANS["npu", "nothing", x]) for x in ("semantic", "detail")]
    done = bench(report(TOKENS, series=alone, gpu=None, rates=None), "--engine", "npu")
    assert done.status == 0, done.err
    rates = load_rates(table)
    assert rates.npu.solo_block_s is not None
    assert (rates.npu.co_run_block_s, rates.gpu.solo_block_s) == (None, None)
    cut = hvdc("plan", "cut", "--rates", table)
    assert cut.status == 2, "a cut needs both"


@pytest.mark.parametrize(
    ("answer", "status", "said", "message", "exit_status"),
    [
        ("", 0, (), "its report is no JSON", 1),
        ('{"hvdc_bench": 2', 0, (), "its report is no JSON", 1),
        ('{"hvdc_bench": 9}', 0, (), "another version", 1),
        ("", 5, ("hvdc_bench: OpenCL has no platform",), "OpenCL has no platform", 5),
        ("", 4, ("hvdc_bench: the artifact is odd",), "the artifact is odd", 4),
        ("", 1, ("a driver's words",), "ended without a report", 1),
        (report(TOKENS + 1), 0, (), "a rate table is of the artifact's own clip length", 2),
        (
            report(TOKENS, series=[series("npu", "block", "nothing", "semantic", 1.0)]),
            0,
            (),
            "no block of the detail",
            2,
        ),
    ],
)
def test_what_the_program_cannot_do_is_a_sentence(
    bench: Callable[..., Result], table: Path, answer: object, status: int, said: tuple[str, ...], message: str,
    exit_status: int,
) -> None:  # fmt: skip
    done = bench(answer, status=status, said=said)
    assert message in done.err
    assert "Traceback" not in done.err
    assert done.status == exit_status
    assert not table.exists()


def test_json_has_everything(bench: Callable[..., Result], table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Conditions({"cpu": 41.0}, {"gpu": (900, 1000)})
    monkeypatch.setattr("hvdc.measure.bench.parse_conditions", lambda text: seen)
    done = bench(report(TOKENS), "--json", "--rest-s", "0.05")
    assert done.err == ""
    facts = done.json()
    assert undocumented("bench", facts) == []
    assert facts["steady"]
    assert facts["table"] == str(table)
    assert facts["rest_s"] == 0.05
    assert facts["before"] == {
        "temperatures_c": {"cpu": 41.0},
        "clocks_hz": {"gpu": {"now_hz": 900, "most_hz": 1000}},
        "throttling": None,
        "battery_percent": None,
        "charging": None,
        "plugged_into": [],
        "whole_phone_w": None,
        "screen": None,
        "saves_power": None,
    }
    assert set(facts["during"]) == {"cost_s", "every_s", "seen"}
    assert facts["report"]["rates"]["gpu_block_s"] == 13.2
    assert "hottest 41.0 °C (cpu)" in load_rates(table).thermal
    assert "rested for 0.05 s" in load_rates(table).thermal


def test_without_an_output_nothing_is_written(bench: Callable[..., Result], table: Path) -> None:
    done = bench(report(TOKENS), write=False)
    assert done.status == 0, done.err
    assert "NPU works" in done.out
    assert not table.exists()


def test_what_is_there_is_not_replaced_unasked(bench: Callable[..., Result], table: Path, tmp_path: Path) -> None:
    table.write_text("mine")
    done = bench(report(TOKENS))
    assert done.status == 2
    assert "the output exists" in done.err
    assert table.read_text() == "mine"
    assert not (tmp_path / "runtime" / "words").exists(), "refused before anything was measured"
    assert bench(report(TOKENS), "--force").status == 0
    assert load_rates(table).name == "rates"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--max-spread", "-1"), "this is no spread"),
        (("--max-spread", "nan"), "this is no spread"),
        (("--rest-s", "-1"), "no time to rest"),
        (("--rest-s", "1e9"), "no time to rest"),
        (("--no-decode", "--decode-repeat", "2"), "--decode-repeat would have no effect"),
        (("--decode-with", "device"), "--decode-with"),  # a phone's decoder, on this machine
        (("--engine", "npu", "--opencl-device", "0"), "--opencl-device would have no effect"),
        (("--engine", "gpu", "--npu-sums", "exact"), "--npu-sums would have no effect"),
    ],
)
def test_options_that_mean_nothing(bench: Callable[..., Result], options: tuple[str, ...], message: str) -> None:
    done = bench(report(TOKENS), *options)
    assert done.status == 2
    assert message in done.err


def test_a_place_must_be_named(artifact: Path) -> None:
    done = hvdc("bench", artifact)
    assert done.status == 2
    assert "--host" in done.err


def test_an_uncalibrated_artifact_is_refused_at_once(tiny_artifact: Path, table: Path) -> None:
    start = time.monotonic()
    done = hvdc("bench", tiny_artifact, "--host", "-o", table)
    assert done.status == 2
    assert "no activation scales" in done.err
    assert "--engine npu" in done.err
    assert time.monotonic() - start < 10


def test_this_machine_is_measured(
    runnable_artifact: Path, table: Path, runtimes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks by the runtime, the decoder by onnxruntime, alone and beside the GPU's blocks."""
    if why := why_no_gpu():
        pytest.skip(why)
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))
    start = time.monotonic()
    done = hvdc("bench", runnable_artifact, "--host", "-o", table, "--repeat", 2, "--max-spread", "1e9")
    elapsed_s = time.monotonic() - start
    assert done.status == 0, done.err
    rates = load_rates(table)
    assert rates.decode.solo_s is not None
    assert rates.decode.co_run_s is not None
    assert 0 < rates.decode.solo_s.value < elapsed_s
    assert 0 < rates.decode.co_run_s.value < elapsed_s
    assert rates.decode.co_run_s.source.endswith("by onnxruntime")
    for engine in (rates.gpu, rates.npu):
        assert engine.solo_block_s is not None
        assert engine.co_run_block_s is not None
    assert "this machine" in rates.device
    assert hvdc("plan", "cut", "--rates", table).status == 0


def test_an_artifact_of_ones_own_target_has_rates(bench: Callable[..., Result], table: Path) -> None:
    """A target that only `hvdc probe` knows."""
    done = bench(report(TOKENS))
    assert done.status == 0, done.err
    table.write_text(table.read_text().replace('target = "sm8750"', 'target = "sm8650"'))
    assert hvdc("plan", "cut", "--rates", table).status == 0


def test_the_emulators_decoder_is_the_runtimes(
    bench: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its libraries reach the program, which decodes on the x86 emulator."""

    class Emulator:
        def __init__(self, artifact: object) -> None:
            self.libraries = Path("/qnn/libraries")

    monkeypatch.setattr("hvdc.measure.bench_run._has_decoder", lambda manifest, decoder: decoder is not None)
    monkeypatch.setattr("hvdc.pipeline.run_decoders.InStream", Emulator)
    done = bench(report(TOKENS), "--decode-with", "emulator", "--decode-repeat", 2)
    assert done.status == 0, done.err
    found = words(tmp_path)
    assert found[found.index("--qnn-libraries") + 1] == "/qnn/libraries"
    assert found[found.index("--decode-repeat") + 1] == "2"
