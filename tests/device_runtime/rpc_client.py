"""A client of the skel that tests ask with raw calls, and memory that it maps."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hvdc.artifact.manifest import INDEX_NAME
from hvdc.artifact.reader import open_artifact
from tests.device_runtime.rpc import (
    Answer,
    Skel,
)

GRID = {"frames": 1, "rows": 2, "columns": 3}
TOKENS = 6
USED_VTCM_BYTES = 64 << 10
"""Of VTCM: the most that a product of this model keeps there."""


class Memory:
    """A descriptor that the skel may map, closed with this."""

    def __init__(self, data: bytes) -> None:
        self.fd, self.bytes = os.memfd_create("hvdc-test"), len(data)
        os.truncate(self.fd, max(1, len(data)))
        os.pwrite(self.fd, data, 0)

    def __del__(self) -> None:
        os.close(self.fd)

    def read(self) -> bytes:
        return os.pread(self.fd, self.bytes, 0)


@dataclass
class Client:
    """Every step that comes before a block, each to be left out."""

    skel: Skel
    handle: int
    artifact: Path

    def __post_init__(self) -> None:
        self.index = (self.artifact / INDEX_NAME).read_bytes()
        with open_artifact(self.artifact) as opened:
            self.sha256 = opened.index.header["index_sha256"].tobytes()
            self.files = [(entry.path, entry.kind) for entry in opened.manifest.files]
            self.width = opened.manifest.geometry.width
            self.heads = opened.manifest.geometry.heads
            self.text_tokens = opened.manifest.geometry.text_tokens
        self.no_region = self.skel.interface.constants["no_region"]

    def hello(self) -> Answer:
        version = interface_version(self.skel)
        return self.skel.done(self.handle, "hello", version=version, index_sha256=self.sha256)

    def map(self, memory: Memory, writable: int = 0) -> int:
        answer = self.skel.done(self.handle, "map", fd=memory.fd, bytes=memory.bytes, writable=writable)
        region = answer.values["region"]
        assert isinstance(region, int)
        return region

    def map_files(self, kinds: tuple[str, ...] = ("region", "adapter", "schedule")) -> list[int]:
        """A region for each file."""
        return [
            self.map(Memory((self.artifact / path).read_bytes())) if kind in kinds else self.no_region
            for path, kind in self.files
        ]

    def attach(self, regions: list[int], index: bytes | None = None) -> Answer:
        return self.skel.ask(self.handle, "attach", index or self.index, np.array(regions, "<u4").tobytes())

    def rotations(self) -> int:
        return self.map(Memory(np.ones(TOKENS * self.width // self.heads, np.float32).tobytes()))

    def open_engine(self, **more: int) -> Answer:
        return self.skel.ask(self.handle, "open_engine", **{**GRID, "threads": 1, "vtcm_bytes": 1 << 16, **more})

    def to_engine(self) -> Client:
        self.hello()
        assert self.attach(self.map_files()).kind == 0
        opened = self.open_engine(rotations_region=self.rotations()).values
        assert (opened["tokens"], opened["vtcm_bytes"]) == (TOKENS, USED_VTCM_BYTES)
        return self

    def text(self) -> bytes:
        return np.ones(self.text_tokens * self.width, np.float32).tobytes()

    def hidden(self, extra: int = 0) -> Memory:
        return Memory(np.ones(TOKENS * self.width, np.float32).tobytes() + bytes(extra))


def interface_version(skel: Skel) -> bytes:
    return skel.interface.version.encode()
