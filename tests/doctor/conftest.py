"""A phone on loopback for reports of phones."""

from tests.adb_peer.fixtures import adb_program, adb_server, device, peer, plugged

__all__ = ["adb_program", "adb_server", "device", "peer", "plugged"]
