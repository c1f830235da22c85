"""The self-test of a phone's NPU where an emulator takes its place: everything passes, and a fault is found by the
check that names it.

What it says of a real device's units, only that device can tell.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from device_runtime.build import HEXAGON_EMULATED
from tests.device_runtime.hexagon import (
    NEWEST_CPU_OF_EVERY_EMULATOR,
    Fault,
    built_for_hexagon,
    emulated,
    rebuilt,
    why_no_hexagon,
)
from tests.device_runtime.rpc import STAND_IN, Skel
from tests.device_runtime.rpc_client import Client

pytestmark = pytest.mark.skipif(bool(why_no_hexagon()), reason=why_no_hexagon() or "there is one")

ARCH = "v79"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_for_hexagon(tmp_path_factory)


def states(command: list[str]) -> tuple[int, dict[str, tuple[str, str]]]:
    """Exit status, and name -> state and reason of every check."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert all(len(line) == 4 for line in lines), done
    found = {name: (state, why) for name, state, why, _ in lines}
    assert len(found) == len(lines)
    for _, state, why, meaning in lines:
        assert bool(meaning) == (state == "FAILED")
        assert bool(why) == (state != "passed")
    return done.returncode, found


@pytest.mark.parametrize("arch", HEXAGON_EMULATED)
def test_everything_passes_under_the_emulator(build: Path, arch: str) -> None:
    status, found = states(emulated(build, arch, "hvdc_selftest_dsp"))
    assert {name: state for name, (state, _) in found.items() if state != "passed"} == {}
    assert status == 0
    assert sum(name.startswith("vector: ") for name in found) == 13
    assert sum(name.startswith("matrix: ") for name in found) == 7
    assert {"clock", "DMA: copies"} <= set(found)


@pytest.mark.parametrize("kib", [32, 64, 4096, 4100])
def test_what_there_is_no_memory_for_is_not_called_passed(build: Path, kib: int) -> None:
    """The vector unit's checks use none."""
    left_out = set()
    for unit in ("matrix: ", "DMA: "):
        status, found = states([*emulated(build, ARCH, "hvdc_selftest_dsp"), str(kib), unit])
        assert status == 0
        left_out |= {name for name, (state, _) in found.items() if state == "not checked"}
    assert left_out == {
        name
        for name, least in (("matrix: ends of VTCM, scales, sums that are kept", 136), ("DMA: copies", 54))
        if kib < least
    }


def test_one_check_can_be_asked_for(build: Path) -> None:
    command = [*emulated(build, ARCH, "hvdc_selftest_dsp"), "64"]
    assert states([*command, "vector: sums of"]) == (0, {"vector: sums of subnormal numbers": ("passed", "")})
    assert states([*command, "no such check"]) == (1, {})


