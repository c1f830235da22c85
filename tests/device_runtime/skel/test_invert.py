"""Bits that the skel inverts where it is asked to: whether a DSP reads and writes what it maps."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from tests.device_runtime.rpc_client import Client, Memory

U32 = st.integers(0, 2**32 - 1)


def test_bits_are_inverted_where_they_are_asked_for(client: Client) -> None:
    client.hello()
    memory = Memory(bytes(range(256)) * 4)
    region = client.map(memory, writable=1)
    client.skel.done(client.handle, "invert", region=region, offset=128, bytes=100)
    before, after = bytes(range(256)) * 4, memory.read()
    assert after[128:228] == bytes(255 - byte for byte in before[128:228])
    assert after[:128] + after[228:] == before[:128] + before[228:]
    client.skel.done(client.handle, "invert", region=region, offset=128, bytes=100)
    assert memory.read() == before


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"region": 200}, "region 200 is not mapped"),
        ({"offset": 4}, "no multiple of 128"),
        ({"bytes": 1025}, "are not in region"),
        ({"offset": 2**64 - 128, "bytes": 128}, "are not in region"),
    ],
)
def test_bits_that_cannot_be_inverted(client: Client, values: dict[str, int], words: str) -> None:
    client.hello()
    memory = Memory(bytes(1024))
    asked = {"region": client.map(memory, writable=1), "bytes": 1024, **values}
    assert words in client.skel.refused(client.handle, "invert", **asked)
    assert memory.read() == bytes(1024)


def test_what_is_mapped_for_reading_or_in_use_is_not_inverted(client: Client) -> None:
    client.hello()
    memory = Memory(bytes(1024))
    said = client.skel.refused(client.handle, "invert", region=client.map(memory), bytes=128)
    assert "for reading only" in said
    files = client.map_files()
    client.attach(files)
    region = next(number for number in files if number != client.no_region)
    said = client.skel.refused(client.handle, "invert", region=region, bytes=128)
    assert "for reading only" in said or "in use" in said
