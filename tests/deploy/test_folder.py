"""The folder on a phone: whose it is, said before anything is sent, and ours also where making it was cut short."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.errors import DeviceError, LinkError
from hvdc.deploy.layout import TARGET, Layout
from hvdc.deploy.store import Store
from tests.adb_peer import Peer
from tests.deploy.artifacts import deployed

STATES: dict[str, tuple[Callable[[Path], None], str]] = {
    "others": (lambda path: (path / "photo.jpg").mkdir(parents=True), "is not hvdc's, and is left alone"),
    "a file": (lambda path: path.touch(), "is not hvdc's, and is left alone"),
    "a link": (lambda path: path.symlink_to("/tmp"), "a link, which could lead anywhere"),
}


@pytest.mark.parametrize("state", STATES)
def test_a_dry_run_says_that_the_folder_is_somebody_elses(state: str, artifact: Path, peer: Peer) -> None:
    make, said = STATES[state]
    make(peer.phone.target / "hvdc")
    before = sorted(peer.phone.target.rglob("*"))
    done = deployed(artifact, "--dry-run")
    assert done.status == 5
    assert said in done.out
    assert "--force goes on" not in done.out
    assert sorted(peer.phone.target.rglob("*")) == before


@pytest.mark.parametrize("folder", [TARGET, f"{TARGET}/not/there/yet"])
def test_one_that_is_not_there_can_be_made(folder: str, peer: Peer, device: AdbDevice) -> None:
    store = Store(device, Layout(folder))
    store.require_usable()
    assert list(peer.phone.target.iterdir()) == [], "but is not"
    store.prepare()
    store.require_usable()


def test_one_that_cannot_be_written_is_named(peer: Peer, device: AdbDevice) -> None:
    """By what the shell's ``[ -w ]`` says: /proc is writable for nobody, whoever runs tests."""
    with pytest.raises(DeviceError, match="cannot be written"):
        Store(device, Layout("/proc/self/nowhere")).require_usable()


@pytest.mark.parametrize("call", [1, 2])
def test_a_folder_whose_making_was_cut_short_is_ours(call: int, peer: Peer, device: AdbDevice) -> None:
    """Between any two of its parts."""
    program = peer.phone.root / "system/bin/mkdir"
    real = program.readlink()
    counted = peer.phone.root / "calls"
    name = "mkdir " if real.name == "toybox" else ""
    text = f'#!/bin/sh\n{real} {name}"$@"\necho >> {counted}\n[ $(wc -l < {counted}) != {call} ] || kill -9 $PPID\n'
    program.unlink()
    program.write_text(text)
    program.chmod(0o755)
    store = Store(device, Layout(TARGET))
    with pytest.raises((LinkError, DeviceError)):
        store.prepare()
    program.unlink()
    program.symlink_to(real)
    store.prepare()
    assert store.look().is_ours
