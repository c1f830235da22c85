"""What a report says of OpenCL devices: the runtime's own self-test, whatever a driver does to it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from device_runtime.build import SOURCE
from hvdc.doctor import engines, opencl_child
from hvdc.doctor.check import Check
from hvdc.doctor.engines import devices
from hvdc.measure.platform_facts import PlatformFacts
from hvdc.measure.probe import PROGRAM
from tests.commands import hvdc
from tests.device_runtime.runs import why_no_gpu
from tests.measure.programs import stand_in

BEGUN = {"hvdc_probe": 1}
GPU = {
    "fact": "gpu",
    "index": 0,
    "platform": "P",
    "device": "D",
    "driver": "1.0",
    "is_cpu": False,
    "max_buffer_bytes": 1,
}
DONE = {"fact": "done"}


def dot(form: str, why: str = "") -> dict[str, object]:
    return {"fact": "dot", "index": 0, "form": form, "right": not why, "why": why}


def trying(what: str) -> dict[str, object]:
    return {"fact": "trying", "what": what, "bytes": 0}


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Check]]:
    """``answers(*facts)``: the checks where the program says so."""

    def ask(*facts: dict[str, object], status: int = 0, more: str = "") -> list[Check]:
        answer = "".join(json.dumps(fact) + "\n" for fact in facts)
        runtime = stand_in(tmp_path / "runtime", answer, status, (), PROGRAM)
        program = runtime.folder / PROGRAM
        program.write_text(program.read_text().replace("cat answer", f"cat answer; {more or ':'}"))
        monkeypatch.setattr("hvdc.pipeline.runtime_build.kept_runtime", lambda target: runtime)
        monkeypatch.setattr(engines, "find_library", lambda name: f"lib{name}.so")
        return list(devices())

    return ask


def test_a_device_that_computes_rightly(answers: Callable[..., list[Check]]) -> None:
    (check,) = answers(BEGUN, GPU, dot("khr", "does not compile"), dot("plain"), DONE)
    assert (check.name, check.status) == ("OpenCL device 0", "ok")
    assert check.found == "D (P, driver 1.0): INT8 dot products right: plain; absent: khr"


def test_a_form_that_is_wrong_is_not_absent(answers: Callable[..., list[Check]]) -> None:
    (check,) = answers(BEGUN, GPU, dot("plain"), dot("qcom", "D multiplies wrongly in the form 'x'"), DONE)
    assert check.status == "ok", "the runtime takes a form that is right"
    assert check.found.endswith("right: plain; WRONG: qcom")


def test_a_device_that_computes_wrongly(answers: Callable[..., list[Check]]) -> None:
    (check,) = answers(BEGUN, GPU, dot("khr", "no"), dot("plain", "multiplies wrongly: 3 instead of 4"), DONE)
    assert check.status == "missing"
    assert check.found.endswith("WRONG: plain; absent: khr (multiplies wrongly: 3 instead of 4)")
    assert check.needed_for
    assert check.fix


def test_several_devices(answers: Callable[..., list[Check]]) -> None:
    found = answers(BEGUN, GPU, dot("plain"), GPU | {"device": "E", "index": 1}, dot("plain"), DONE)
    assert [check.name for check in found] == ["OpenCL device 0", "OpenCL device 1"]


def test_no_device(answers: Callable[..., list[Check]]) -> None:
    (check,) = answers(BEGUN, {"fact": "no-gpu", "why": "OpenCL has no platform"}, DONE)
    assert (check.status, check.found) == ("missing", "OpenCL has no platform")


def test_a_driver_that_crashes_leaves_what_was_known(answers: Callable[..., list[Check]]) -> None:
    found = answers(BEGUN, GPU, dot("plain"), trying("qcom"), more="kill -SEGV $$")
    assert [check.status for check in found] == ["ok", "unknown"]
    assert found[1].found == "the driver crashed (signal 11), while it tried qcom"


def test_a_driver_that_hangs_costs_its_limit(
    answers: Callable[..., list[Check]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "SELF_TEST_S", 0.5)
    start = time.monotonic()
    found = answers(BEGUN, GPU, trying("khr"), more="exec sleep 30")
    assert time.monotonic() - start < 10
    assert found[-1].found == "the driver did not answer within 0.5 s, while it tried khr"


@pytest.mark.parametrize("facts", [(), ({"hvdc_probe": 9},)], ids=["silence", "another version"])
def test_nonsense_is_no_device(answers: Callable[..., list[Check]], facts: tuple[dict[str, object], ...]) -> None:
    assert {check.status for check in answers(*facts)} <= {"missing", "unknown"}


DOTS = (SOURCE / "gpu/kernels/dot.cl").read_text()


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime is not built; the limit is for a busy machine."""
    monkeypatch.setattr("hvdc.pipeline.runtime_build.kept_runtime", lambda target: None)
    monkeypatch.setattr(engines, "SELF_TEST_S", 120.0)


