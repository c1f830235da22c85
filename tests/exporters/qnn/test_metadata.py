"""What a binary says about itself, and files that are none."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from exporters.qnn import process
from exporters.qnn.available import Toolchain
from exporters.qnn.compile import Compiled
from exporters.qnn.errors import QnnError
from exporters.qnn.metadata import Metadata, read_metadata
from tests.exporters.qnn import build

SCALE = float(np.float32(8 / 255))


def test_a_binary_for_the_snapdragon_8_elite(causal: Compiled, backend: Toolchain) -> None:
    found = read_metadata(causal.path)
    assert (found.soc, found.arch) == (69, 79)
    assert found.build_id == backend.build_id
    assert found.core_api == backend.core_api
    assert found.blob_version.startswith("4.")
    [graph] = found.graphs
    assert (graph.vtcm_bytes, graph.optimization) == (8 << 20, 3)
    assert {t.name: (t.dtype, t.dims) for t in graph.inputs} == {n: ("ufixed8", s) for n, s in build.CAUSAL.items()}
    assert {t.name: t.dims for t in graph.outputs} == {"y": (1, 24, 2, 12, 12), "cache_out": (1, 16, 2, 12, 12)}
    assert {(t.scale, t.offset) for t in (*graph.inputs, *graph.outputs)} == {(SCALE, -128)}, "offset is -zero point"


def test_it_survives_json(causal: Compiled) -> None:
    assert Metadata.from_json(json.loads(json.dumps(causal.metadata.to_json()))) == causal.metadata


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: b"", "is empty"),
        (lambda data: data[:-1], "no QNN context binary, or it is damaged"),
        (lambda data: data[: len(data) // 2], "no QNN context binary, or it is damaged"),
        (lambda data: data[:8], "no QNN context binary, or it is damaged"),
        (lambda data: data + bytes(100), "no QNN context binary, or it is damaged"),
        (lambda data: bytes(len(data)), "no QNN context binary, or it is damaged"),
        (lambda data: np.random.default_rng(0).bytes(len(data)), "no QNN context binary, or it is damaged"),
        (lambda data: b"PK\x03\x04 something else", "no QNN context binary, or it is damaged"),
    ],
    ids=["empty", "one byte short", "half", "eight bytes", "longer", "zeros", "random", "another file"],
)
def test_a_file_that_is_no_binary(causal: Compiled, tmp_path: Path, change, said: str) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(change(causal.path.read_bytes()))
    with pytest.raises(QnnError, match=said) as caught:
        read_metadata(path)
    assert caught.value.where == str(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(QnnError, match="there is no such file"):
        read_metadata(tmp_path / "none.bin")


def test_a_header_full_of_damage_gives_an_error_or_a_description(causal: Compiled, tmp_path: Path) -> None:
    """The format has no checksum; the library that reads it may crash. That must never take the caller with it."""
    data, random = causal.path.read_bytes(), np.random.default_rng(3)
    for i in range(6):
        damaged = bytearray(data)
        for place in random.integers(0, 1224, 40):
            damaged[place] ^= 1 << int(random.integers(8))
        path = tmp_path / f"{i}.bin"
        path.write_bytes(damaged)
        with contextlib.suppress(QnnError):
            assert isinstance(read_metadata(path), Metadata)


def test_a_crash_of_the_library_is_an_error(causal: Compiled, watched) -> None:
    watched("metadata", lambda pid: os.kill(pid, signal.SIGSEGV))
    with pytest.raises(QnnError, match="library crashed while reading the metadata") as caught:
        read_metadata(causal.path)
    assert "SIGSEGV" in caught.value.found
    assert process.WORKER
