"""What a report says of phones, by the real adb and a device-side peer: facts and remedies, and no serial."""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading
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
from tests.deploy.artifacts import phone_artifact, with_runtime


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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phone_artifact(tmp_path_factory.mktemp("doctor") / "dcm.hvdc")


def test_an_empty_phone_says_how_to_fill_it(peer: Peer) -> None:
    check = asked()[f"phone {shortened(peer.serial)} artifacts"]
    assert (check.status, check.fix) == ("missing", "hvdc deploy ARTIFACT")
    assert check.needed_for == "hvdc run and bench on this phone"


def test_what_is_deployed_and_what_it_lacks(peer: Peer, made: Path) -> None:
    """Without QAIRT's libraries nothing is decoded there; all else is there."""
    assert hvdc("deploy", made, "--serial", peer.serial, "--force", "--no-run", "-q").status == 0
    found, name = asked(), f"phone {shortened(peer.serial)} dcm"
    assert found[name].status == "ok"
    assert re.search(r"^version [0-9a-f]{16}, in use, [\d.]+ MiB, deployed .*, by hvdc ", found[name].found)
    assert (found[f"{name} runtime"].status, found[f"{name} runtime"].found) == ("ok", "android-arm64")
    assert found[f"{name} DSP library"].found == "hexagon-v79-libhvdc_skel.so"
    lacks = found[f"{name} QAIRT"]
    assert (lacks.status, lacks.found) == ("missing", "none was deployed with it")
    assert lacks.needed_for == "decoding on this phone"
    assert "--qairt" in lacks.fix
    listed = next((peer.phone.target / "hvdc/artifacts/dcm").glob("*/files.txt"))
    for library in ("libQnnHtp.so", "libQnnSystem.so", "libQnnHtpV79Stub.so"):
        listed.write_text(listed.read_text() + f"{'0' * 64} 1 qnn/{library}\n")
    assert asked()[f"{name} QAIRT"].found.endswith("and lacks libQnnHtpV79Skel.so")
    listed.write_text(listed.read_text() + f"{'0' * 64} 1 qnn/libQnnHtpV79Skel.so\n")
    assert asked()[f"{name} QAIRT"].status == "ok"


def test_what_was_deployed_without_programs_says_so(peer: Peer, made: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made, tmp_path / "bare.hvdc"))
    with_runtime(copy, skels=False)
    assert hvdc("deploy", copy, "--serial", peer.serial, "--force", "--no-run", "-q").status == 0
    version = next((peer.phone.target / "hvdc/artifacts/bare").glob("*/deployed.json"))
    version.write_text("{}")
    found, name = asked(), f"phone {shortened(peer.serial)} bare"
    assert found[f"{name} runtime"].status == found[f"{name} DSP library"].status == "missing"
    assert "hvdc runtime build --target android" in found[f"{name} runtime"].fix
    assert "the NPU of this phone" in found[f"{name} DSP library"].needed_for


def test_a_phones_own_qairt_is_named(plugged: Callable[..., Peer]) -> None:
    peer = plugged(libraries={"libQnnHtp.so": None, "libcdsprpc.so": None, "libOpenCL.so": None})
    check = asked()[f"phone {shortened(peer.serial)} own QAIRT"]
    assert check.status == "ok"
    assert "/vendor/lib64/libQnnHtp.so: the phone's own, which hvdc does not use" in check.found


def test_a_folder_that_answers_nonsense_costs_its_own_line(plugged: Callable[..., Peer]) -> None:
    peer = plugged()
    peer.faults.answer = lambda command: b"no answer" if "hvdc-target" in command else None
    found = asked()
    assert found[f"phone {shortened(peer.serial)}"].status == "ok"
    check = found[f"phone {shortened(peer.serial)} artifacts"]
    assert check.status == "unknown"
    assert peer.serial not in check.found + check.fix


def test_a_report_has_no_serial(peer: Peer) -> None:
    for done in (hvdc("doctor"), hvdc("doctor", "--json")):
        assert "samsung SM-S931B" in done.out
        assert peer.serial not in done.out
        assert not re.search(r"127\.0\.0\.1|:\d{4,5}\b", done.out)


def test_the_server_that_is_named_is_asked(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    port = os.environ["ANDROID_ADB_SERVER_PORT"]
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "1")  # where there is none, and none may listen
    done = hvdc("doctor", "--adb-host", "127.0.0.1", "--adb-port", port)
    assert "samsung SM-S931B" in done.out
    assert port not in done.out
    assert phones._server_runs(int(port)), "it is somebody's own, and is left running"


def test_a_phone_without_the_makers_libraries(plugged: Callable[..., Peer]) -> None:
    plugged(libraries={})
    missing = {name.split()[-1]: check for name, check in asked().items() if check.status == "missing"}
    assert set(missing) == {"libcdsprpc.so", "libOpenCL.so", "artifacts"}
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
    ended = threading.Event()
    monkeypatch.setattr(phones, "read_facts", lambda *_: ended.wait(60))
    start = time.monotonic()
    check = next(check for name, check in asked().items() if name.startswith("phone"))
    ended.set()
    assert time.monotonic() - start < 20
    assert (check.status, check.found) == ("unknown", "it does not answer")


def test_what_cannot_be_understood_costs_one_phone_its_lines(
    plugged: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    plugged()
    monkeypatch.setattr(phones, "read_facts", lambda *_: None)
    check = next(check for name, check in asked().items() if name.startswith("phone"))
    assert (check.status, check.found) == ("unknown", "the check itself failed: AttributeError")


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
