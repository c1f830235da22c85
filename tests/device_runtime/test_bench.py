"""`hvdc_bench` on a tiny artifact, built with sanitizers: what it reports, how steady it says that is, what it refuses.

Times are compared with each other and with the whole program's, never with a number.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hvdc.artifact.reader import open_artifact
from tests import calibrations
from tests.device_runtime.qnn_stand_in import add_binaries
from tests.device_runtime.runs import REPORTS, SANITIZERS, why_no_gpu

STEADY, USAGE, UNSTEADY, ARTIFACT, DEVICE = 0, 2, 3, 4, 5
ANY = ("--spread-limit", "1e9")
"""Steady, whatever else this machine does."""

needs_gpu = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")

_COUNT = {"type": "integer", "minimum": 0}
_SECONDS = {"type": "number", "exclusiveMinimum": 0}


def _all_of(properties: dict[str, object]) -> dict[str, object]:
    return {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False
    }  # fmt: skip


SERIES = _all_of(
    {
        "engine": {"enum": ["npu", "gpu", "cpu"]},
        "what": {"enum": ["block", "text_keys", "text_projection", "decode"]},
        "beside": {"enum": ["nothing", "npu", "gpu"]},
        "expert": {"enum": ["semantic", "detail", None]},
        "count": {"type": "integer", "minimum": 1},
        "min_s": _SECONDS,
        "median_s": _SECONDS,
        "max_s": _SECONDS,
        "spread": {"type": "number", "minimum": 0},
    }
)
GPU = _all_of({name: {"type": "string"} for name in ("platform", "device", "dot", "import")})
RATES = _all_of({"gpu_block_s": _SECONDS, "npu_block_s": _SECONDS, "decode_s": {"type": ["number", "null"]}})
REPORT = _all_of(
    {
        "hvdc_bench": {"const": 2},
        "artifact": {"type": "string"},
        "index_sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        **dict.fromkeys(("tokens", "own_tokens", "threads", "warm_up", "repeat", "decode_repeat"), _COUNT),
        "spread_limit": {"type": "number"},
        "gpu": {"anyOf": [GPU, {"type": "null"}]},
        "npu": {
            "anyOf": [_all_of({"place": {"type": "string"}, "sums": {"enum": ["fast", "exact"]}}), {"type": "null"}]
        },
        "decoder": {"type": ["string", "null"]},
        "weights": {"type": "string"},
        "series": {"type": "array", "items": SERIES},
        "rates": {"anyOf": [RATES, {"type": "null"}]},
        "steady": {"type": "boolean"},
    }
)
"""What reads the report may rely on; another shape needs another number in ``hvdc_bench``."""


@pytest.fixture(scope="module")
def artifact(watched_checkpoint: Path, calibration: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two blocks, six steps, eight tokens, with activation scales."""
    output = tmp_path_factory.mktemp("calibrated") / "small.hvdc"
    assert calibrations.run_compile(watched_checkpoint, output, "--calibration", calibration, "-q").status == 0
    return output


class Bench:
    """The program, with kept kernels."""

    def __init__(self, program: Path, kernels: Path) -> None:
        self.program, self.kernels = program, kernels

    def run(self, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self.program, *map(str, arguments)], env={**os.environ, **SANITIZERS, **env}, capture_output=True,
            text=True, check=False, timeout=120,
        )  # fmt: skip
        assert not any(report in done.stderr for report in REPORTS), done.stderr[-4000:]
        return done

    def report(self, artifact: Path, *arguments: object, status: int = STEADY) -> dict[str, Any]:
        done = self.run(artifact, "--json", "--kernel-cache", self.kernels, *arguments)
        assert done.returncode == status, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        jsonschema.validate(report, REPORT)
        return report


@pytest.fixture(scope="module")
def bench(programs: dict[str, Path], gpu_caches: Path) -> Bench:
    return Bench(programs["hvdc_bench"], gpu_caches / "ours")


