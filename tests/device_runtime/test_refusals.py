"""What the C reader refuses, and that Python refuses it with the same code."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hvdc.artifact import records
from hvdc.artifact.codes import Code
from hvdc.artifact.index_write import seal
from hvdc.artifact.manifest import INDEX_NAME, MANIFEST_NAME
from tests.artifacts import make_artifact
from tests.device_runtime.programs import Checker, python_deep, python_index
from tests.index_edit import with_fields
from tests.malformed.make import CORPUS, assemble
from tests.malformed.registry import BASE, SCHEDULE

INDEX = (CORPUS / "base-decoder" / INDEX_NAME).read_bytes()
ROWS = json.loads((CORPUS / "cases.json").read_text("utf-8"))


def test_every_malformed_artifact_is_refused_with_its_code(checker: Checker, tmp_path: Path) -> None:
    for row in ROWS:
        root = assemble(CORPUS, row, tmp_path / row["name"])
        assert (row["name"], checker.deep(root).name) == (row["name"], row["c"])


def test_a_shallow_opening_leaves_data_alone(checker: Checker, tmp_path: Path) -> None:
    for row in ROWS:
        if row["code"].startswith("DATA_"):
            assert checker.open(assemble(CORPUS, row, tmp_path / row["name"])) is Code.OK


def test_an_index_cut_at_any_byte_is_refused_alike(checker: Checker) -> None:
    for size in range(len(INDEX)):
        code = checker.index(INDEX[:size])
        assert code in (Code.INDEX_TOO_SHORT, Code.INDEX_SIZE)
        assert code is python_index(INDEX[:size])


def test_an_index_cut_at_any_byte_is_refused_even_when_sealed(checker: Checker) -> None:
    for size in range(records.HEADER.bytes, len(INDEX)):
        data = with_fields(INDEX[:size], records.HEADER, 0, {"total_bytes": size})
        code = checker.index(data)
        assert code is not Code.OK
        assert code is python_index(data)


def test_a_flipped_bit_anywhere_in_the_index_is_found(checker: Checker) -> None:
    assert checker.index(INDEX) is Code.OK
    for at in range(len(INDEX)):
        data = bytearray(INDEX)
        data[at] ^= 1 << (at * 5 % 8)
        assert checker.index(bytes(data)) is not Code.OK


def _sites(root: Path, rng: np.random.Generator) -> list[tuple[Path, int]]:
    """About every 200th byte of every file but the index, and each file's last one."""
    out = []
    for path in sorted(p for p in root.rglob("*") if p.is_file() and p.name != INDEX_NAME):
        size = path.stat().st_size
        out += [(path, int(at)) for at in {*rng.integers(0, size, size // 200), size - 1}]
    return out


def test_a_flipped_bit_anywhere_in_the_other_files_is_found_by_both(checker: Checker, tmp_path: Path) -> None:
    root, rng = make_artifact(tmp_path / "flipped.hvdc", BASE), np.random.default_rng(7)
    assert checker.deep(root) is Code.OK
    for path, at in _sites(root, rng):
        whole = path.read_bytes()
        flipped = whole[at] ^ (1 << int(rng.integers(8)))
        path.write_bytes(whole[:at] + bytes([flipped]) + whole[at + 1 :])
        code = checker.deep(root)
        assert code is (Code.MANIFEST_HASH if path.name == MANIFEST_NAME else Code.DATA_HASH)
        assert code is python_deep(root)
        path.write_bytes(whole)


def test_a_data_file_cut_anywhere_is_refused_alike(checker: Checker, tmp_path: Path) -> None:
    root = make_artifact(tmp_path / "cut.hvdc", BASE)
    path = root / SCHEDULE
    whole = path.read_bytes()
    for size in (0, 1, 127, 128, 2303, 2304, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert checker.open(root) is Code.FILE_SIZE
        assert python_deep(root) is Code.FILE_SIZE


@pytest.mark.parametrize("path", [INDEX_NAME, MANIFEST_NAME, SCHEDULE, "schedule"])
def test_links_are_not_followed(checker: Checker, tmp_path: Path, path: str) -> None:
    root = make_artifact(tmp_path / "linked.hvdc", BASE)
    (root / path).rename(tmp_path / "elsewhere")
    (root / path).symlink_to(tmp_path / "elsewhere")
    assert checker.open(root) is Code.IO
    assert python_deep(root) is Code.IO


def _link(path: Path) -> None:
    path.symlink_to(INDEX_NAME)


@pytest.mark.parametrize(
    "make_entry", [Path.touch, Path.mkdir, os.mkfifo, _link], ids=["file", "folder", "FIFO", "link"]
)
@pytest.mark.parametrize("path", ["x", ".hidden", "schedule/x", f"schedule/{INDEX_NAME}", "sched", "\x01" + 254 * "x"])
def test_nothing_else_may_lie_in_an_artifact(
    checker: Checker, tmp_path: Path, make_entry: Callable[[Path], None], path: str
) -> None:
    root = make_artifact(tmp_path / "extra.hvdc", BASE)
    make_entry(root / path)
    assert checker.open(root) is Code.EXTRA_FILE
    assert python_deep(root) is Code.EXTRA_FILE


def test_an_extra_file_comes_before_the_manifests_contents(checker: Checker, tmp_path: Path) -> None:
    row = next(row for row in ROWS if row["name"] == "manifest-cut-short")
    root = assemble(CORPUS, row, tmp_path / "extra.hvdc")
    (root / "x").touch()
    assert checker.open(root) is Code.EXTRA_FILE
    assert python_deep(root) is Code.EXTRA_FILE


@pytest.mark.parametrize("path", [INDEX_NAME, SCHEDULE])
def test_a_fifo_does_not_block(checker: Checker, tmp_path: Path, path: str) -> None:
    root = make_artifact(tmp_path / "fifo.hvdc", BASE)
    (root / path).unlink()
    os.mkfifo(root / path)
    assert checker.open(root) is Code.IO
    assert python_deep(root) is Code.IO


def test_sha256_is_the_standard_one_at_every_length(checker: Checker) -> None:
    data = bytes(np.random.default_rng(0).integers(0, 256, 1000, np.uint8))
    for size in (*range(200), 1000):
        assert checker.sha256(data[:size]) == hashlib.sha256(data[:size]).hexdigest()


NUMBERS = st.sampled_from(
    [0, 1, 2, 7, 8, 31, 32, 33, 127, 128, 4095, 4096, 2**31, 2**32 - 1, 2**63, 2**64 - 128, 2**64 - 1]
)
PATCH = st.tuples(
    st.integers(0, len(INDEX) // 4 - 2),
    st.one_of(
        NUMBERS.map(lambda v: (v % 2**32).to_bytes(4, "little")),
        NUMBERS.map(lambda v: v.to_bytes(8, "little")),
        st.integers(0, len(INDEX) // 4 - 1).map(lambda at: INDEX[4 * at : 4 * at + 4]),  # a value from elsewhere
        st.binary(min_size=1, max_size=8),
    ),
)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(patches=st.lists(PATCH, min_size=1, max_size=4))
def test_both_readers_agree_on_any_index(checker: Checker, patches: list[tuple[int, bytes]]) -> None:
    """Fields, counts and references at random, sealed again so that the checksum doesn't hide them."""
    data = bytearray(INDEX)
    for word, value in patches:
        data[4 * word : 4 * word + len(value)] = value[: len(INDEX) - 4 * word]
    sealed = seal(bytes(data))
    assert checker.index(sealed) is python_index(sealed)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, len(INDEX)), size=st.integers(-64, 64), insert=st.binary(max_size=64))
def test_both_readers_agree_on_cuts_and_insertions(checker: Checker, start: int, size: int, insert: bytes) -> None:
    data = INDEX[:start] + insert + INDEX[max(start + size, 0) :]
    if len(data) >= records.HEADER.bytes:
        data = with_fields(data, records.HEADER, 0, {"total_bytes": len(data)})
    assert checker.index(data) is python_index(data)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_both_readers_agree_on_anything(checker: Checker, data: bytes) -> None:
    whole = records.MAGIC + b"\x01\x00" + data
    assert checker.index(whole) is python_index(whole)
    assert checker.index(data) is python_index(data)
