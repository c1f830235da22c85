"""What one call of adb sends, and what is heard of it meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdc.deploy import push
from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.adb_push import run_transfer
from hvdc.deploy.errors import DeviceError, LinkError
from hvdc.deploy.package import Chunk, Item
from tests.adb_peer import Peer
from tests.deploy.artifacts import Onto, whole_version

MIB = 1 << 20


@given(st.lists(st.lists(st.integers(0, 64 * MIB), min_size=1, max_size=4), max_size=80), st.booleans())
@settings(max_examples=100, deadline=None)
def test_groups_hold_every_piece_in_order_and_the_last_is_small(files: list[list[int]], equal: bool) -> None:
    wanted, count = [], 0
    for index, sizes in enumerate(files):
        chunks = []
        for size in sizes:
            count += 1
            chunks.append(Chunk(0, size, f"{count % 7 if equal else count:064x}"))
        wanted.append((Item(str(index), Path("nowhere"), sum(sizes), "", tuple(chunks)), tuple(chunks)))
    groups = list(push._groups(tuple(wanted)))
    due = [(item, piece) for item, chunks in wanted for piece in (*chunks, *([None] if len(chunks) > 1 else []))]
    assert [each for group in groups for each in group] == due
    rest = sum(sum(sizes) for sizes in files)
    for group in groups:
        pieces = [piece for _, piece in group if piece is not None]
        size = sum(piece.bytes for piece in pieces)
        assert len({piece.sha256 for piece in pieces}) == len(pieces), "each has its own name on the device"
        largest = min(max(rest * push.SHARE_OF_REST, push.SMALLEST_GROUP_BYTES), push.LARGEST_GROUP_BYTES)
        assert len(pieces) <= max(1, push.GROUP)
        assert size <= largest or len(pieces) == 1
        rest -= size


def test_without_shares_a_transfer_has_no_terminal() -> None:
    words = "test -t 1 && echo terminal || echo 'adb: error: no terminal'; exit 3"
    assert run_transfer(["sh", "-c", words], None, 10, 10) == (3, "adb: error: no terminal")
    assert run_transfer(["sh", "-c", words], lambda name, share: None, 10, 10) == (3, "terminal")


@pytest.mark.parametrize("progress", [None, lambda name, share: None], ids=["no shares", "shares"])
def test_a_transfer_that_says_nothing_is_ended(progress: Any, tmp_path: Path) -> None:
    begun_s = time.monotonic()
    words = f"echo $$ > {tmp_path}/pid; sleep 60"
    with pytest.raises(LinkError, match="does not go on"):
        run_transfer(["sh", "-c", words], progress, timeout_s=30, silence_s=0.3)
    with pytest.raises(DeviceError, match="takes too long"):
        run_transfer(["sh", "-c", words], progress, timeout_s=0.3, silence_s=30)
    assert time.monotonic() - begun_s < 20
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.parametrize("is_slow", [False, True], ids=["quick groups", "slow groups"])
def test_shares_are_counted_where_a_group_takes_long(
    is_slow: bool, artifact: Path, peer: Peer, onto: Onto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of the first group, of which nobody knows how long it will take."""
    counted: list[bool] = []
    push_all = AdbDevice.push_all

    def note(self: AdbDevice, files: Sequence[Path], folder: str, progress: Any = None, **more: Any) -> None:
        counted.append(progress is not None)
        push_all(self, files, folder, progress, **more)

    monkeypatch.setattr(AdbDevice, "push_all", note)
    monkeypatch.setattr(push, "GROUP", 2)
    monkeypatch.setattr(push, "COUNTED_S", 1e-6 if is_slow else 1e6)
    onto(artifact)
    whole_version(peer, artifact)
    assert len(counted) > 3
    assert counted[0]
    assert set(counted[1:]) == {is_slow}
