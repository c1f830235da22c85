"""Every fault of a phone or a cable, on a first run and on a second.

The phone has a whole, verified version afterwards, or the one before it, and the message says what to do.
"""

from __future__ import annotations

import copy
import hashlib
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.errors import DeviceError
from hvdc.deploy.layout import ARTIFACT
from tests.adb_peer import AdbServer, Peer, Phone
from tests.artifacts import Spec
from tests.deploy.artifacts import Onto, files_of, phone_artifact, whole_version, with_another_adapter

CHUNK = 20_000


@dataclass(frozen=True)
class Fault:
    """``strike``: makes the phone faulty. ``words``: what is said when it keeps a version from arriving; ``""``: it
    does arrive. ``mend``: what a person then does. ``reconnect``: the phone is faulty from its next connection on."""

    strike: Callable[[Peer], object]
    words: str = ""
    mend: Callable[[Peer], object] = lambda peer: None
    reconnect: bool = False


def faults(**values: object) -> Callable[[Peer], object]:
    def set_them(peer: Peer) -> None:
        for name, value in values.items():
            setattr(peer.faults, name, copy.copy(value))

    return set_them


def phone(**values: object) -> Callable[[Peer], object]:
    def set_them(peer: Peer) -> None:
        for name, value in values.items():
            setattr(peer.phone, name, value)

    return set_them


def properties(**values: str) -> Callable[[Peer], object]:
    def set_them(peer: Peer) -> None:
        peer.phone.properties = peer.phone.properties | {name.replace("__", "."): v for name, v in values.items()}

    return set_them


ROOM = faults(full_at_bytes=None)
FAULTS = {
    "a full disk": Fault(faults(full_at_bytes=60_000, hidden=True), "the device is full", ROOM),
    "a full disk that says nothing": Fault(
        faults(full_at_bytes=60_000, full_in_silence=True, hidden=True), "it is full", ROOM
    ),
    "too little space": Fault(phone(free_bytes=50_000), "too little free space", phone(free_bytes=1 << 36)),
    "a cable that is pulled": Fault(faults(cut_at_bytes=[40_000], away_s=0.3)),
    "a cable that is pulled for good": Fault(
        faults(cut_at_bytes=[40_000], away_s=1e9), "the device was lost", lambda peer: peer.faults.leave(0.0)
    ),
    "a byte that arrives as another": Fault(faults(corrupt_at_byte=30_000)),
    "a slow link": Fault(faults(bytes_per_s=400_000.0)),
    "a phone that trusts nobody": Fault(
        faults(is_trusted=False), "does not trust this computer", faults(is_trusted=True), reconnect=True
    ),
    "another ABI": Fault(
        properties(ro__product__cpu__abi="armeabi-v7a"), "no runtime that this device can execute",
        properties(ro__product__cpu__abi="arm64-v8a"),
    ),
    "an old Android": Fault(
        properties(ro__build__version__sdk="28"), "Android is too old", properties(ro__build__version__sdk="35")
    ),
    "no sha256sum": Fault(
        faults(missing=frozenset({"sha256sum"})), "no sha256sum", faults(missing=frozenset())
    ),
    "no flock": Fault(faults(missing=frozenset({"flock"}))),
    "the old shell": Fault(faults(old_shell=True), reconnect=True),
    "a target that cannot be written": Fault(faults(read_only=True), "cannot be written", faults(read_only=False)),
    "a wrong clock": Fault(faults(clock_off_s=-20 * 365 * 86400)),
    "little memory": Fault(phone(memory_available_bytes=1000), "too little free memory",
                           phone(memory_available_bytes=1 << 33)),
}  # fmt: skip