def tried(source: str) -> PlatformFacts:
    """What the program that needs no runtime says of this machine's devices."""
    done = subprocess.run(
        [sys.executable, "-I", opencl_child.__file__], input=source, capture_output=True, text=True, check=True,
        timeout=120,
    )  # fmt: skip
    facts = PlatformFacts()
    for line in done.stdout.splitlines():
        facts.take(line)
    assert (facts.is_done, facts.odd_lines) == (True, 0)
    return facts


needs_gpu = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")


@needs_gpu
@pytest.mark.usefixtures("unbuilt")
def test_without_the_runtime_devices_are_tried_all_the_same() -> None:
    check = next(devices())
    assert check.status == "ok", check
    assert "INT8 dot products right: plain" in check.found
    assert ", driver " in check.found


@needs_gpu
def test_every_form_is_judged_by_its_sums() -> None:
    """C in the place of what this driver lacks, and an error in it that only the largest codes show."""
    emulated = tried("#define EMULATE_DOT\n" + DOTS).gpus[0]
    assert set(emulated.right_dots) >= {"plain", "khr", "qcom", "nvidia"}
    broken = tried(DOTS.replace("a.s3 * b.s3", "(a.s3 * b.s3 > 16000 ? 16000 : a.s3 * b.s3)")).gpus[0]
    assert broken.right_dots == ()
    assert broken.dots["plain"].startswith(f"{engines.WRONG}: column 0 is ")
    assert tried("no C at all").gpus[0].dots["plain"].startswith("does not compile: ")


def test_the_sums_that_are_due() -> None:
    columns, row, sums = opencl_child.operands()
    w = np.frombuffer(columns, np.int8).reshape(opencl_child.COLUMNS, -1).astype(np.int64)
    assert (w @ np.frombuffer(row, np.int8).astype(np.int64)).tolist() == sums
    assert w.min() == -127
    assert w.max() == 127


DRIVERS = {
    "crashes": "int clGetPlatformIDs(unsigned n, void **p, unsigned *c) { __builtin_trap(); }",
    "hangs": "int clGetPlatformIDs(unsigned n, void **p, unsigned *c) { for (;;) ; }",
    "is another library": "int something_else(void) { return 0; }",
    "has no device": "int clGetPlatformIDs(unsigned n, void **p, unsigned *c) { *c = 0; return -1001; }",
    "lies": "int clGetPlatformIDs(unsigned n, void **p, unsigned *c) { *c = 4000000; return 0; }\n"
            "int clGetPlatformInfo() { return -30; } int clGetDeviceIDs() { return -1; }",
}  # fmt: skip


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.usefixtures("unbuilt")
def test_whatever_a_driver_does_the_report_goes_on(
    driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "driver.c").write_text(DRIVERS[driver] + "\n")
    words = [compiler, "-w", "-shared", "-fPIC", "-o", str(tmp_path / "libOpenCL.so.1"), str(tmp_path / "driver.c")]
    subprocess.run(words, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr(engines, "SELF_TEST_S", 2.0 if driver == "hangs" else 60.0)
    (check,) = devices()
    assert check.status == ("unknown" if driver in ("crashes", "hangs") else "missing")
    expected = {"crashes": "the driver crashed (signal", "hangs": "the driver did not answer within 2 s"}
    assert check.found.startswith(expected.get(driver, "")), check
    assert check.found


def test_this_machines_devices(runtimes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if why := why_no_gpu():
        pytest.skip(why)
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))
    monkeypatch.setattr(engines, "SELF_TEST_S", 120.0)
    assert hvdc("runtime", "build", "-q").status == 0
    found = list(devices())
    assert found[0].status == "ok", found
    assert "plain" in found[0].found
