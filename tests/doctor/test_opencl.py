"""What a report says of OpenCL devices: the runtime's own self-test, whatever a driver does to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdc.doctor import engines
from hvdc.doctor.check import Check
from hvdc.doctor.engines import devices
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
    (check,) = answers(BEGUN, GPU, dot("khr", "not compiled"), dot("plain"), DONE)
    assert (check.name, check.status) == ("OpenCL device 0", "ok")
    assert check.found == "D (P, driver 1.0): INT8 dot products plain give the right sums, not there: khr"


def test_a_device_that_computes_wrongly(answers: Callable[..., list[Check]]) -> None:
    (check,) = answers(BEGUN, GPU, dot("khr", "multiplies wrongly"), dot("plain", "multiplies wrongly"), DONE)
    assert check.status == "missing"
    assert "no dot product of INT8 numbers is right" in check.found
    assert check.needed_for
    assert check.fix


def test_several_devices(answers: Callable[..., list[Check]]) -> None:
    found = answers(BEGUN, GPU, dot("plain"), GPU | {"device": "E"}, dot("plain"), DONE)
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


def test_without_the_runtime_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdc.pipeline.runtime_build.kept_runtime", lambda target: None)
    monkeypatch.setattr(engines, "find_library", lambda name: f"lib{name}.so")
    (check,) = devices()
    assert (check.status, check.fix) == ("missing", "hvdc runtime build")


def test_this_machines_devices(runtimes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if why := why_no_gpu():
        pytest.skip(why)
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))
    monkeypatch.setattr(engines, "SELF_TEST_S", 120.0)
    assert hvdc("runtime", "build", "-q").status == 0
    found = list(devices())
    assert found[0].status == "ok", found
    assert "plain" in found[0].found
