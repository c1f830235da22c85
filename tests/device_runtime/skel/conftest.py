"""The skel as a program, sessions of it, and memory that its callers pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.device_runtime.rpc import Skel
from tests.device_runtime.rpc_client import Client, Memory


@pytest.fixture(scope="module")
def skel(programs: dict[str, Path]) -> Iterator[Skel]:
    with Skel(programs["hvdc_dsp"]) as running:
        yield running


@pytest.fixture
def handle(skel: Skel) -> Iterator[int]:
    opened = skel.open()
    yield opened
    skel.close(opened)


@pytest.fixture
def client(skel: Skel, handle: int, ragged_artifact: Path) -> Client:
    return Client(skel, handle, ragged_artifact)


@pytest.fixture
def memories(skel: Skel, ragged_artifact: Path) -> tuple[Memory, Memory]:
    """A hidden state, and something that serves as rotations."""
    return Memory(bytes(1 << 16)), Memory(np.ones(1 << 14, np.float32).tobytes())
