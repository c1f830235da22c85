"""Of a large file that has changed, only the pieces are sent that no version on the phone has."""

from __future__ import annotations

import hashlib
import random
import shutil
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdc.cli.output import mib
from hvdc.deploy.deploy import DeployRequest
from hvdc.deploy.errors import DeviceError
from hvdc.deploy.found import Found, parse_found
from hvdc.deploy.layout import MARKER_TEXT, Layout
from hvdc.deploy.package import Chunk, Item, Package
from hvdc.deploy.todo import plan_push
from tests.adb_peer import Peer
from tests.artifacts import replace_data
from tests.deploy.artifacts import Onto, deployed, whole_version
from tests.long import LONG

REGION = "regions/block-001.bin"
PIECE_BYTES = 5000
LAYOUT = Layout("/data/local/tmp/hvdc")


def item(path: str, pieces: list[bytes]) -> Item:
    """A file of pieces of equal sizes, but for the last."""
    chunks, offset = [], 0
    for piece in pieces:
        chunks.append(Chunk(offset, len(piece), hashlib.sha256(piece).hexdigest()))
        offset += len(piece)
    return Item(path, Path("nowhere"), offset, hashlib.sha256(b"".join(pieces)).hexdigest(), tuple(chunks))


def holding(package: Package) -> Found:
    """What a phone says that has it."""
    lists = package.listing() + package.pieces()
    return parse_found(f"marker {MARKER_TEXT}\nversion artifacts/dcm/{package.version}\n{lists}deployed {{}}\nsizes\n")


PIECES = st.lists(st.sampled_from([bytes([i]) * 8 for i in range(12)]), min_size=2, max_size=9)
FILES = st.dictionaries(st.sampled_from("abcd"), PIECES, min_size=1)


@given(FILES, FILES)
@settings(max_examples=300, deadline=None)
def test_exactly_the_pieces_that_are_not_there_are_sent(
    before: dict[str, list[bytes]], now: dict[str, list[bytes]]
) -> None:
    old = Package(tuple(item(name, pieces) for name, pieces in before.items()), "", "")
    new = Package(tuple(item(name, pieces) for name, pieces in now.items()), "", "")
    todo = plan_push(new, holding(old), LAYOUT, "dcm")
    files = {each.sha256: each for each in old.items}
    assert {each.path for each, _ in todo.linked} == {each.path for each in new.items if each.sha256 in files}
    wanted = {c.sha256 for each in new.items if each.sha256 not in files for c in each.chunks}
    had = {c.sha256 for each in old.items for c in each.chunks}
    sent = [chunk.sha256 for _, chunks in todo.sent for chunk in chunks]
    copied = [copy.chunk.sha256 for copy in todo.copied]
    assert sorted(sent) == sorted(wanted - had), "each once"
    assert sorted(copied) == sorted(wanted & had), "each once"
    contents = {f"{LAYOUT.version('dcm', old.version)}/{name}": b"".join(pieces) for name, pieces in before.items()}
    for copy in todo.copied:
        data = contents[copy.path][copy.offset : copy.offset + copy.chunk.bytes]
        assert hashlib.sha256(data).hexdigest() == copy.chunk.sha256


def changed(artifact: Path, copy: Path, pieces: set[int]) -> Path:
    """The same artifact, with a byte of these pieces of a region changed."""
    shutil.copytree(artifact, copy)
    data = bytearray((copy / REGION).read_bytes())
    for index in pieces:
        data[index * PIECE_BYTES] ^= 1
    replace_data(copy, REGION, bytes(data))
    return copy


def sent_of_region(peer: Peer, names: list[str], artifact: Path) -> set[int]:
    """Which of its pieces were sent."""
    data = (artifact / REGION).read_bytes()
    starts = range(0, len(data), PIECE_BYTES)
    digests = {hashlib.sha256(data[start : start + PIECE_BYTES]).hexdigest(): i for i, start in enumerate(starts)}
    assert len(digests) == len(starts)
    return {digests[name.rpartition("/")[2].removesuffix(".part")] for name in names
            if name.rpartition("/")[2].removesuffix(".part") in digests}  # fmt: skip


