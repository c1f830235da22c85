"""`hvdc_probe` built with sanitizers, on this machine: facts as lines, by values, and every refusal named.

PoCL is the GPU, and the DSP is a stand-in behind FastRPC's interface: what a phone would be asked is asked here too.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hvdc.measure.platform_facts import PlatformFacts
from tests.device_runtime.gpu import gpu_environment
from tests.device_runtime.rpc import STAND_IN
from tests.device_runtime.runs import REPORTS, SANITIZERS, why_no_gpu
from tests.device_runtime.test_gpu_opencl import EXTENSIONS, HERE, compiled

MIB = 1 << 20
SMALL = ("--largest-mib", 20, "--total-mib", 64, "--mappings", 20)
USAGE = 2

needs_gpu = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")


class Probe:
    def __init__(self, program: Path, kernels: Path) -> None:
        self.program, self.fastrpc = program, program.with_name(STAND_IN)
        self._environment = {**os.environ, **SANITIZERS, **gpu_environment(kernels)}

    def run(self, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self.program, *map(str, arguments)], env=self._environment | env, capture_output=True, text=True,
            check=False, timeout=120,
        )  # fmt: skip
        assert not any(report in done.stderr for report in REPORTS), done.stderr[-4000:]
        return done

    def facts(self, *arguments: object, status: int = 0, **env: str) -> tuple[PlatformFacts, list[dict[str, Any]]]:
        """As they are read, and as they were printed."""
        done = self.run(*arguments, **env)
        assert done.returncode == status, done.stderr
        facts = PlatformFacts()
        for line in done.stdout.splitlines():
            facts.take(line)
        assert facts.odd_lines == 0
        assert facts.is_done
        return facts, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def probe(programs: dict[str, Path], gpu_caches: Path) -> Probe:
    return Probe(programs["hvdc_probe"], gpu_caches)


@needs_gpu
def test_everything_is_tried(probe: Probe) -> None:
    facts, said = probe.facts(*SMALL, "--fastrpc", probe.fastrpc)
    assert facts.kind == "memfd"
    assert facts.chosen is not None
    assert (facts.chosen.way, facts.chosen.gpu, facts.chosen.dsp, facts.chosen.shares) == (
        "host-pointer",
        True,
        True,
        True,
    )
    assert facts.dsp is not None
    assert (facts.dsp.arch, facts.dsp.vtcm_bytes) == (0, 8 * MIB)
    assert [region.bytes // MIB for region in facts.regions] == [1, 16, 20]
    assert all(region.works and region.gpu and region.dsp for region in facts.regions)
    assert facts.counted is not None
    assert (facts.counted.count, facts.counted.total_bytes) == (20, 20 << 16)
    assert facts.summed is not None
    assert (facts.summed.count, facts.summed.total_bytes) == (3, 60 * MIB), "three of the largest that works"
    assert not facts.summed.refused
    assert facts.memory_bytes
    tried = [i for i, fact in enumerate(said) if fact.get("fact") == "trying"]
    for i, fact in enumerate(said):
        if fact.get("fact") in ("region", "dsp", "sharing", "kind", "dot", "gpu"):
            assert i - 1 in tried, "said before it is tried"


@needs_gpu
def test_dot_products_are_judged_by_their_values(probe: Probe) -> None:
    facts, _ = probe.facts("--only", "gpu")
    assert facts.gpus
    assert set(facts.gpus[0].dots) == {"khr", "qcom", "nvidia", "plain"}
    assert "plain" in facts.gpus[0].right_dots
    assert facts.regions == []
    assert facts.gpus[0].max_buffer_bytes > 0


def test_without_engines_it_goes_on(probe: Probe, tmp_path: Path) -> None:
    facts, _ = probe.facts(*SMALL, "--fastrpc", tmp_path / "libcdsprpc.so", OCL_ICD_VENDORS=str(tmp_path))
    assert facts.gpus == []
    assert facts.no_gpu.startswith("OpenCL ")
    assert facts.dsp is None
    assert "cannot be loaded" in facts.no_dsp
    assert facts.largest is not None
    assert not facts.largest.gpu
    assert not facts.largest.dsp
    assert facts.largest.bytes == 20 * MIB


def test_a_dsp_that_maps_nothing_refuses_every_region(probe: Probe, tmp_path: Path) -> None:
    given = (*SMALL, "--fastrpc", probe.fastrpc)
    facts, _ = probe.facts(*given, HVDC_STAND_IN_FAULT="map", OCL_ICD_VENDORS=str(tmp_path))
    assert facts.chosen is not None
    assert (facts.chosen.dsp, facts.chosen.shares) == (False, False)
    assert "FastRPC does not take a descriptor" in facts.chosen.why
    assert facts.largest is None
    assert [(region.bytes, region.refused_by) for region in facts.regions] == [(MIB, "dsp")]
    assert "FastRPC does not take a descriptor" in facts.regions[0].why
    assert facts.counted is not None
    assert (facts.counted.count, facts.counted.refused) == (0, True)
    assert facts.summed is None, "there is no size to map"


def test_a_dsp_that_maps_and_does_not_see_is_no_partner(probe: Probe, tmp_path: Path) -> None:
    given = (*SMALL, "--fastrpc", probe.fastrpc)
    facts, _ = probe.facts(*given, HVDC_STAND_IN_FAULT="deaf", OCL_ICD_VENDORS=str(tmp_path))
    assert facts.chosen is not None
    assert (facts.chosen.dsp, facts.chosen.shares) == (False, False)
    assert "does not read what the CPU wrote there, or the reverse" in facts.chosen.why
    assert [(region.bytes, region.refused_by) for region in facts.regions] == [(MIB, "dsp")]
    assert facts.counted is not None
    assert (facts.counted.count, facts.counted.refused) == (0, True)


def test_what_was_deadly_is_not_tried_and_what_is_known_not_again(probe: Probe, tmp_path: Path) -> None:
    words = ("--avoid", f"region:{16 * MIB}", "--avoid", "dsp:0", "--known-mib", 1, "--skip", "count")
    facts, said = probe.facts(*SMALL, *words, "--fastrpc", probe.fastrpc, OCL_ICD_VENDORS=str(tmp_path))
    tried = {(fact["what"], fact["bytes"]) for fact in said if fact.get("fact") == "trying"}
    assert not {what for what, _ in tried} & {"dsp", "region", "count"}
    assert facts.no_dsp == "not tried: a probe before ended while it tried this"
    assert [(region.bytes, region.works, region.tried) for region in facts.regions] == [(16 * MIB, False, False)], (
        "and nobody feels their way towards it"
    )
    assert facts.counted is None
    assert facts.summed is not None
    assert facts.summed.count == 64, "of the largest that is known"


@pytest.mark.parametrize("what", ["total", "count"])
def test_no_more_is_mapped_than_what_was_deadly(probe: Probe, tmp_path: Path, what: str) -> None:
    each = {"total": 2 * MIB, "count": 64 << 10}[what]
    words = ("--largest-mib", 2, "--total-mib", 100, "--mappings", 40, "--avoid", f"{what}:{33 * each}")
    facts, _ = probe.facts(*words, OCL_ICD_VENDORS=str(tmp_path))
    found = facts.counted if what == "count" else facts.summed
    assert found is not None
    assert (found.count, found.refused) == ({"total": 32, "count": 32}[what], True)
    assert "a probe before ended" in found.why


@needs_gpu
def test_a_form_that_was_deadly_is_not_compiled(probe: Probe) -> None:
    facts, said = probe.facts("--only", "gpu", "--avoid", "qcom:0")
    assert "qcom" not in {fact["what"] for fact in said if fact.get("fact") == "trying"}
    assert facts.gpus[0].dots["qcom"].startswith("not tried")
    assert "plain" in facts.gpus[0].right_dots


def test_a_session_has_so_many_regions(probe: Probe, tmp_path: Path) -> None:
    given = ("--largest-mib", 1, "--total-mib", 1, "--mappings", 300, "--fastrpc", probe.fastrpc)
    facts, _ = probe.facts(*given, OCL_ICD_VENDORS=str(tmp_path))
    assert facts.counted is not None
    assert facts.counted.refused
    assert facts.counted.count == 256
    assert "no more than 256 regions" in facts.counted.why


def test_a_limit_is_found_to_a_mib(probe: Probe, tmp_path: Path) -> None:
    """Of the size of a file, as a process may be given one: memory of kind memfd is files."""
    limited = f"ulimit -f $((23 * 1024 * 2)); exec '{probe.program}' --largest-mib 64 --total-mib 30 --mappings 2"
    done = subprocess.run(
        ["/bin/sh", "-c", f"trap '' XFSZ; {limited}"], capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, **SANITIZERS, "OCL_ICD_VENDORS": str(tmp_path)},
    )  # fmt: skip
    facts = PlatformFacts()
    for line in done.stdout.splitlines():
        facts.take(line)
    assert facts.is_done, done.stderr
    if facts.largest is not None and facts.largest.bytes == 64 * MIB:
        pytest.skip("this machine's anonymous files have no limit of size")
    assert facts.largest is not None
    assert facts.smallest_refused is not None
    assert (facts.largest.bytes, facts.smallest_refused.bytes) == (23 * MIB, 24 * MIB)
    assert facts.smallest_refused.refused_by == "memfd"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--largest-mib", "512"),
        ("--largest-mib", "2048", "--dangerous"),
        ("--largest-mib", "0"),
        ("--largest-mib", "x"),
        ("--largest-mib",),
        ("--mappings", "65537"),
        ("--total-mib", "-1"),
        ("--only", "dsp"),
        ("--device", ""),
        ("--fast", "1"),
        ("--avoid", "region"),
        ("--avoid", ":5"),
        ("--avoid", "region:x"),
        ("--avoid", "r" * 48 + ":5"),
        ("--skip", "regions"),
        ("--known-mib", "0"),
        ("x",),
    ],
    ids=" ".join,
)
def test_arguments_that_mean_nothing(probe: Probe, arguments: tuple[str, ...]) -> None:
    done = probe.run(*arguments)
    assert done.returncode == USAGE
    assert done.stderr.startswith("hvdc_probe: ")
    assert done.stdout == ""


def test_danger_is_said(probe: Probe) -> None:
    assert "took a phone down: give --dangerous too" in probe.run("--largest-mib", 600).stderr
    assert "--dangerous" in probe.run("--help").stdout


@pytest.fixture(scope="module")
def opencl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that records, and shares memory by the way that it is told: no driver."""
    return compiled(HERE / "opencl_stand_in.c", tmp_path_factory.mktemp("opencl") / "libOpenCL.so", "-shared", "-fPIC")