def kinds(report: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {(s["engine"], s["what"], s["beside"]) for s in report["series"]}


@needs_gpu
def test_both_engines_are_measured_alone_and_at_once(bench: Bench, artifact: Path) -> None:
    start = time.monotonic()
    report = bench.report(artifact, "--repeat", 3, *ANY)
    elapsed = time.monotonic() - start
    engines = {(e, w, b) for e, o in (("npu", "gpu"), ("gpu", "npu")) for w, b in
               (("block", "nothing"), ("block", o), ("text_keys", "nothing"))}  # fmt: skip
    assert kinds(report) == engines | {("cpu", "text_projection", "nothing")}
    assert len(report["series"]) == 2 * 7, "of both experts"
    for series in report["series"]:
        assert series["count"] == 3
        assert 0 < series["min_s"] <= series["median_s"] <= series["max_s"] < elapsed
        expected = (series["max_s"] - series["min_s"]) / series["median_s"]
        assert series["spread"] == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert report["gpu"]["device"]
    assert report["weights"] == "memfd", "one copy for both, as hvdc_runner has it"
    mapped = bench.report(artifact, "--repeat", 1, "--weights", "mapped", *ANY)
    assert mapped["weights"] == "mapped"


@needs_gpu
def test_rates_are_the_mean_over_the_steps_while_both_work(bench: Bench, artifact: Path) -> None:
    """What `hvdc_runner --gpu-block-s --npu-block-s` takes: medians, weighted by how many steps are an expert's."""
    report = bench.report(artifact, *ANY)
    with open_artifact(artifact) as opened:
        experts = [int(step["expert"]) for step in opened.index.steps]
    medians = {
        (s["engine"], s["expert"]): s["median_s"]
        for s in report["series"] if s["what"] == "block" and s["beside"] != "nothing"
    }  # fmt: skip
    for engine in ("npu", "gpu"):
        mean = sum(medians[engine, ("semantic", "detail")[expert]] for expert in experts) / len(experts)
        assert report["rates"][f"{engine}_block_s"] == pytest.approx(mean, rel=1e-6)


def test_the_npu_alone_needs_no_opencl(bench: Bench, artifact: Path, tmp_path: Path) -> None:
    done = bench.run(artifact, "--engine", "npu", "--json", *ANY, OCL_ICD_VENDORS=str(tmp_path))
    report = json.loads(done.stdout)
    jsonschema.validate(report, REPORT)
    assert report["gpu"] is None
    assert report["rates"] is None
    assert {s["engine"] for s in report["series"]} == {"npu", "cpu"}
    assert {s["beside"] for s in report["series"]} == {"nothing"}


def test_more_tokens_take_longer(bench: Bench, artifact: Path) -> None:
    """So many that nothing else on this machine can hide it."""

    def block_s(*arguments: object) -> float:
        report = bench.report(artifact, "--engine", "npu", "--warm-up", 0, "--repeat", 2, *ANY, *arguments)
        return min(float(s["min_s"]) for s in report["series"] if s["what"] == "block")

    assert block_s("--tokens", 1024) > block_s("--tokens", 4)


def test_tokens_are_the_artifacts_own_unless_given(bench: Bench, artifact: Path) -> None:
    own = bench.report(artifact, "--engine", "npu", *ANY)
    other = bench.report(artifact, "--engine", "npu", "--tokens", 40, *ANY)
    assert own["tokens"] == own["own_tokens"] == other["own_tokens"] == 8
    assert other["tokens"] == 40


def test_times_that_differ_more_than_allowed_are_not_steady(bench: Bench, artifact: Path) -> None:
    """Two measurements in nanoseconds of several series are never all equal."""
    done = bench.run(artifact, "--engine", "npu", "--json", "--spread-limit", 0, "--repeat", 20)
    assert done.returncode == UNSTEADY
    assert not json.loads(done.stdout)["steady"]
    assert "not steady: times of the same work differ by more than 0 of their median" in done.stderr


def test_a_single_time_has_no_spread(bench: Bench, artifact: Path) -> None:
    report = bench.report(artifact, "--engine", "npu", "--repeat", 1, "--spread-limit", 0)
    assert report["steady"]
    assert {s["spread"] for s in report["series"]} == {0}


def test_people_get_a_table(bench: Bench, artifact: Path) -> None:
    lines = bench.run(artifact, "--engine", "npu", *ANY).stdout.splitlines()
    assert lines[0].startswith("8 tokens, ")
    assert lines[1] == "NPU: portable, sums fast"
    assert lines[2].split() == ["on", "what", "beside", "expert", "min", "s", "median", "s", "max", "s", "spread"]
    assert [line.split()[:4] for line in lines[3:5]] == [["npu", "block", "nothing", e] for e in ("semantic", "detail")]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "ARTIFACT is missing"),
        (("a", "b"), "b is no option, or one argument too many"),
        (("a", "--fast"), "--fast is no option"),
        (("a", "--repeat"), "--repeat needs a value"),
        (("a", "--repeat", "0"), "--repeat does not take 0"),
        (("a", "--repeat", "1001"), "--repeat does not take 1001"),
        (("a", "--tokens", "-1"), "--tokens does not take -1"),
        (("a", "--tokens", "99999999999"), "--tokens does not take 99999999999"),
        (("a", "--engine", "cpu"), "--engine does not take cpu"),
        (("a", "--npu", "cpu"), "--npu does not take cpu"),
        (("a", "--weights", "lost"), "--weights does not take lost"),
        (("a", "--npu-sums", "slow"), "--npu-sums does not take slow"),
        (("a", "--decode-repeat", "0"), "--decode-repeat does not take 0"),
        (("a", "--vtcm-kib", "4194304"), "--vtcm-kib does not take 4194304"),
        (("a", "--engine", "gpu", "--qnn-libraries", "x"), "--qnn-libraries has no effect with --engine gpu"),
        (("a", "--spread-limit", "nan"), "--spread-limit does not take nan"),
        (("a", "--kernel-cache", ""), "--kernel-cache does not take "),
    ],
)
def test_arguments_that_mean_nothing(bench: Bench, arguments: tuple[str, ...], why: str) -> None:
    done = bench.run(*arguments)
    assert done.returncode == USAGE
    assert done.stderr.startswith(f"hvdc_bench: {why}")
    assert not done.stdout