@pytest.mark.parametrize(("seed", "links"), [(0, True), (1, False), *((s, True) for s in range(2, 20) if LONG)])
def test_a_large_file_that_changed_in_places(
    seed: int, links: bool, artifact: Path, peer: Peer, onto: Onto, tmp_path: Path
) -> None:
    peer.phone.links_allowed = links
    onto(artifact, chunk_bytes=PIECE_BYTES)
    count = -(-(artifact / REGION).stat().st_size // PIECE_BYTES)
    assert count >= 4
    draw = random.Random(seed)
    pieces = set(draw.sample(range(count), draw.randrange(1, count)))
    other = changed(artifact, tmp_path / "other.hvdc", pieces)
    names: list[str] = []
    peer.phone.when_sent = names.append
    planned = onto(other, chunk_bytes=PIECE_BYTES, dry_run=True)
    done = onto(other, chunk_bytes=PIECE_BYTES)
    whole_version(peer, other)
    assert sent_of_region(peer, names, other) == pieces
    assert done.sent.copied_bytes == planned.todo.copied_bytes == done.todo.copied_bytes > 0
    assert done.as_json()["reused_bytes"] + done.sent.bytes - lists(peer, done.folder) == done.package.bytes
    assert onto(artifact, chunk_bytes=PIECE_BYTES).was_there


def lists(peer: Peer, folder: str) -> int:
    place = peer.phone.place(folder)
    return sum((place / name).stat().st_size for name in ("files.txt", "pieces.txt", "deployed.json"))


def test_a_piece_that_is_not_what_its_list_says_is_sent(artifact: Path, peer: Peer, onto: Onto, tmp_path: Path) -> None:
    version = onto(artifact, chunk_bytes=PIECE_BYTES).package.version
    region = peer.phone.target / "hvdc/artifacts/dcm" / version / "artifact.hvdc" / REGION
    data = bytearray(region.read_bytes())
    data[2 * PIECE_BYTES + 7] ^= 1
    region.write_bytes(data)
    other = changed(artifact, tmp_path / "other.hvdc", {0})
    names: list[str] = []
    peer.phone.when_sent = names.append
    done = onto(other, chunk_bytes=PIECE_BYTES)
    whole_version(peer, other)
    assert sent_of_region(peer, names, other) == {0, 2}
    assert any("a piece is not what its list says" in text for text in onto.said)
    assert done.sent.again == 0
    assert done.sent.copied_bytes == done.todo.copied_bytes - PIECE_BYTES


def test_an_old_file_that_is_gone_costs_only_time(artifact: Path, peer: Peer, onto: Onto, tmp_path: Path) -> None:
    version = onto(artifact, chunk_bytes=PIECE_BYTES).package.version
    (peer.phone.target / "hvdc/artifacts/dcm" / version / "artifact.hvdc" / REGION).unlink()
    other = changed(artifact, tmp_path / "other.hvdc", {1})
    done = onto(other, chunk_bytes=PIECE_BYTES)
    whole_version(peer, other)
    lost = sum(copy.chunk.bytes for copy in done.todo.copied if copy.path.endswith(REGION))
    assert 0 < lost == done.todo.copied_bytes - done.sent.copied_bytes


def test_pieces_that_were_copied_before_a_cut_stay(artifact: Path, peer: Peer, onto: Onto, tmp_path: Path) -> None:
    onto(artifact, chunk_bytes=PIECE_BYTES)
    other = changed(artifact, tmp_path / "other.hvdc", {0, 1})
    peer.faults.cut_after(9_000, away_s=1e9)
    with pytest.raises(DeviceError, match="lost"):
        onto(other, chunk_bytes=PIECE_BYTES, wait_s=0.3)
    peer.faults.leave(0.0)
    assert onto.device.wait(10)
    names: list[str] = []
    peer.phone.when_sent = names.append
    done = onto(other, chunk_bytes=PIECE_BYTES)
    whole_version(peer, other)
    assert sent_of_region(peer, names, other) <= {0, 1}
    assert list((peer.phone.target / "hvdc" / "parts").iterdir()) == []
    assert done.losses == 0


def test_a_version_without_a_list_of_pieces_lends_whole_files(
    artifact: Path, peer: Peer, onto: Onto, tmp_path: Path
) -> None:
    onto(artifact, chunk_bytes=PIECE_BYTES)
    for path in peer.phone.target.glob("hvdc/artifacts/*/*/pieces.txt"):
        path.unlink()
    done = onto(changed(artifact, tmp_path / "other.hvdc", {0}), chunk_bytes=PIECE_BYTES)
    assert (done.todo.copied, bool(done.todo.linked)) == ((), True)


def test_what_is_reused_is_shown(
    artifact: Path, peer: Peer, onto: Onto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onto(artifact, chunk_bytes=PIECE_BYTES)
    other = changed(artifact, tmp_path / "other.hvdc", {0})
    monkeypatch.setattr("hvdc.cli.deploy.DeployRequest", partial(DeployRequest, chunk_bytes=PIECE_BYTES))
    facts = deployed(other, "--dry-run", "--name", "dcm", "--json").json()
    assert 0 < facts["reused_pieces_bytes"] < facts["reused_bytes"]
    assert facts["reused_bytes"] + facts["to_send_bytes"] == facts["bytes"]
    part = f"{mib(facts['reused_pieces_bytes'])} of it as pieces of files that have changed"
    assert part in deployed(other, "--dry-run", "--name", "dcm").out
    assert part in deployed(other, "--no-run", "--name", "dcm").out
