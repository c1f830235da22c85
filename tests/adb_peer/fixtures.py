"""Fixtures of tests that use the peer: import them into a conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.adb_program import AdbProgram, find_adb
from hvdc.deploy.errors import DeviceError
from tests.adb_peer.peer import Peer
from tests.adb_peer.phone import Phone
from tests.adb_peer.server import AdbServer


@pytest.fixture(scope="session")
def adb_program() -> AdbProgram:
    """Skips where there is no adb."""
    try:
        return find_adb()
    except DeviceError as error:
        pytest.skip(f"what needs adb is not tested: {error.what}")


@pytest.fixture(scope="session")
def adb_server(adb_program: AdbProgram, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdbServer]:
    with AdbServer(adb_program, tmp_path_factory.mktemp("adb-home")) as server:
        yield server


@pytest.fixture
def plugged(adb_server: AdbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Peer]]:
    """``plugged(**facts of a Phone)``: a peer that adb's server is connected to, and that commands find."""
    for name, value in adb_server.environment().items():
        if name.startswith(("ANDROID_", "ADB_")):
            monkeypatch.setenv(name, value)
    monkeypatch.delenv("ANDROID_SERIAL", raising=False)
    peers: list[Peer] = []

    def plug(**facts: Any) -> Peer:
        phone = Phone(facts.pop("root", tmp_path / f"phone-{len(peers)}"), **facts)
        peer = Peer(phone).__enter__()
        peers.append(peer)
        adb_server.connect(peer.serial)
        return peer

    yield plug
    for peer in peers:
        adb_server.disconnect(peer.serial)
        peer.__exit__(None, None, None)


@pytest.fixture
def peer(plugged: Callable[..., Peer]) -> Peer:
    """A phone without faults."""
    return plugged()


@pytest.fixture
def device(peer: Peer, adb_server: AdbServer) -> AdbDevice:
    return adb_server.adb.device(peer.serial)
