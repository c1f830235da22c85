"""A phone on loopback for every test of deploying, and something to deploy."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdc.deploy.adb import AdbDevice
from tests.adb_peer.fixtures import adb_program, adb_server, device, peer, plugged
from tests.deploy.artifacts import Onto, phone_artifact

__all__ = ["adb_program", "adb_server", "device", "peer", "plugged"]


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For a phone like the peer. Tests change copies of it only."""
    return phone_artifact(tmp_path_factory.mktemp("phone") / "dcm.hvdc")


@pytest.fixture
def onto(device: AdbDevice) -> Onto:
    return Onto(device)
