"""What a report says of phones, by the real adb and a device-side peer: facts and remedies, and no serial."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvdc.doctor import phones
from hvdc.doctor.check import Check
from hvdc.doctor.private import shortened
from tests.adb_peer.faults import Faults
from tests.adb_peer.peer import Peer
from tests.commands import hvdc


def asked() -> dict[str, Check]:
    return {check.name: check for check in phones.probes()[0].ask()}


def test_a_phone_and_its_libraries(peer: Peer) -> None:
    found = asked()
    name = f"phone {shortened(peer.serial)}"
    assert found["adb"].status == "ok"
    assert found[name].status == "ok"
    assert found[name].found.startswith("samsung SM-S931B, SM8750 (Snapdragon 8 Elite), arm64-v8a, Android 15 (API 35)")
    assert "6.0 GiB of memory available" in found[name].found
    for library in ("libcdsprpc.so", "libOpenCL.so"):
        assert found[f"{name} {library}"].status == "ok"
        assert found[f"{name} {library}"].found.endswith(f"/vendor/lib64/{library}")
    assert peer.phone.pushed_bytes == 0


def test_a_report_has_no_serial(peer: Peer) -> None:
    for done in (hvdc("doctor"), hvdc("doctor", "--json")):
        assert "samsung SM-S931B" in done.out
        assert peer.serial not in done.out
        assert not re.search(r"127\.0\.0\.1|:\d{4,5}\b", done.out)


def test_a_phone_without_the_makers_libraries(plugged: Callable[..., Peer]) -> None:
    plugged(libraries={})
    missing = {name.split()[-1]: check for name, check in asked().items() if check.status == "missing"}
    assert set(missing) == {"libcdsprpc.so", "libOpenCL.so"}
    assert missing["libcdsprpc.so"].needed_for == "the NPU of this phone"
    assert "--mode npu" in missing["libOpenCL.so"].fix


def test_several_phones_are_all_asked(plugged: Callable[..., Peer]) -> None:
    first, second = plugged(), plugged(properties={}, libraries={})
    assert first.serial != second.serial
    found = [check for check in phones.probes()[0].ask() if re.fullmatch("phone on the network", check.name)]
    assert [check.status for check in found] == ["ok", "ok"]


def test_an_unauthorized_phone_says_what_to_do(plugged: Callable[..., Peer]) -> None:
    plugged(faults=Faults(is_trusted=False))
    check = next(check for name, check in asked().items() if name.startswith("phone"))
    assert check.status == "missing"
    assert check.fix


def test_a_phone_that_answers_nothing_costs_its_limit(
    plugged: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    plugged()
    monkeypatch.setattr(phones, "PHONE_S", 0.3)
    monkeypatch.setattr(phones, "read_facts", lambda *_: time.sleep(60))
    start = time.monotonic()
    check = next(check for name, check in asked().items() if name.startswith("phone"))
    assert time.monotonic() - start < 20
    assert (check.status, check.found) == ("unknown", "it does not answer")


@pytest.mark.usefixtures("adb_server")
def test_no_phone_is_no_error(plugged: Any) -> None:
    found = asked()
    assert found["phones"].status == "missing"
    assert "USB debugging" in found["phones"].fix


def test_no_adb_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("hvdc.deploy.adb_program._bundled", lambda: None)
    found = asked()
    assert (found["adb"].status, list(found)) == ("missing", ["adb"])
    assert "apt-get install adb" in found["adb"].fix


def test_no_server_is_left_that_was_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name in ("ADB_SERVER_SOCKET", "ANDROID_ADB_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not phones._server_runs()
    if asked()["adb"].status != "ok":
        pytest.skip("there is no adb")
    end_s = time.monotonic() + 10
    while phones._server_runs() and time.monotonic() < end_s:
        time.sleep(0.05)
    assert not phones._server_runs()


def test_a_server_that_was_there_stays(peer: Peer) -> None:
    assert phones._server_runs()
    asked()
    assert phones._server_runs()
    assert asked()[f"phone {shortened(peer.serial)}"].status == "ok"
