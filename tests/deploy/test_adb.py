"""The transport, with the unmodified adb on loopback: what is sent arrives as it is, and what fails says so."""

from __future__ import annotations

import hashlib
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.adb_program import find_adb
from hvdc.deploy.devices import UNUSABLE, DeviceState, choose_device, parse_devices, refuse_unusable
from hvdc.deploy.errors import DeviceError, LinkError
from tests.adb_peer import AdbServer, Peer

HOSTILE = [
    "a b",
    "it's",
    'say "x"',
    "two\nlines",
    "-rf",
    "ümlaut 视频",
    "$(touch pwned)",
    "`id`",
    "a;b|c&d",
    "*",
    "\\",
    "~",
    "!",
]


def test_words_reach_a_program_as_they_are(device: AdbDevice) -> None:
    answer = device.shell("printf", "%s\\0", *HOSTILE)
    assert (answer.status, answer.out.decode().split("\0")[:-1]) == (0, HOSTILE)


def test_status_output_and_errors_come_apart(device: AdbDevice) -> None:
    answer = device.script("echo out; echo err >&2; exit 7")
    assert (answer.status, answer.out, answer.err) == (7, b"out\n", b"err\n")
    assert device.shell("false").status == 1
    assert device.shell("no-such-program").status == 127
    assert device.script("printf 'no line break'").out == b"no line break"


