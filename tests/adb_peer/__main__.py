"""A phone in a folder, to try commands on: ``python -m tests.adb_peer FOLDER``, then ``adb connect`` what it says."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from tests.adb_peer.faults import Faults
from tests.adb_peer.peer import Peer
from tests.adb_peer.phone import GALAXY_S25, Phone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--linux", action="store_true", help="a Linux device of this machine's kind, no Android")
    parser.add_argument("--cut-at", type=int, action="append", default=[], metavar="BYTES")
    parser.add_argument("--full-at", type=int, metavar="BYTES")
    parser.add_argument("--bytes-per-s", type=float, metavar="BYTES", help="a slow link")
    given = parser.parse_args()
    root = given.root.absolute()
    faults = Faults(cut_at_bytes=given.cut_at, full_at_bytes=given.full_at, bytes_per_s=given.bytes_per_s)
    as_phone = {} if given.linux else GALAXY_S25
    phone = Phone(root, faults, properties=dict(as_phone), machine=None if given.linux else "aarch64", hashes_fast=True)
    with Peer(phone, given.port) as peer:
        print(peer.serial, flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
