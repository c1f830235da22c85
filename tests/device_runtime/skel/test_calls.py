"""The skel, asked with raw calls: what it refuses, and that nothing that is said to it does harm.

It runs with AddressSanitizer and UndefinedBehaviorSanitizer, each buffer of a call in memory of exactly its size.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.device_runtime.rpc import (
    BAD_PARAMETER,
    CLOSE,
    NO_SUCH_HANDLE,
    OPEN,
    OUT_OF_HANDLES,
    UNSUPPORTED,
    VERSION,
    Skel,
)
from tests.device_runtime.rpc_client import Client, Memory, interface_version

U32 = st.integers(0, 2**32 - 1)


def test_a_block_goes_through_and_only_the_hidden_state_is_written(client: Client) -> None:
    client.to_engine()
    skel, at = client.skel, client.handle
    skel.done(at, "set_text", client.text(), expert=0)
    hidden = client.hidden(extra=256)
    region = client.map(hidden, writable=1)
    before = hidden.read()
    skel.done(at, "run", step=0, first=0, count=1, region=region)
    after = hidden.read()
    assert after[:-256] != before[:-256]
    assert after[-256:] == bytes(256)
    measured = skel.done(at, "measure")
    assert measured.values["memory_bytes"]
    assert np.frombuffer(measured.taken[0], np.float64).sum() > 0


def test_hello_says_what_the_dsp_is(client: Client) -> None:
    said = client.hello().values
    assert said["abi"] == client.skel.interface.constants["abi"]
    assert said["arch"] == 0  # this machine is no Hexagon
    assert isinstance(said["version"], bytes)
    assert said["version"].rstrip(b"\0") == interface_version(client.skel)


@pytest.mark.parametrize(
    ("name", "given_bytes"),
    [("power", ()), ("map", ()), ("attach", (8, 4)), ("open_engine", ()), ("invert", ())],
)
def test_hello_comes_first(client: Client, name: str, given_bytes: tuple[int, ...]) -> None:
    assert "hello comes before every other call" in client.skel.refused(client.handle, name, *map(bytes, given_bytes))


def test_what_comes_before_what(client: Client) -> None:
    skel, at = client.skel, client.handle
    for name, data in (("set_text", [client.text()]), ("run", []), ("measure", []), ("close_engine", [])):
        assert "open_engine comes before" in skel.refused(at, name, *data)
    client.hello()
    assert "attach comes before open_engine" in client.open_engine(rotations_region=client.rotations()).said
    assert client.attach(client.map_files()).kind == 0
    assert "an artifact is attached already" in client.attach(client.map_files()).said
    assert "hello comes before attach" in skel.refused(at, "hello", version=interface_version(skel))
    assert client.open_engine(rotations_region=client.rotations()).kind == 0
    assert "an engine is open already" in client.open_engine(rotations_region=0).said
    region = client.map(client.hidden(), writable=1)
    assert "expert 0 of step 0 has no text yet" in skel.refused(at, "run", count=1, region=region)
    skel.done(at, "close_engine")
    assert "there is no engine" in skel.refused(at, "close_engine")
    assert client.open_engine(rotations_region=client.rotations()).kind == 0


def test_another_build_is_refused(client: Client) -> None:
    said = client.skel.refused(client.handle, "hello", version=b"0.0.9", index_sha256=client.sha256)
    assert "is of runtime 0.1.0 and the program on the CPU of another" in said
    assert "another" in client.skel.refused(client.handle, "hello", version=b"x" * 16)


def test_another_interface_is_refused(client: Client) -> None:
    method = client.skel.interface.methods["measure"]
    record = method.record(abi=client.skel.interface.constants["abi"] + 1)
    sizes = [method.out_bytes, method.taken[0].least_bytes, client.skel.interface.constants["sentence_bytes"]]
    assert client.skel.raw(client.handle, method.scalars, [record], sizes)[0] == VERSION


def test_handles_end_when_they_are_closed(skel: Skel, ragged_artifact: Path) -> None:
    first = skel.open()
    assert skel.close(first) == 0
    assert skel.close(first) == NO_SUCH_HANDLE
    second = skel.open()
    assert second != first
    method = skel.interface.methods["power"]
    sizes = [method.out_bytes, skel.interface.constants["sentence_bytes"]]
    for handle in (first, 0, 2**64 - 1):
        assert skel.raw(handle, method.scalars, [method.record(abi=1)], sizes)[0] == NO_SUCH_HANDLE
    assert skel.close(second) == 0


def test_only_so_many_sessions_are_open(skel: Skel) -> None:
    opened = []
    while (answer := skel.raw(0, OPEN, [b"\4\0\0\0", b"uri\0"], []))[0] == 0:
        opened.append(answer[1])
    assert answer[0] == OUT_OF_HANDLES
    assert 1 < len(opened) == len(set(opened))
    assert all(skel.close(handle) == 0 for handle in opened)


@pytest.mark.parametrize(("length", "uri"), [(5, b"uri\0"), (0, b"uri\0"), (3, b"uri\0"), (4, b""), (2**32 - 1, b"\0")])
def test_a_malformed_opening(skel: Skel, length: int, uri: bytes) -> None:
    assert skel.raw(0, OPEN, [length.to_bytes(4, "little"), uri], [])[0] == BAD_PARAMETER


def test_two_engines_do_not_get_one_vtcm(client: Client) -> None:
    client.to_engine()
    other = Client(client.skel, client.skel.open(), client.artifact)
    other.hello()
    assert other.attach(other.map_files()).kind == 0
    assert "held by another session" in other.open_engine(rotations_region=other.rotations()).said
    assert client.skel.close(client.handle) == 0  # with everything that it holds
    assert other.open_engine(rotations_region=other.rotations()).kind == 0
    other.skel.close(other.handle)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"region": 200}, "region 200 is not mapped"),
        ({"region": 2**32 - 1}, "is not mapped"),
        ({"offset": 4}, "no multiple of 128"),
        ({"offset": 128}, "are not in region"),
        ({"offset": 2**64 - 128}, "are not in region"),
        ({"step": 6}, "of step 6 are not in a trajectory"),
        ({"first": 2**32 - 1, "count": 2}, "are not in a trajectory"),
        ({"count": 3}, "blocks [0, 3) of step 0"),
    ],
)
def test_a_run_that_cannot_be(client: Client, values: dict[str, int], words: str) -> None:
    client.to_engine()
    client.skel.done(client.handle, "set_text", client.text(), expert=0)
    region = client.map(client.hidden(), writable=1)
    hidden = {"region": region, "count": 1, **values}
    assert words in client.skel.refused(client.handle, "run", **hidden)


def test_a_hidden_state_must_be_writable_and_whole(client: Client) -> None:
    client.to_engine()
    client.skel.done(client.handle, "set_text", client.text(), expert=0)
    assert "for reading only" in client.skel.refused(client.handle, "run", count=1, region=client.map(client.hidden()))
    small = client.map(Memory(client.hidden().read()[:-128]), writable=1)
    assert "are not in region" in client.skel.refused(client.handle, "run", count=1, region=small)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"fd": 10**6, "bytes": 4096}, "cannot be opened for reading"),
        ({"fd": 2**31, "bytes": 4096}, "nothing to map"),
        ({"fd": 0, "bytes": 0}, "nothing to map"),
        ({"fd": 0, "bytes": 2**32}, "nothing to map"),
        ({"fd": 0, "bytes": 4096, "writable": 2}, "nothing to map"),
    ],
)
def test_what_cannot_be_mapped(client: Client, values: dict[str, int], words: str) -> None:
    client.hello()
    assert words in client.skel.refused(client.handle, "map", **values)


def test_more_than_a_descriptor_has_is_not_mapped(client: Client) -> None:
    client.hello()
    memory = Memory(bytes(4096))
    said = client.skel.refused(client.handle, "map", fd=memory.fd, bytes=8192)
    assert "which has 4096, cannot be mapped" in said


def test_regions_end(client: Client) -> None:
    client.hello()
    memory = Memory(bytes(4096))
    regions = [client.map(memory) for _ in range(client.skel.interface.constants["regions"])]
    assert sorted(regions) == list(range(len(regions)))
    assert "regions are mapped already" in client.skel.refused(client.handle, "map", fd=memory.fd, bytes=memory.bytes)
    client.skel.done(client.handle, "unmap", region=7)
    assert client.map(memory) == 7
    client.skel.done(client.handle, "unmap", region=7)
    assert "region 7 is not mapped" in client.skel.refused(client.handle, "unmap", region=7)


def test_what_is_in_use_stays_mapped(client: Client) -> None:
    client.hello()
    files, rotations = client.map_files(), client.rotations()
    client.attach(files)
    client.open_engine(rotations_region=rotations)
    for region in (files[0], rotations):
        assert "is in use" in client.skel.refused(client.handle, "unmap", region=region)
    client.skel.done(client.handle, "close_engine")
    client.skel.done(client.handle, "unmap", region=rotations)


def test_an_artifact_is_checked_as_one_in_files(client: Client) -> None:
    """The parser is the same; see test_refusals.py for what it refuses."""
    client.hello()
    files = client.map_files()
    damaged = bytearray(client.index)
    damaged[len(damaged) // 2] ^= 1
    assert "[INDEX_CHECKSUM]" in client.attach(files, bytes(damaged)).said
    assert "[INDEX_SIZE]" in client.attach(files, client.index[:-8]).said
    assert "[INDEX_TOO_SHORT]" in client.attach(files, b"hvdc").said
    assert "[MISSING_FILE]" in client.attach(files[:-1]).said
    assert "is not mapped" in client.attach([255, *files[1:]]).said
    path, _ = client.files[0]
    short = client.map(Memory((client.artifact / path).read_bytes()[:-1]))
    refused = client.attach([short, *files[1:]]).said
    assert "[FILE_SIZE]" in refused
    assert path in refused
    assert client.attach(files).kind == 0  # no failure has left anything


def test_an_artifact_other_than_announced_is_refused(client: Client) -> None:
    client.sha256 = bytes(32)
    client.hello()
    assert "not that of the artifact that hello announced" in client.attach(client.map_files()).said


@pytest.mark.parametrize(
    ("kinds", "words"),
    [(("region", "adapter"), "without its file of modulation tables"), (("region", "schedule"), "no tensor blocks.0")],
)
def test_an_engine_needs_its_files(client: Client, kinds: tuple[str, ...], words: str) -> None:
    client.hello()
    assert client.attach(client.map_files(kinds)).kind == 0
    assert words in client.open_engine(rotations_region=client.rotations()).said


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"threads": 17}, "more than the limit of 16"),
        ({"vtcm_bytes": 9 << 20}, "9437184 bytes of VTCM are wanted"),
        ({"vtcm_bytes": 8192}, "8 KiB of VTCM are too few for the matrix unit"),
        ({"sums": 2}, "sums are 0 or 1"),
        ({"frames": 0}, "grid"),
        ({"frames": 2**31, "rows": 2**31}, "tokens"),
        ({"rows": 3}, "RoPE's rotations of 5040 bytes"),
        ({"rotations_offset": 64}, "no multiple of 128"),
        ({"rotations_region": 99}, "region 99 is not mapped"),
    ],
)
def test_an_engine_that_cannot_be_opened(client: Client, values: dict[str, int], words: str) -> None:
    client.hello()
    assert client.attach(client.map_files()).kind == 0
    rotations = client.rotations()
    assert words in client.open_engine(**{"rotations_region": rotations, **values}).said
    assert client.open_engine(rotations_region=rotations).kind == 0


def test_a_text_of_another_size_is_refused(client: Client) -> None:
    client.to_engine()
    assert "a text of 4 bytes where" in client.skel.refused(client.handle, "set_text", bytes(4), expert=0)
    assert "none of number 2" in client.skel.refused(client.handle, "set_text", client.text(), expert=2)


def test_methods_that_do_not_exist(client: Client) -> None:
    last = max(method.number for method in client.skel.interface.methods.values())
    for number in range(last + 1, 32):
        assert client.skel.raw(client.handle, number << 24 | 1 << 16, [bytes(8)], [])[0] == UNSUPPORTED


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_malformed_calls_are_refused_and_do_no_harm(client: Client, data: st.DataObject) -> None:
    """Any scalars, any number of buffers of any size; a call whose sizes are wrong anywhere never reaches a method."""
    skel = client.skel
    method = data.draw(st.sampled_from(list(skel.interface.methods.values())))
    sentence = skel.interface.constants["sentence_bytes"]
    given_sizes = [method.in_bytes, *(b.least_bytes for b in method.given)]
    sizes_out = [method.out_bytes, *(b.least_bytes for b in method.taken), sentence]
    scalars = method.scalars
    what = data.draw(st.sampled_from(["size", "size out", "count", "scalars"]))
    if what == "size":
        at = data.draw(st.integers(0, len(given_sizes) - 1))
        due = given_sizes[at]
        given_sizes[at] = data.draw(st.integers(0, 64).filter(lambda n: n < due))
    elif what == "size out":
        at = data.draw(st.integers(0, len(sizes_out) - 1))
        due = sizes_out[at]
        sizes_out[at] = data.draw(st.integers(0, 600).filter(lambda n: n != due))
    else:
        if what == "scalars":
            scalars = data.draw(U32.filter(lambda s: s not in (method.scalars, OPEN, CLOSE)))
        else:
            scalars = method.scalars ^ (data.draw(st.integers(1, 15)) << data.draw(st.sampled_from([0, 4, 8, 16])))
        given_sizes = data.draw(
            st.lists(st.integers(0, 64), min_size=(scalars >> 16) & 255, max_size=(scalars >> 16) & 255)
        )
        sizes_out = data.draw(
            st.lists(st.integers(0, 64), min_size=(scalars >> 8) & 255, max_size=(scalars >> 8) & 255)
        )
    given_bytes = [bytes([1] * size) for size in given_sizes]
    result = skel.raw(client.handle, scalars, given_bytes, sizes_out)[0]
    assert result in (BAD_PARAMETER, UNSUPPORTED)


ODD = (0, 1, 2, 3, 5, 6, 127, 128, 4096, 2**31 - 1, 2**31, 2**32 - 1)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_values_in_any_order_are_refused_or_done(
    skel: Skel, ragged_artifact: Path, memories: tuple[Memory, Memory], data: st.DataObject
) -> None:
    """Well-formed calls with any numbers, on sessions that have come any part of the way."""
    client = Client(skel, skel.open(), ragged_artifact)
    try:
        ask_anything(client, memories, data)
    finally:
        assert skel.close(client.handle) == 0


def ask_anything(client: Client, memories: tuple[Memory, Memory], data: st.DataObject) -> None:
    skel, stage = client.skel, data.draw(st.integers(0, 4))
    if stage > 0:
        client.hello()
    if stage > 1:
        client.map(memories[0], writable=data.draw(st.integers(0, 1)))
        client.map(memories[1], writable=1)
    if stage > 2:
        client.attach(client.map_files())
    if stage > 3:
        client.open_engine(rotations_region=1)
        skel.done(client.handle, "set_text", client.text(), expert=0)
    for _ in range(data.draw(st.integers(1, 5))):
        method = data.draw(st.sampled_from(list(skel.interface.methods.values())))
        values = {
            name: data.draw(st.binary(max_size=size) if size > 8 else st.sampled_from((*ODD, memories[0].fd)))
            for name, size in method.fields_in
            if name != "abi"
        }
        buffers = [bytes(b.element_bytes * data.draw(st.integers(1, 16))) for b in method.given]
        answer = skel.ask(client.handle, method.name, *buffers, **values)
        assert (answer.kind == 0) == (answer.said == "")
