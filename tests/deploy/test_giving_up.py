"""A person who interrupts does not wait for what does not come: neither for a cable nor for an answer."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.errors import LinkError
from hvdc.deploy.patience import Patience
from hvdc.deploy.verifier import Arrived, Verifier
from tests.adb_peer import Peer


def lost() -> None:
    raise LinkError("the device was lost")


def test_whoever_waits_for_a_device_ends_when_it_is_given_up(peer: Peer, device: AdbDevice) -> None:
    said: list[str] = []
    patience = Patience(device, said.append, wait_s=60.0)
    peer.cut(away_s=1e9)
    begun_s = time.monotonic()
    threading.Timer(0.5, patience.give_up).start()
    with pytest.raises(LinkError):
        patience(lost)
    with pytest.raises(LinkError):
        patience(lost)
    assert time.monotonic() - begun_s < 20
    assert len(said) == 1, "and is not waited for again"


@pytest.mark.parametrize("is_leaving", [False, True], ids=["while pieces are added", "while all are awaited"])
def test_an_interrupt_does_not_wait_for_the_thread_that_verifies(*, is_leaving: bool) -> None:
    free, asked = threading.Event(), threading.Event()

    def run(script: str, what: str, timeout_s: float) -> str:
        asked.set()
        free.wait(60)
        raise LinkError("the device was lost")

    def ignore(*_: Any) -> None:
        pass

    def verify() -> None:
        with Verifier(run, ignore, ignore, free.set) as verifier:
            verifier.add(Arrived("0" * 64, 1, "part", "place", "644", "name"))
            assert asked.wait(10)
            if not is_leaving:
                raise KeyboardInterrupt
            main = threading.main_thread().ident
            assert main is not None
            threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)).start()

    begun_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        verify()
    assert free.is_set()
    assert time.monotonic() - begun_s < 10


def test_ctrl_c_while_the_cable_is_out(
    artifact: Path, peer: Peer, tmp_path: Path, interruptible: Callable[..., subprocess.Popen[str]]
) -> None:
    peer.faults.cut_at_bytes, peer.faults.away_s = [40_000], 1e9
    process = interruptible("deploy", artifact, "--no-run", "-q", "--name", "dcm")
    end_s = time.monotonic() + 30
    while not peer.faults.cuts and time.monotonic() < end_s:
        time.sleep(0.02)
    time.sleep(1.0)
    begun_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert time.monotonic() - begun_s < 20, "it would be waited for for two minutes"
    assert "interrupted: what arrived on the device is kept" in said


@pytest.fixture
def interruptible() -> Callable[..., subprocess.Popen[str]]:
    """The command as a process that a signal of a terminal reaches."""

    def start(*words: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "hvdc", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start