@pytest.mark.parametrize(
    ("shares", "way"),
    [("khr", "khr-dma-buf"), ("dmabuf", "qcom-dmabuf"), ("ion:16549", "qcom-ion"), ("arm", "arm-dma-buf"),
     ("host", "host-pointer")],
)  # fmt: skip
def test_the_way_that_shares_is_found_and_whole_regions_seen_by_it(
    probe: Probe, opencl: Path, tmp_path: Path, shares: str, way: str
) -> None:
    log = tmp_path / "log"
    told = {"STAND_IN_SHARES": shares, "STAND_IN_EXTENSIONS": EXTENSIONS, "STAND_IN_LOG": str(log)}
    facts, _ = probe.facts("--largest-mib", 2, "--total-mib", 4, "--mappings", 4, "--opencl", opencl, **told)
    assert facts.gpus[0].right_dots == (), "it executes no product"
    assert facts.chosen is not None
    assert (facts.chosen.way, facts.chosen.shares) == (way, True)
    assert [(region.bytes, region.works, region.gpu) for region in facts.regions] == [
        (MIB, True, True),
        (2 * MIB, True, True),
    ]
    lines = [line.split(" ") for line in log.read_text().splitlines()]
    assert {int(line[2]) for line in lines if len(line) > 3} >= {MIB, 2 * MIB}, "a region is imported as a whole"
    assert [name for name, *_ in lines].count("acquire") == [name for name, *_ in lines].count("release")


def test_a_driver_that_copies_shares_nothing(probe: Probe, opencl: Path) -> None:
    """It takes every import, and shows what was there before."""
    facts, _ = probe.facts(*SMALL, "--opencl", opencl, STAND_IN_SHARES="", STAND_IN_EXTENSIONS=EXTENSIONS)
    assert facts.chosen is not None
    assert (facts.chosen.way, facts.chosen.gpu, facts.chosen.shares) == ("copy", False, False)
    assert "by no way does the GPU read what is written" in facts.chosen.why
    assert not any(region.gpu for region in facts.regions)


def test_every_device_is_looked_at(probe: Probe, opencl: Path) -> None:
    facts, _ = probe.facts("--only", "gpu", "--opencl", opencl, STAND_IN_DEVICES="2", STAND_IN_PLATFORMS="2")
    assert len(facts.gpus) == 4
