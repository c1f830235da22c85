"""Space on a device: what is needed is known before anything is sent, and the message says what can go for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hvdc.deploy.checks import Mismatch
from hvdc.deploy.device_facts import parse_facts
from hvdc.deploy.errors import DeviceError
from hvdc.deploy.found import Found, Held
from hvdc.deploy.layout import Layout
from hvdc.deploy.package import Chunk, Item, Package
from hvdc.deploy.room import space_mismatch
from hvdc.deploy.todo import plan_push
from tests.adb_peer import Peer
from tests.deploy.artifacts import Onto, deployed, whole_version, with_another_adapter

BASE, NEW = ("0" * 64, 1000), ("1" * 64, 100)
PACKAGE = Package(
    tuple(
        Item(path, Path("nowhere"), size, digest, (Chunk(0, size, digest),))
        for path, (digest, size) in {"base": BASE, "new": NEW}.items()
    ), "", "",
)  # fmt: skip


def held(version: str, *, is_current: bool, name: str = "dcm") -> Held:
    return Held(name, version * 16, is_current, {"base": BASE})


def short(free_bytes: int, *versions: Held, links: bool | None) -> Mismatch | None:
    facts, found = replace(parse_facts(""), free_bytes=free_bytes), Found(is_ours=True, versions=versions)
    todo = plan_push(PACKAGE, found, Layout("/data/local/tmp/hvdc"), "dcm")
    return space_mismatch(todo, PACKAGE, found, facts, "dcm", links=links)


def test_what_is_linked_needs_no_space() -> None:
    assert short(1155, links=True) is None
    one = short(1154, links=True)
    assert one is not None
    assert not one.may_force
    assert short(105, held("a", is_current=True), links=True) is None
    assert short(104, held("a", is_current=True), links=True) is not None
    assert short(1155, held("a", is_current=True), links=False) is None
    assert short(1154, held("a", is_current=True), links=False) is not None


def test_an_older_version_goes_first_then_the_one_in_use_then_others() -> None:
    current, before, other = (
        held("a", is_current=True),
        held("b", is_current=False),
        held("c", is_current=True, name="x"),
    )
    pruned = short(200, current, before, links=False)
    assert pruned is not None
    assert "makes no hard links" in pruned.what
    assert pruned.fix == "the same command with --prune: it first removes one version of dcm that nothing uses"
    removed = short(200, current, other, links=False)
    assert removed is not None
    assert removed.fix.startswith("hvdc deploy --remove dcm first makes room; what is lost by it: one version")
    assert "nothing of it can run there until all 1,100 bytes are sent" in removed.fix
    assert "hvdc deploy --pull-logs DIR keeps the logs" in removed.fix
    nothing = short(10, current, other, links=None)
    assert nothing is not None
    assert "unless it makes hard links" in nothing.what
    assert nothing.fix.startswith(
        "remove something from the device: hvdc deploy --remove NAME (dcm 1,000 bytes, x 1,000"
    )


def test_two_versions_that_do_not_fit(artifact: Path, peer: Peer, onto: Onto, tmp_path: Path) -> None:
    """The message helps: what it names makes room."""
    peer.phone.links_allowed, peer.phone.capacity_bytes = False, 1 << 20
    size = onto(artifact).package.bytes
    other = with_another_adapter(artifact, tmp_path / "other.hvdc")
    peer.phone.capacity_bytes = 2 * size
    with pytest.raises(DeviceError, match="what they share is there twice") as caught:
        onto(other)
    assert "hvdc deploy --remove dcm first makes room" in caught.value.fix
    whole_version(peer, artifact)
    assert "does not fit: the device has too little free space" in deployed(other, "--dry-run", "--name", "dcm").out
    assert deployed("--remove", "dcm").status == 0
    onto(other)
    whole_version(peer, other)


def test_with_prune_the_oldest_version_makes_room(artifact: Path, peer: Peer, onto: Onto, tmp_path: Path) -> None:
    """The one in use stays until the new one is."""
    peer.phone.links_allowed = False
    first = onto(artifact).package
    second = onto(with_another_adapter(artifact, tmp_path / "second.hvdc")).package
    third = with_another_adapter(artifact, tmp_path / "third.hvdc", b"another")
    folder = peer.phone.target / "hvdc/artifacts/dcm"
    peer.phone.capacity_bytes = 3 * first.bytes
    with pytest.raises(DeviceError) as caught:
        onto(third)
    assert caught.value.fix.startswith("the same command with --prune")
    assert onto(third, dry_run=True, prune=True).forced == []
    seen: list[set[str]] = []
    peer.phone.when_sent = lambda name: seen.append({path.name for path in folder.iterdir()})
    done = onto(third, prune=True)
    whole_version(peer, third)
    assert all(second.version in names and first.version not in names for names in seen)
    assert {path.name for path in folder.iterdir()} == {done.package.version, "current"}
    assert done.pruned == 2