@pytest.fixture(scope="module")
def other(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The version before."""
    return with_another_adapter(artifact, tmp_path_factory.mktemp("other") / "other.hvdc")


@pytest.fixture(scope="module")
def deployed_before(other: Path, adb_server: AdbServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target folder of a phone that has it."""
    with Peer(Phone(tmp_path_factory.mktemp("before"))) as peer:
        adb_server.connect(peer.serial)
        Onto(adb_server.adb.device(peer.serial))(other)
        adb_server.disconnect(peer.serial)
    return peer.phone.target / "hvdc"


def again(server: AdbServer, peer: Peer) -> None:
    """Until the server lists it: a connection that it still closes may take the new one with it."""
    server.disconnect(peer.serial)
    end_s = time.monotonic() + 10
    while time.monotonic() < end_s:
        server.connect(peer.serial)
        if any(device.serial == peer.serial for device in server.adb.devices()):
            return
        time.sleep(0.1)


@pytest.mark.parametrize("is_first", [True, False], ids=["first run", "second run"])
@pytest.mark.parametrize("name", FAULTS)
def test_whatever_happens(
    name: str, is_first: bool, artifact: Path, other: Path, deployed_before: Path, peer: Peer, onto: Onto,
    adb_server: AdbServer,
) -> None:  # fmt: skip
    fault = FAULTS[name]
    if not is_first:
        shutil.copytree(deployed_before, peer.phone.target / "hvdc", symlinks=True)
    before = dict(files_of(peer.phone.target / "hvdc" / "artifacts")) if not is_first else {}
    fault.strike(peer)
    peer.phone.refresh()
    if fault.reconnect:
        again(adb_server, peer)

    def go() -> None:
        device = adb_server.adb.device(peer.serial)
        Onto(device, onto.said)(artifact, chunk_bytes=CHUNK, wait_s=1.0)

    if not fault.words:
        go()
        whole_version(peer, artifact)
    else:
        with pytest.raises(DeviceError, match=fault.words) as caught:
            go()
        assert caught.value.fix, "what to do"
        if is_first:
            assert not (peer.phone.target / "hvdc/artifacts/dcm/current").exists()
        else:
            whole_version(peer, other)
            assert before.items() <= files_of(peer.phone.target / "hvdc" / "artifacts").items()
        fault.mend(peer)
        peer.phone.refresh()
        again(adb_server, peer)
        go()
        whole_version(peer, artifact)
    outside = {path.name for path in peer.phone.target.iterdir()} - {"hvdc"}
    assert outside == set(), "nothing beside the target folder"


def test_a_second_run_goes_on_where_the_first_stopped(
    artifact: Path, peer: Peer, onto: Onto, adb_server: AdbServer
) -> None:
    peer.faults.cut_at_bytes, peer.faults.away_s = [150_000], 1e9
    with pytest.raises(DeviceError, match="lost"):
        onto(artifact, chunk_bytes=CHUNK, wait_s=0.5)
    arrived = peer.phone.pushed_bytes
    peer.faults.leave(0.0)
    again(adb_server, peer)
    done = onto(artifact, chunk_bytes=CHUNK)
    whole_version(peer, artifact)
    assert done.sent.bytes + arrived < done.package.bytes + 2 * CHUNK, "at most the last piece twice"


@pytest.mark.parametrize("share", [0.5, 0.9, 1.1])
def test_a_file_system_that_is_full(
    share: float, artifact: Path, mounted: Callable[..., Path], plugged: Callable[..., Peer], adb_server: AdbServer,
    tmp_path: Path,
) -> None:  # fmt: skip
    """A real one: pushing, or joining what was pushed, finds no room. With more of it the same command goes on."""
    size = sum(map(len, files_of(artifact).values()))
    place = mounted(int(share * size))
    (tmp_path / "phone").mkdir()
    (tmp_path / "phone" / "data").symlink_to(place)
    peer = plugged(root=tmp_path / "phone")
    onto = Onto(adb_server.adb.device(peer.serial))
    with pytest.raises(DeviceError, match="the device is full") as caught:
        onto(artifact, chunk_bytes=CHUNK)
    assert "make room" in caught.value.fix
    assert not (peer.phone.target / "hvdc/artifacts/dcm/current").exists()
    subprocess.run(["mount", "-o", f"remount,size={4 * size}", place], check=True)
    onto(artifact, chunk_bytes=CHUNK)
    whole_version(peer, artifact)


class Watch:
    """What is sent that was verified on the phone before."""

    def __init__(self, peer: Peer, package_hashes: dict[str, str]) -> None:
        self._root = peer.phone.target / "hvdc"
        self._paths = package_hashes
        self.again: list[str] = []
        peer.phone.when_sent = self.see

    def see(self, name: str) -> None:
        digest = name.rpartition("/")[2].removesuffix(".part")
        if (self._root / "parts" / digest).exists():
            self.again.append(name)
        for path in self._root.glob(f"artifacts/*/*.new/{self._paths.get(digest, 'nothing')}"):
            if hashlib.sha256(path.read_bytes()).hexdigest() == digest:
                self.again.append(name)


@pytest.mark.parametrize("seed", [0])
def test_a_hundred_cuts_at_random(seed: int, peer: Peer, onto: Onto, tmp_path: Path) -> None:
    """It always goes on, sends no verified piece again, and what arrives is right."""
    artifact = phone_artifact(tmp_path / "a.hvdc", Spec(layers=12))
    draw = random.Random(seed)
    peer.faults.cut_at_bytes = [draw.randrange(300, 16_000) for _ in range(100)]
    files = files_of(artifact)
    watch = Watch(peer, {hashlib.sha256(data).hexdigest(): f"{ARTIFACT}/{path}" for path, data in files.items()})
    done = onto(artifact, chunk_bytes=CHUNK // 3)
    whole_version(peer, artifact)
    assert peer.faults.cuts == 100, "the artifact is large enough for all of them"
    assert watch.again == []
    assert done.losses >= 90
    assert done.sent.again == 0
    assert peer.phone.pushed_bytes <= done.package.bytes + 100 * (CHUNK // 3), "a cut costs at most a piece"


def test_a_file_that_changes_while_it_is_sent(artifact: Path, peer: Peer, device: AdbDevice, tmp_path: Path) -> None:
    changing = phone_artifact(tmp_path / "a.hvdc")
    region = changing / "regions" / "block-001.bin"
    changed: list[str] = []

    def change(name: str) -> None:
        if not changed:
            changed.append(name)
            region.write_bytes(bytes(region.stat().st_size))

    peer.phone.when_sent = change
    with pytest.raises(DeviceError, match="not what was sent, again and again") as caught:
        Onto(device)(changing)
    assert "if the file is being written now" in caught.value.fix
    assert not (peer.phone.target / "hvdc/artifacts/dcm/current").exists()
