"""How facts are found: all at once, each within a limit, none taking the others down."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from hvdc import doctor
from hvdc.doctor.check import Check, Probe, ask_all
from tests.commands import hvdc, undocumented


def said(*checks: Check) -> Probe:
    return Probe("said", "a test", lambda: checks)


def raising(error: BaseException) -> Probe:
    def ask() -> Iterator[Check]:
        yield Check("half", "ok", "never seen")
        raise error

    return Probe("broken", "a test of faults", ask)


def test_facts_keep_the_order_of_their_probes() -> None:
    first, second, third = (Check(name, "ok", "here") for name in ("a", "b", "c"))

    def slowly() -> tuple[Check]:
        time.sleep(0.1)
        return (first,)

    slow = Probe("slow", "a test", slowly)
    assert ask_all([slow, said(second, third), said()], 5) == [first, second, third]


@pytest.mark.parametrize("error", [ValueError("odd"), KeyError("x"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_a_probe_that_raises_is_a_fact_and_no_end(error: BaseException) -> None:
    before, after = Check("a", "ok", "here"), Check("b", "ok", "here")
    found = ask_all([said(before), raising(error), said(after)], 5)
    assert [check.name for check in found] == ["a", "broken", "b"]
    assert found[1].status == "unknown"
    assert type(error).__name__ in found[1].found
    assert found[1].needed_for == "a test of faults"


def test_a_probe_that_hangs_costs_the_limit_once() -> None:
    never = threading.Event()
    hanging = Probe("hangs", "a test", lambda: (never.wait(60), ())[1])
    start = time.monotonic()
    found = ask_all([hanging, said(Check("a", "ok", "here")), hanging], 0.3)
    assert time.monotonic() - start < 5
    assert [(c.name, c.status) for c in found] == [("hangs", "unknown"), ("a", "ok"), ("hangs", "unknown")]
    assert "no answer within 0.3 s" in found[0].found
    never.set()


def test_the_report_survives_a_broken_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.engines, "probes", lambda: [raising(RuntimeError("the driver is odd"))])
    done = hvdc("doctor", "--json")
    checks = {check["name"]: check for check in done.json()["checks"]}
    assert undocumented("doctor", done.json() | checks["broken"]) == []
    assert done.status == 0, "what is not known breaks nothing"
    assert checks["broken"]["status"] == "unknown"
    assert "the driver is odd" in checks["broken"]["found"]
    assert {"python", "cc", "disk"} <= set(checks)
    assert "unknown  broken" in hvdc("doctor").out


def test_it_takes_seconds() -> None:
    start = time.monotonic()
    hvdc("doctor")
    assert time.monotonic() - start < 2 * doctor.LIMIT_S
