"""A finished decoder on its way into an artifact: the manifest's entry, and its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvdc.artifact.decoder import Decoder
from hvdc.files import file_sha256

PREFIX = "decoder."
ENCODINGS, BINARY = f"{PREFIX}encodings", f"{PREFIX}binary"


@dataclass(frozen=True)
class DecoderParts:
    """``files`` by the names of their tensors, in the entry's order, and the ``hashes`` (SHA-256) that they had when
    they were made: whoever copies one compares."""

    entry: Decoder
    files: Mapping[str, Path]
    hashes: Mapping[str, str]

    def sizes(self) -> dict[str, tuple[str, int]]:
        """Of each tensor the path in an artifact, and the bytes."""
        return {name: (f"decoder/{file_name(name)}", path.stat().st_size) for name, path in self.files.items()}

    def sha256(self) -> str:
        """Identity, for `--resume`."""
        facts = [self.entry.model_dump(mode="json"), dict(self.hashes)]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def parts_in(entry: Decoder, folder: Path) -> DecoderParts:
    """The decoder whose files lie in a folder, as they are now. Raises OSError where one is missing."""
    files = files_in(entry, folder)
    return DecoderParts(entry, files, {name: file_sha256(path) for name, path in files.items()})


def files_in(entry: Decoder, folder: Path) -> dict[str, Path]:
    """Where the files of a decoder lie in a folder, by their tensors; nothing is read."""
    return {name: folder / file_name(name) for name in entry.tensors()}


def binary_of(graph: str) -> str:
    """The tensor of a binary that holds one graph alone."""
    return f"{PREFIX}{graph}.binary"


def file_name(tensor: str) -> str:
    """Of a tensor's file: binaries end in ``.bin``, encodings in ``.json``, and the rest are ONNX models."""
    name = tensor.removeprefix(PREFIX)
    if tensor == BINARY:
        return f"{name}.bin"
    if tensor == ENCODINGS:
        return f"{name}.json"
    return f"{name.removesuffix('.binary')}.bin" if name.endswith(".binary") else f"{name}.onnx"