def test_what_is_no_artifact_is_refused(bench: Bench, tmp_path: Path) -> None:
    done = bench.run(tmp_path)
    assert done.returncode == ARTIFACT
    assert "index.bin" in done.stderr
    assert "[MISSING_FILE]" in done.stderr


@pytest.mark.parametrize("tokens", [2**24 + 1, 2**32 - 1])
def test_too_many_tokens_are_refused(tokens: int, bench: Bench, artifact: Path) -> None:
    done = bench.run(artifact, "--engine", "npu", "--tokens", tokens)
    assert done.returncode == USAGE
    assert "above 2^24 tokens" in done.stderr
    assert not done.stdout


def test_a_large_clip_needs_no_more_than_memory(bench: Bench, artifact: Path) -> None:
    """81 frames of 720 × 1280 are more tokens than an axis may have. They take long, so that memory ends it here."""
    little = {"ASAN_OPTIONS": "allocator_may_return_null=1:max_allocation_size_mb=4:detect_leaks=0"}
    done = subprocess.run(
        [bench.program, artifact, "--engine", "npu", "--tokens", "75600"], env={**os.environ, **little},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert "hvdc_bench: no memory for " in done.stderr


def test_without_a_driver_the_gpu_is_refused(bench: Bench, artifact: Path, tmp_path: Path) -> None:
    done = bench.run(artifact, OCL_ICD_VENDORS=str(tmp_path))
    assert done.returncode == DEVICE
    assert "OpenCL" in done.stderr
    assert not done.stdout


def test_without_activation_scales_only_the_npu_is_measured(
    bench: Bench, watched_checkpoint: Path, tmp_path: Path
) -> None:
    artifact = tmp_path / "uncalibrated.hvdc"
    assert calibrations.run_compile(watched_checkpoint, artifact, "-q").status == 0
    done = bench.run(artifact)
    assert done.returncode == USAGE
    assert "has no activation scales, which the GPU needs: give --engine npu" in done.stderr
    assert bench.report(artifact, "--engine", "npu", *ANY)["series"]


def test_help_names_every_status(bench: Bench) -> None:
    done = bench.run("--help")
    assert done.returncode == 0
    assert "3 measured, but not steady" in done.stdout


def test_exact_sums_are_another_engine(bench: Bench, artifact: Path) -> None:
    report = bench.report(artifact, "--engine", "npu", "--npu-sums", "exact", *ANY)
    assert report["npu"] == {"place": "portable", "sums": "exact"}


def test_the_engine_behind_fastrpc_is_measured(bench: Bench, artifact: Path) -> None:
    """Through the stand-in for FastRPC's library, whose DSP is this machine: a phone's would be asked the same."""
    library = bench.program.with_name("libcdsprpc_stand_in.so")
    given = ("--engine", "npu", "--npu", "dsp", "--fastrpc", library, "--repeat", 2, "--json", *ANY)
    done = bench.run(artifact, *given)
    assert done.returncode == STEADY, done.stderr
    assert "stand-in:" not in done.stderr, "all that was mapped is given back"
    report = json.loads(done.stdout)
    jsonschema.validate(report, REPORT)
    assert report["npu"]["place"].startswith("Hexagon v")
    assert {s["engine"] for s in report["series"]} == {"npu", "cpu"}


def test_without_fastrpc_the_dsp_is_refused(bench: Bench, artifact: Path) -> None:
    done = bench.run(artifact, "--engine", "npu", "--npu", "dsp", "--fastrpc", "/nowhere/libcdsprpc.so")
    assert done.returncode == DEVICE
    assert "libcdsprpc.so" in done.stderr
    assert not done.stdout


@pytest.fixture
def decoding(tmp_path: Path, runnable_artifact: Path) -> Path:
    """With a decoder whose binaries the stand-in for QNN executes."""
    copy = Path(shutil.copytree(runnable_artifact, tmp_path / "a.hvdc"))
    add_binaries(copy)
    return copy


def test_the_decoder_is_measured(bench: Bench, decoding: Path, stand_in: Path) -> None:
    given = ("--engine", "npu", "--qnn-libraries", stand_in, "--decode-repeat", 3, *ANY)
    report = bench.report(decoding, *given)
    series = [s for s in report["series"] if s["what"] == "decode"]
    assert [(s["engine"], s["beside"], s["expert"], s["count"]) for s in series] == [("npu", "nothing", None, 3)]
    assert report["decoder"].startswith("QNN ")
    assert report["decode_repeat"] == 3


@needs_gpu
def test_the_decoder_is_measured_beside_the_gpu(bench: Bench, decoding: Path, stand_in: Path) -> None:
    report = bench.report(decoding, "--qnn-libraries", stand_in, *ANY)
    decode = {s["beside"]: s["median_s"] for s in report["series"] if s["what"] == "decode"}
    assert set(decode) == {"nothing", "gpu"}
    assert report["rates"]["decode_s"] == pytest.approx(decode["gpu"])


def test_a_decoder_that_cannot_be_opened_is_refused(bench: Bench, decoding: Path, tmp_path: Path) -> None:
    done = bench.run(decoding, "--engine", "npu", "--qnn-libraries", tmp_path)
    assert done.returncode != STEADY
    assert done.stderr.startswith("hvdc_bench: ")
    assert not done.stdout


@pytest.mark.parametrize("more", [(), ("--engine", "npu")], ids=["both", "npu"])
def test_progress_counts_to_its_total(bench: Bench, artifact: Path, more: tuple[str, ...]) -> None:
    if not more and why_no_gpu():
        pytest.skip(why_no_gpu())
    given = ("--json", "--progress", "--repeat", 2, "--kernel-cache", bench.kernels, *more, *ANY)
    done = bench.run(artifact, *given)
    assert done.returncode == STEADY, done.stderr
    begun, *events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('{"event"')]
    assert begun == {"event": "begun", "total": len(events)}
    assert sorted(event["done"] for event in events) == list(range(1, events[0]["total"] + 1))
    assert {event["total"] for event in events} == {len(events)}
    assert len(events) == sum(s["count"] for s in json.loads(done.stdout)["series"])
