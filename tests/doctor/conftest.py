"""A phone on loopback for reports of phones; and nobody's own adb server is asked."""

from __future__ import annotations

import socket

import pytest

from tests.adb_peer.fixtures import adb_program, adb_server, device, peer, plugged

__all__ = ["adb_program", "adb_server", "device", "peer", "plugged"]


@pytest.fixture(autouse=True)
def _own_adb_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever report a test makes, it sees no phone of this machine."""
    monkeypatch.setattr("hvdc.doctor.phones.NEW_SERVER_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(free.getsockname()[1]))
