"""What a program on the device may be reading is not removed, and nobody else is tried beside it."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hvdc.deploy.in_use import InUseError
from tests.adb_peer import Peer
from tests.deploy.artifacts import (
    PROGRAMS,
    Onto,
    deployed,
    files_of,
    script,
    whole_version,
    with_another_adapter,
    with_runtime,
)
from tests.deploy.holders import working

HOLDER = "hvdc run, dcm"
pytestmark = pytest.mark.skipif(shutil.which("flock") is None, reason="there is no flock")


@contextmanager
def in_use(peer: Peer) -> Iterator[None]:
    with working("/bin/sh", peer.phone.target / "hvdc" / "in-use", HOLDER):
        yield


def versions(peer: Peer) -> set[str]:
    folder = peer.phone.target / "hvdc/artifacts/dcm"
    return {path.name for path in folder.iterdir() if path.is_dir() and not path.is_symlink()}


def test_it_is_not_removed(artifact: Path, peer: Peer, onto: Onto) -> None:
    onto(artifact)
    before = files_of(peer.phone.target / "hvdc/artifacts")
    with in_use(peer):
        done = deployed("--remove", "dcm")
        assert done.status == 5
        assert f"another program is working on this device now\n  where:     {peer.serial}\n" in done.err
        assert f"found:     {HOLDER}, from this computer, for " in done.err
        assert "it may be reading what would be removed" in done.err
    assert files_of(peer.phone.target / "hvdc/artifacts") == before
    assert deployed("--remove", "dcm").status == 0
    assert not (peer.phone.target / "hvdc/artifacts/dcm").exists()


def test_who_it_is_is_shown_and_not_obeyed(artifact: Path, peer: Peer, onto: Onto) -> None:
    """Whoever may write to the phone's folder may write that file, too."""
    onto(artifact)
    lock = peer.phone.target / "hvdc" / "in-use"
    with in_use(peer):
        since, pid, computer, _ = lock.read_text().split(" ", 3)
        lock.write_text(f"{since} {pid} {computer} hvdc\x1b[2J\x1b]0;x\x07 run\n")
        done = deployed("--remove", "dcm")
    assert done.status == 5
    assert "hvdc [2J ]0;x  run, from this computer" in done.err
    assert "\x1b" not in done.err


def test_the_version_before_stays_and_the_new_one_is_in_use(
    artifact: Path, peer: Peer, onto: Onto, tmp_path: Path
) -> None:
    first = onto(artifact).package.version
    other = with_another_adapter(artifact, tmp_path / "other.hvdc")
    with in_use(peer):
        done = deployed(other, "--name", "dcm", "--prune", "--no-run")
    assert done.status == 5, "not all that was asked for is done"
    assert f"not pruned: another program is working on this device now, {HOLDER}, from this computer" in done.out
    whole_version(peer, other)
    assert first in versions(peer)
    again = deployed(other, "--name", "dcm", "--prune", "--no-run", "--json")
    assert (again.status, again.json()["pruned_versions"], again.json()["not_pruned"]) == (0, 1, None)
    assert first not in versions(peer)


def test_it_makes_no_room(artifact: Path, peer: Peer, onto: Onto, tmp_path: Path) -> None:
    """A program may have been started from a version that is in use no longer."""
    peer.phone.links_allowed = False
    size = onto(artifact).package.bytes
    onto(with_another_adapter(artifact, tmp_path / "second.hvdc"))
    peer.phone.capacity_bytes = 3 * size
    before = versions(peer)
    with in_use(peer), pytest.raises(InUseError, match="another program is working on this device now"):
        onto(with_another_adapter(artifact, tmp_path / "third.hvdc", b"another"), prune=True)
    assert versions(peer) == before


def test_a_damaged_version_is_exchanged_when_nobody_reads_it(artifact: Path, peer: Peer, onto: Onto) -> None:
    done = onto(artifact)
    damaged = peer.phone.target / f"hvdc/artifacts/dcm/{done.package.version}/artifact.hvdc/manifest.json"
    damaged.write_bytes(b"damaged")
    with in_use(peer), pytest.raises(InUseError):
        onto(artifact)
    assert damaged.read_bytes() == b"damaged"
    assert onto(artifact).sent.bytes < done.package.bytes / 10, "what arrived then is put in place now"
    whole_version(peer, artifact)


def test_what_is_tried_is_named_by_its_own_number(artifact: Path, peer: Peer, tmp_path: Path) -> None:
    """Which a person may end, as the message says."""
    copy = Path(shutil.copytree(artifact, tmp_path / "dcm.hvdc"))
    with_runtime(copy, PROGRAMS | {"hvdc_bench": script("exec sleep 60")})
    lock = peer.phone.target / "hvdc" / "in-use"
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(deployed(copy).status))
    thread.start()
    end_s = time.monotonic() + 30
    while not (lock.exists() and "trying hvdc_bench" in lock.read_text()) and time.monotonic() < end_s:
        time.sleep(0.05)
    pid = int(lock.read_text().split()[1])
    command = Path(f"/proc/{pid}/cmdline")
    while b"sleep" not in command.read_bytes() and time.monotonic() < end_s:
        time.sleep(0.05)
    os.kill(pid, signal.SIGTERM)
    thread.join(20)
    assert statuses == [5]


def test_nothing_is_tried_beside_it(artifact: Path, peer: Peer, onto: Onto) -> None:
    """Blocks of a smoke test would be in what a benchmark measures."""
    onto(artifact)
    with in_use(peer):
        done = deployed(artifact, "--name", "dcm")
        assert done.status == 0, done.err
        assert f"not tried engines: another program is working on this device now ({HOLDER}" in done.out
    assert "not tried engines" not in deployed(artifact, "--name", "dcm").out