def test_an_old_shell_passes_the_status_too(plugged: Callable[..., Peer], adb_server: AdbServer) -> None:
    peer = plugged()
    peer.faults.old_shell = True
    adb_server.disconnect(peer.serial)
    adb_server.connect(peer.serial)
    device = adb_server.adb.device(peer.serial)
    assert not device.passes_status
    answer = device.script("echo out; exit 3")
    assert (answer.status, answer.text) == (3, "out\n")


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 5_000_001])
def test_files_come_and_go(device: AdbDevice, peer: Peer, tmp_path: Path, size: int) -> None:
    data = bytes(i * 7 & 0xFF for i in range(256)) * (size // 256 + 1)
    (tmp_path / "local file").write_bytes(data[:size])
    shares: list[float] = []
    device.push(tmp_path / "local file", "/data/local/tmp/folder/it's here", shares.append)
    assert (peer.phone.target / "folder" / "it's here").read_bytes() == data[:size]
    assert shares == sorted(shares)
    device.pull("/data/local/tmp/folder/it's here", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data[:size]
    digest = device.shell("sha256sum", "/data/local/tmp/folder/it's here").text.split()[0]
    assert digest == hashlib.sha256(data[:size]).hexdigest()


def test_bytes_of_a_program_come_unchanged(device: AdbDevice, peer: Peer) -> None:
    data = bytes(range(256)) * 4096
    (peer.phone.target / "binary").write_bytes(data)
    assert device.adb.run("-s", device.serial, "exec-out", "cat /data/local/tmp/binary").out == data
    with device.stream("cat") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"line\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"line\n"


def test_a_cut_link_is_no_other_failure(device: AdbDevice, peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(3 << 20))
    peer.faults.cut_at_bytes = [1 << 20]
    with pytest.raises(LinkError, match="lost"):
        device.push(tmp_path / "f", "/data/local/tmp/f")
    assert device.wait(20)
    device.push(tmp_path / "f", "/data/local/tmp/f")
    assert (peer.phone.target / "f").stat().st_size == 3 << 20
    peer.cut(away_s=1.0)
    time.sleep(0.2)  # adb's server notices
    with pytest.raises(LinkError):
        device.shell("true")
    assert device.wait(20)


def test_a_full_device_is_said_to_be_full(device: AdbDevice, peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(3 << 20))
    peer.faults.full_at_bytes = 1 << 20
    with pytest.raises(DeviceError, match="the device is full") as caught:
        device.push(tmp_path / "f", "/data/local/tmp/f")
    assert not isinstance(caught.value, LinkError)
    assert "make room" in caught.value.fix


def test_answers_have_limits(device: AdbDevice, peer: Peer) -> None:
    peer.faults.endless = "cat"
    with pytest.raises(DeviceError, match="without end"):
        device.shell("cat", "x", limit_bytes=1 << 20)
    with pytest.raises(DeviceError, match="does not answer"):
        device.shell("sleep", "30", timeout_s=0.5)
    peer.faults.answer = lambda command: b"\x00\xffgarbage"
    with pytest.raises(DeviceError, match="no answer that can be read"):
        device.shell("true")
    peer.faults.answer = lambda command: b""
    with pytest.raises(DeviceError, match="no answer that can be read"):
        device.shell("true")


def test_a_program_ends_with_its_link(device: AdbDevice, peer: Peer) -> None:
    with pytest.raises(DeviceError):
        device.script("echo $$ > /data/local/tmp/pid; sleep 30", timeout_s=0.7)
    pid = int((peer.phone.target / "pid").read_text())
    end_s = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end_s:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_a_phone_that_does_not_trust_this_computer(plugged: Callable[..., Peer], adb_server: AdbServer) -> None:
    peer = plugged()
    adb_server.disconnect(peer.serial)
    peer.faults.is_trusted = False
    adb_server.connect(peer.serial)
    with pytest.raises(DeviceError, match="does not trust this computer") as caught:
        adb_server.adb.device(peer.serial)
    assert "unlock it" in caught.value.fix


def test_several_devices_and_no_choice(
    plugged: Callable[..., Peer], adb_server: AdbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = plugged(), plugged()
    with pytest.raises(DeviceError, match="several devices") as caught:
        adb_server.adb.device()
    assert f"{one.serial}: SM S931B, device" in caught.value.found
    assert two.serial in caught.value.found
    assert adb_server.adb.device(two.serial).serial == two.serial
    monkeypatch.setenv("ANDROID_SERIAL", one.serial)
    assert adb_server.adb.device().serial == one.serial
    with pytest.raises(DeviceError, match="no such device"):
        adb_server.adb.device("R3CY")


LISTED = """* daemon not running; starting now at tcp:5037
* daemon started successfully
List of devices attached
R3CY70ABCDE            device usb:1-4 product:pa1qxxx model:SM_S931B device:pa1q transport_id:3
192.168.1.7:5555       offline product:x model:Pixel_9
0123456789ABCDEF       unauthorized usb:1-1 transport_id:1
????????????           no permissions (user in plugdev group; are your udev rules wrong?); see [http://…] usb:1-2
emulator-5554          recovery

"""


def test_what_adb_lists() -> None:
    devices = parse_devices(LISTED)
    assert [device.state for device in devices] == ["device", "offline", "unauthorized", "no permissions", "recovery"]
    assert devices[0] == DeviceState("R3CY70ABCDE", "device", "SM S931B", "pa1qxxx")


@pytest.mark.parametrize("state", [*UNUSABLE, "something new"])
def test_every_state_has_a_sentence_and_what_to_do(state: str) -> None:
    with pytest.raises(DeviceError) as caught:
        refuse_unusable(DeviceState("S", state))
    assert caught.value.what
    assert caught.value.fix
    refuse_unusable(DeviceState("S", "device"))


def test_no_device_at_all() -> None:
    with pytest.raises(DeviceError, match="there is no device") as caught:
        choose_device([], None)
    assert "USB debugging" in caught.value.fix


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_where_adb_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = "echo 'Android Debug Bridge version {}'; echo 'Version 36.0.0-1'"
    own = program(tmp_path / "adb", version.format("1.0.41"))
    assert find_adb(own).text() == f"{own}, version 1.0.41 (36.0.0-1)"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_adb().path == own
    program(own, version.format("1.0.36"))
    with pytest.raises(DeviceError, match="too old"):
        find_adb()
    program(own, "echo hello")
    with pytest.raises(DeviceError, match="not adb"):
        find_adb(own)
    with pytest.raises(DeviceError, match="no such program"):
        find_adb(tmp_path / "nowhere")


def test_the_adb_inside_adbutils_serves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("adbutils")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "adbutils" in str(find_adb().path)


def test_without_any_adb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DeviceError, match="there is no adb") as caught:
        find_adb()
    assert "apt-get install adb" in caught.value.fix
    assert shutil.which("adb") is None