def test_too_little_memory_is_said(build: Path) -> None:
    command = [*emulated(build, ARCH, "hvdc_selftest_dsp"), "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "1 KiB of VTCM are too few" in done.stderr


VECTOR, WEIGHTS, STAGED = ("selftest_vector.c",), ("hvx_tiles.c",), ("hmx_staged.c",)
"""What is compiled again."""
CHECKED = {VECTOR: ["vector: "], WEIGHTS: [], STAGED: ["matrix: "]}
"""Which checks can then find something: the others are the code that passes everything above. [] for all."""


def each(name: str, expression: str, wrong: str) -> Fault:
    return Fault("lanes_emulated.h", f"LANES_EACH({name}, {expression})", f"LANES_EACH({name}, {wrong})", VECTOR)


FLUSHED = "((y.values[i] < 0x1p-126f && y.values[i] > -0x1p-126f) ? 0.0f : y.values[i])"

FAULTS: dict[str, tuple[Fault, set[str]]] = {
    "sums are too small": (
        each("lanes_add", "x.values[i] + y.values[i]", "(float)((double)(x.values[i] + y.values[i]) * (1 - 0x1p-23))"),
        {"vector: sums", "vector: exponentials", "vector: quotients"},
    ),
    "sums flush subnormal numbers": (
        each("lanes_add", "x.values[i] + y.values[i]", f"x.values[i] + {FLUSHED}"),
        {"vector: sums of subnormal numbers"},
    ),
    "differences flush subnormal numbers": (
        each("lanes_sub", "x.values[i] - y.values[i]", f"x.values[i] - {FLUSHED}"),
        {"vector: differences of subnormal numbers"},
    ),
    "differences are reversed": (
        each("lanes_sub", "x.values[i] - y.values[i]", "y.values[i] - x.values[i]"),
        {"vector: differences", "vector: quotients"},
    ),
    "products flush subnormal numbers": (
        each("lanes_mul", "x.values[i] * y.values[i]", f"x.values[i] * {FLUSHED}"),
        {"vector: products that are subnormal"},
    ),
    "narrowing interleaves its two inputs": (
        Fault("lanes_emulated.h", "return Q6_Vh_vpacke_VwVw(", "return Q6_Vh_vshuffe_VhVh(", VECTOR),
        {"vector: order of narrowing"},
    ),
    "an exponential that is right for small scores only": (
        Fault("lanes.h", "lanes_max(x, lanes_splat(-127.0f))", "lanes_max(x, lanes_splat(-16.0f))", VECTOR),
        {"vector: exponentials"},
    ),
    "widening loses subnormal numbers": (
        Fault(
            "lanes_emulated.h",
            "Q6_V_vsplat_R(0x400), magnitude), subnormal, normal)",
            "Q6_V_vsplat_R(0x400), magnitude), Q6_V_vzero(), normal)",
            VECTOR,
        ),
        {"vector: widening"},
    ),
    "codes lose their sign": (
        Fault("lanes_emulated.h", "Q6_Vw_vasr_VwR(words, 24)", "Q6_Vuw_vlsr_VuwR(words, 24)", WEIGHTS),
        {"vector: weights"},
    ),
    "a store goes one byte too far": (
        Fault("lanes.h", "(end < sizeof(lanes) ? end :", "(end < sizeof(lanes) ? end + 1u :", VECTOR),
        {"vector: parts of vectors"},
    ),
    "one instruction takes too few tiles": (
        Fault("hmx_staged.c", "e(rows, weights, count)", "e(rows, weights, count - count / 32u)", STAGED),
        {"matrix: pairs of tiles"},
    ),
    "copies lose their stride": (
        Fault("hmx_staged.c", "_bytes = p->halfs_stride * TILE_BYTES", "_bytes = TILE_BYTES", STAGED),
        {"matrix: rows and columns of tiles"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_the_check_that_names_it(build: Path, tmp_path: Path, name: str) -> None:
    fault, due = FAULTS[name]
    program = rebuilt(build, "hvdc_selftest_dsp", ARCH, tmp_path, fault)
    command = ["qemu-hexagon", "-cpu", NEWEST_CPU_OF_EVERY_EMULATOR, str(program)]
    status, found = states([*command, "8192", *CHECKED[fault.compiled]])
    assert status == 1
    failed = {check for check, (state, _) in found.items() if state == "FAILED"}
    assert due <= failed
    others = failed - due
    assert len(others) <= 4, others  # what is computed with it


def selftest(programs: dict[str, Path], *words: str, dsp: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """``hvdc_selftest`` with a stand-in of FastRPC's library; ``dsp``: the command that is the DSP's end."""
    library = programs["hvdc_selftest"].parent / STAND_IN
    environment = {**os.environ} if dsp is None else {**os.environ, "HVDC_STAND_IN_DSP": " ".join(dsp)}
    command = [str(programs["hvdc_selftest"]), *words]
    if "--library" not in words:
        command += ["--library", str(library)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_cpu_asks_the_dsp(build: Path, programs: dict[str, Path]) -> None:
    dsp = emulated(build, ARCH, "hvdc_dsp")
    said = selftest(programs, "--vtcm-kib", "64", dsp=dsp)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("Hexagon v79, ")
    assert said.stdout.endswith("none failed\n")
    done = selftest(programs, "--json", "--vtcm-kib", "64", dsp=dsp)
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert (report["arch"], report["failed"], report["worthless"]) == (79, 0, 0)
    assert sum(check["state"] == "not checked" for check in report["checks"]) == 1
    lines = said.stdout.splitlines()[1:-1]
    assert [words for words in lines if words[0] != " "] == [
        f"{check['name']:48} {check['state']}" for check in report["checks"]
    ]


def test_what_fails_on_the_dsp_is_said_with_what_it_means(
    build: Path, programs: dict[str, Path], tmp_path: Path
) -> None:
    fault, _ = FAULTS["codes lose their sign"]
    dsp = rebuilt(build, "hvdc_dsp", ARCH, tmp_path, fault)
    command = ["qemu-hexagon", "-cpu", NEWEST_CPU_OF_EVERY_EMULATOR, str(dsp)]
    done = selftest(programs, dsp=command)
    assert done.returncode == 1
    said = r"^vector: weights +FAILED\n    -\d+ \* 0x.* not 0x.*\n    weights differ"
    assert re.search(said, done.stdout, re.MULTILINE)
    assert done.stdout.endswith("1 failed\n")
    done = selftest(programs, "--json", dsp=command)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert [x["name"] for x in report["checks"] if x["state"] == "FAILED"] == ["vector: weights"]
    assert (report["failed"], report["worthless"]) == (1, 0)


def test_without_a_dsp_it_says_so(programs: dict[str, Path]) -> None:
    done = selftest(programs, "--library", "libhvdc_nowhere.so")
    assert done.returncode == 1
    assert "only a Snapdragon phone has it" in done.stderr
    done = selftest(programs)  # the DSP's end as this machine's code
    assert done.returncode == 1
    assert "has no units of a DSP to test" in done.stderr
    assert selftest(programs, "--nothing").returncode == 2
    for value in ((), ("",), ("x",), ("-1",), ("64k",), ("4194304",)):
        assert selftest(programs, "--vtcm-kib", *value).returncode == 2
    said = selftest(programs, "--help")
    assert (said.returncode, said.stderr) == (0, "")
    assert all(option in said.stdout for option in ("--json", "--library", "--skels", "--vtcm-kib", "Exit statuses"))


def test_it_looks_for_the_dsps_library_beside_itself(programs: dict[str, Path], tmp_path: Path) -> None:
    """Where an artifact has both. A library takes FastRPC's place that says where the DSP would look."""
    source, library = tmp_path / "shown.c", tmp_path / "shown.so"
    source.write_text(
        """
        #include <stdint.h>
        #include <stdio.h>
        #include <stdlib.h>
        int remote_session_control(uint32_t r, void *d, uint32_t n) { return (void)r, (void)d, (void)n, 0; }
        int remote_handle_control(uint32_t r, void *d, uint32_t n) {
            return (void)r, (void)n, ((uint32_t *)d)[2] = 0x79, 0;
        }
        int remote_handle64_open(const char *u, uint64_t *h) {
            return (void)u, (void)h, puts(getenv("DSP_LIBRARY_PATH")), fflush(stdout), 0x45;
        }
        int remote_handle64_invoke(uint64_t h, uint32_t s, void *a) { return (void)h, (void)s, (void)a, 1; }
        int remote_handle64_close(uint64_t h) { return (void)h, 0; }
        int fastrpc_mmap(void) { return 1; }
        int fastrpc_munmap(void) { return 1; }
        """
    )
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    here = str(programs["hvdc_selftest"].parent)
    for words, due in (((), here), (("--skels", "/elsewhere"), "/elsewhere")):
        done = selftest(programs, "--library", str(library), *words)
        assert done.stdout.splitlines() == [due]
        assert "it finds no skel of ours" in done.stderr


def test_when_it_can_be_asked(programs: dict[str, Path], ragged_artifact: Path) -> None:
    """After hello, while no engine holds the units, and for no more VTCM than there is."""
    with Skel(programs["hvdc_dsp"]) as skel:
        client = Client(skel, skel.open(), ragged_artifact)
        assert "hello comes before" in skel.refused(client.handle, "selftest")
        client.to_engine()
        assert "close_engine comes before" in skel.refused(client.handle, "selftest")
        skel.done(client.handle, "close_engine")
        assert "bytes of VTCM are wanted" in skel.refused(client.handle, "selftest", vtcm_bytes=1 << 30)
        assert "has no units" in skel.refused(client.handle, "selftest")
        assert client.open_engine(rotations_region=client.rotations()).kind == 0  # which it gave back
