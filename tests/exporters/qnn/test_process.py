"""A task in a process of its own: its result, its noise, its limits, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from exporters.qnn import process, worker
from exporters.qnn.options import Limits
from exporters.qnn.process import Ended, run

SHORT = Limits(seconds=20, memory_bytes=1 << 30)


@pytest.fixture(autouse=True)
def odd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "WORKER", "tests.exporters.qnn.odd_worker")


def ends(pid: int, within_s: float = 5.0) -> bool:
    """Whether a process is gone, or a zombie that nobody has waited for, within that time."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_what_the_libraries_print_is_not_the_result() -> None:
    ended = run("noise", {"a": [1, "é"]}, SHORT, keep=lambda line: "<E>" in line)
    assert ended.status == "answered"
    assert ended.value == {"a": [1, "é"]}
    assert ended.log == ("C on stdout <E> wanted", "coloured <E>"), "chosen lines, without colours"
    assert ended.tail[-1] == "no end of line"
    assert max(map(len, ended.tail)) <= 4096
    assert ended.peak_rss_bytes > 1 << 20


def test_a_flood_of_lines_is_not_held() -> None:
    ended = run("flood", {"lines": 50_000}, SHORT, keep=lambda line: True)
    assert ended.status == "answered"
    assert len(ended.log) == 2000
    assert len(ended.tail) == 40


def test_the_time_limit() -> None:
    begin = time.monotonic()
    ended = run("sleep", {}, Limits(seconds=0.5))
    assert ended.status == "time"
    assert time.monotonic() - begin < 5


def test_the_memory_limit() -> None:
    ended = run("grow", {}, Limits(seconds=20, memory_bytes=150 << 20))
    assert ended.status == "memory"
    assert 150 << 20 < ended.peak_rss_bytes < 400 << 20


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_signal_from_outside(number: signal.Signals) -> None:
    ended = run("sleep", {}, SHORT, started=lambda pid: os.kill(pid, number))
    assert (ended.status, ended.code) == ("signal", number)


def test_a_crash() -> None:
    ended = run("crash", {}, SHORT)
    assert (ended.status, ended.code) == ("signal", signal.SIGSEGV)


@pytest.mark.parametrize("status", [0, 3])
def test_an_end_without_a_result(status: int) -> None:
    ended = run("leave", {"status": status}, SHORT)
    assert (ended.status, ended.code, ended.tail) == ("silent", status, ("last words",))


def test_an_exception_is_its_text() -> None:
    ended = run("fail", {}, SHORT)
    assert (ended.status, ended.error) == ("failed", "ZeroDivisionError: integer division or modulo by zero")


def test_a_refusal_keeps_its_fields() -> None:
    ended = run("refuse", {}, SHORT)
    assert ended.status == "refused"
    assert ended.value == {"what": "no", "where": "here", "expected": "", "found": "", "fix": "go"}


def test_what_a_task_started_ends_with_it() -> None:
    pids: list[int] = []
    ended = run("orphan", {}, Limits(seconds=1.5), started=pids.append)
    assert ended.status == "time"
    group = [p.name for p in Path("/proc").glob("[0-9]*") if _session(p) == pids[0]]
    assert all(ends(int(pid)) for pid in group)


def test_streams_held_open_by_somebody_else_are_not_waited_for() -> None:
    ended = run("heir", {}, SHORT)
    assert (ended.status, ended.value) == ("answered", "done")
    assert ended.seconds < 2.5


def _session(folder: Path) -> int:
    try:
        return int((folder / "stat").read_text().rsplit(")", 1)[1].split()[3])
    except OSError:
        return 0


def test_an_interrupt_ends_the_task() -> None:
    pids: list[int] = []

    def interrupt(pid: int) -> None:
        pids.append(pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("sleep", {}, SHORT, started=interrupt)
    assert ends(pids[0])


def test_a_task_does_not_outlive_a_killed_caller() -> None:
    code = (
        "from exporters.qnn import process; from exporters.qnn.options import Limits\n"
        "process.WORKER = 'tests.exporters.qnn.odd_worker'\n"
        "process.run('sleep', {}, Limits(), started=lambda pid: print(pid, flush=True))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as caller:
        assert caller.stdout
        pid = int(caller.stdout.readline())
        time.sleep(1.0)  # the worker asks the kernel for this when it starts
        caller.kill()
    assert ends(pid)


@pytest.mark.parametrize("answers", [[-1], [0, -1]], ids=["cannot be asked", "not permitted"])
def test_without_fixed_addresses_the_work_goes_on(monkeypatch: pytest.MonkeyPatch, answers: list[int]) -> None:
    """A container's rules may forbid personality(2)."""
    left = iter(answers)
    libc = SimpleNamespace(personality=lambda value: next(left))
    monkeypatch.setattr(worker.ctypes, "CDLL", lambda *args, **more: libc)
    monkeypatch.setattr(worker.os, "execv", lambda *args: pytest.fail("started anew"))
    assert worker._fix_addresses() is False


def test_limits_are_part_of_what_is_reported() -> None:
    assert run("fail", {}, SHORT).limits == SHORT
    assert Ended("answered").limits == Limits()
