"""The device's end of adb, for tests: it speaks the protocol of Android's adbd and plays a phone in a folder.

The client and the server are the unmodified ``adb``, on loopback. This is our own code, so that it proves what the
client side makes of a device, and nothing about a real phone's adbd, its SELinux rules, its file system or USB.
"""

from tests.adb_peer.faults import Faults
from tests.adb_peer.peer import Peer
from tests.adb_peer.phone import Phone
from tests.adb_peer.server import AdbServer

__all__ = ["AdbServer", "Faults", "Peer", "Phone"]
