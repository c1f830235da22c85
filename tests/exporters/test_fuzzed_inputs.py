"""Whatever the bytes of a checkpoint, what comes of it is a checkpoint or an error that says what is wrong."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from exporters.checkpoint import open_checkpoint
from exporters.errors import CheckpointError
from tests.exporters.models import (
    one_expert,
    write_safetensors,
)

_FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)


def _only_checkpoint_errors(path: Path) -> None:
    with contextlib.suppress(CheckpointError):
        open_checkpoint(path).close()


@_FUZZ
@given(st.binary(max_size=200))
@example(b"\x02\x00\x00\x00\x00\x00\x00\x00{}")
@example(b"PK\x03\x04")
@example(b"\x80\x02.")
def test_random_bytes(tmp_path, data):
    (tmp_path / "w").write_bytes(data)
    _only_checkpoint_errors(tmp_path / "w")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
_entries = st.dictionaries(
    st.sampled_from(["a", "blocks.0.self_attn.q.weight", "patch_embedding.weight", "__metadata__"]),
    _json
    | st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "BF16", "F8_E4M3", "I64", "Q4"]) | _json,
            "shape": st.lists(st.integers(-1, 5) | st.just(2**63), max_size=5) | _json,
            "data_offsets": st.lists(st.integers(-1, 100), min_size=2, max_size=2) | _json,
        }
    ),
    max_size=3,
)


@_FUZZ
@given(_entries, st.binary(max_size=64))
def test_random_headers(tmp_path, header, data):
    write_safetensors(tmp_path / "w", json.dumps(header).encode(), data)
    _only_checkpoint_errors(tmp_path / "w")


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    from safetensors.numpy import save

    geometry = one_expert()
    assert geometry.layers == 2
    keys = {"blocks.0.self_attn.q.weight": np.ones((2, 2), np.float32), "head.head.bias": np.ones(3, np.float16)}
    return save(keys)


@_FUZZ
@given(data=st.data())
def test_truncations_and_flipped_bytes(tmp_path, small_file, data):
    content = bytearray(small_file)
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "w").write_bytes(content[: data.draw(st.integers(0, len(content)))])
    _only_checkpoint_errors(tmp_path / "w")


@settings(_FUZZ, max_examples=60)
@given(data=st.data())
def test_damaged_torch_files(tmp_path, data):
    torch.save({"blocks.0.self_attn.q.weight": torch.ones(2, 2)}, tmp_path / "w")
    content = bytearray((tmp_path / "w").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "w").write_bytes(content)
    _only_checkpoint_errors(tmp_path / "w")
