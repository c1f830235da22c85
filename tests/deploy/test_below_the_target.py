"""What is made on a device stays below its target folder, whatever lies there already; and no script is too long."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.errors import DeviceError
from hvdc.deploy.layout import NEW, TARGET_LETTERS, Layout
from hvdc.deploy.patience import Patience
from hvdc.deploy.push import Pusher
from hvdc.deploy.store import Store
from hvdc.deploy.todo import plan_push
from hvdc.progress import Silent
from tests.adb_peer import Peer
from tests.artifacts import Spec
from tests.deploy.artifacts import Onto, deployed, phone_artifact, whole_version, with_another_adapter

LONGEST_SCRIPT = 65_535
"""adb's client writes the length of what its server is to do as four hexadecimal digits."""


@pytest.mark.parametrize("link", ["kernels", "lock", "hvdc-target"])
def test_nothing_is_made_through_a_link(link: str, artifact: Path, peer: Peer, onto: Onto, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / f"precious{NEW}").mkdir()
    onto(artifact, name="other")
    place = peer.phone.target / "hvdc" / link
    place.unlink(missing_ok=True)
    place.symlink_to(elsewhere)
    with pytest.raises(DeviceError) as caught:
        onto(artifact)
    assert "a link, which could lead anywhere" in caught.value.found
    assert "--to" in caught.value.fix
    assert [path.name for path in elsewhere.iterdir()] == [f"precious{NEW}"]


def test_a_version_that_lies_elsewhere_is_not_switched_to(
    artifact: Path, peer: Peer, onto: Onto, tmp_path: Path
) -> None:
    onto(artifact)
    place = peer.phone.target / "hvdc" / "artifacts" / "dcm"
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "current").unlink()
    with pytest.raises(DeviceError):
        onto(artifact)
    assert not (tmp_path / "elsewhere" / "current").is_symlink()


def test_what_is_linked_again_after_a_cut_leaves_nothing_else(
    artifact: Path, peer: Peer, device: AdbDevice, onto: Onto, tmp_path: Path
) -> None:
    """toybox's ``ln -f`` onto a name of the same file leaves the temporary name that it would have renamed."""
    onto(artifact)
    other = with_another_adapter(artifact, tmp_path / "other.hvdc")
    package = onto(other, dry_run=True).package
    store = Store(device, Layout("/data/local/tmp/hvdc"))
    found = store.look()
    pusher = Pusher(store, "dcm", package, Patience(device, print), Silent(), print, link=True)
    todo = plan_push(package, found, store.layout, "dcm")
    pusher.prepare(found, todo)
    linked = todo.linked
    assert linked
    for _ in range(2):
        pusher.reuse(linked)
    folder = peer.phone.target / "hvdc/artifacts/dcm" / f"{package.version}{NEW}"
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert there == {item.path for item, _ in linked}


def test_scripts_are_as_short_as_adb_takes_them(peer: Peer, onto: Onto, tmp_path: Path) -> None:
    artifact = phone_artifact(tmp_path / "a.hvdc", Spec(layers=70))
    target = "/data/local/tmp"
    while len(target) < TARGET_LETTERS:
        target += "/" + "x" * min(90, TARGET_LETTERS - len(target) - 1)
    name = "n" * 60
    onto(artifact, target=target, name=name)
    other = with_another_adapter(artifact, tmp_path / "other.hvdc")
    done = onto(other, target=target, name=name)
    assert len(done.todo.linked) > 70
    assert max(map(len, peer.phone.commands)) < LONGEST_SCRIPT
    there = peer.phone.root / target.lstrip("/") / "artifacts" / name / "current" / "artifact.hvdc"
    assert len(list((there / "regions").iterdir())) == 70


def test_what_was_interrupted_is_listed_and_can_be_removed(
    artifact: Path, peer: Peer, onto: Onto, tmp_path: Path
) -> None:
    """Its space can be had back, and removing something else does not cost it."""
    other = with_another_adapter(artifact, tmp_path / "other.hvdc")
    onto(other, name="old")
    peer.faults.cut_after(60_000, away_s=1e9)
    with pytest.raises(DeviceError, match="lost"):
        onto(phone_artifact(tmp_path / "new.hvdc", Spec(layers=5)), name="new", chunk_bytes=5_000, wait_s=0.3)
    peer.faults.leave(0.0)
    assert onto.device.wait(10)
    parts = peer.phone.target / "hvdc" / "parts"
    kept = sorted(path.name for path in parts.iterdir())
    assert kept
    text = deployed("--list").out
    assert "unfinished: new, " in text
    assert "hvdc deploy --remove NAME" in text
    listed = deployed("--list", "--json").json()
    assert (listed["unfinished"], [v["name"] for v in listed["versions"]]) == (["new"], ["old"])
    assert listed["unfinished_bytes"] > 0
    assert deployed("--remove", "old").status == 0
    assert sorted(path.name for path in parts.iterdir()) == kept, "the other goes on with these"
    assert deployed("--remove", "new").status == 0
    assert list(parts.iterdir()) == []
    assert deployed("--list", "--json").json()["unfinished_bytes"] == 0
    onto(artifact)
    whole_version(peer, artifact)
