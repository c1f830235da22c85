"""``index.bin`` in Python: a pure function of the manifest, and no byte of it can change unnoticed."""

from __future__ import annotations

import contextlib
import copy
import json
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdc.artifact import records
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.index_read import parse_index
from hvdc.artifact.index_write import build_index, seal
from hvdc.artifact.manifest import INDEX_NAME, parse_manifest
from tests.artifacts import Spec, make
from tests.index_edit import IndexEdit
from tests.malformed.make import CORPUS

INDEX = (CORPUS / "base-decoder" / INDEX_NAME).read_bytes()


def refused(data: bytes) -> bool:
    """Whether the parser refuses; any other exception than ArtifactError fails the test."""
    try:
        parse_index(data)
    except ArtifactError:
        return True
    return False


@pytest.mark.parametrize(
    "spec",
    [
        Spec(),
        Spec(layers=1, rank=0, width=48, heads=2),
        Spec(calibrated=True),
        Spec(decoder="onnx"),
        Spec(calibrated=True, decoder="qnn"),
    ],
    ids=["two experts", "one expert", "calibrated", "decoder", "compiled decoder"],
)
def test_an_index_is_a_pure_function_of_its_manifest(spec: Spec) -> None:
    manifest, _ = make(spec)
    text = manifest.to_json()
    data = build_index(manifest, text)
    assert data == build_index(parse_manifest(text, "manifest"), text)
    index = parse_index(data)
    assert [index.text(int(f["path"])) for f in index.files] == [f.path for f in manifest.files]
    assert [index.text(int(t["name"])) for t in index.tensors] == [t.name for _, t in manifest.tensors()]
    assert [int(t["offset"]) for t in index.tensors] == [t.offset for _, t in manifest.tensors()]
    assert IndexEdit.of(data).bytes() == data


def test_a_manifest_is_written_as_it_is_read() -> None:
    text = make(Spec(calibrated=True, decoder="aihub"))[0].to_json()
    assert parse_manifest(text, "manifest").to_json() == text


def test_a_flipped_bit_anywhere_is_refused() -> None:
    assert not refused(INDEX)
    for bit in range(8 * len(INDEX)):
        data = bytearray(INDEX)
        data[bit // 8] ^= 1 << bit % 8
        assert refused(bytes(data)), f"bit {bit % 8} of byte {bit // 8}"


def test_a_cut_at_any_byte_is_refused() -> None:
    assert all(refused(INDEX[:size]) for size in range(len(INDEX)))


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, len(INDEX) - 1), value=st.binary(min_size=1, max_size=16))
def test_no_damage_crashes_the_parser(at: int, value: bytes) -> None:
    data = bytearray(INDEX)
    data[at : at + len(value)] = value[: len(INDEX) - at]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused(seal(bytes(data)))


TREE = json.loads(make(Spec(layers=1, rank=2, linears=1, calibrated=True, decoder="qnn"))[0].to_json())
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 31, 128, 4096, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64, 10**400, 1e39, -1e-300, 0.5]),
    st.sampled_from(
        ["", "semantic", "detail", "int8", "row-major", "region", "../x", "schedule.head", "mse", "\u0000", "é"]
    ),
    st.sampled_from(["later", "qnn", "uint16", "next_cache.mid", "decoder.encodings.json"]),
    st.sampled_from([[], {}, [1, 1, 1], [1], [[]]]),
)


def _places(tree: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


@settings(max_examples=300, deadline=None)
@given(changes=st.lists(st.tuples(st.sampled_from(list(_places(TREE))), VALUES), min_size=1, max_size=2))
def test_no_manifest_crashes_a_reader(changes: list[tuple[tuple[str | int, ...], Any]]) -> None:
    """Any value anywhere: the manifest is refused, or gives an index, which is refused or accepted."""
    tree = copy.deepcopy(TREE)
    for path, value in changes:
        holder = tree
        with contextlib.suppress(KeyError, IndexError, TypeError):  # an earlier change took the place away
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = value
    text = json.dumps(tree).encode("ascii")
    try:
        parse_index(build_index(parse_manifest(text, "manifest"), text))
    except ArtifactError as error:
        assert error.where  # noqa: PT017 - that it was raised is not what is tested


def test_records_have_no_implicit_padding() -> None:
    for record in records.RECORDS:
        assert record.bytes == sum(f.dtype.itemsize * f.count for f in record.fields)
        assert all(record.offset(f.name) % f.dtype.itemsize == 0 for f in record.fields)
