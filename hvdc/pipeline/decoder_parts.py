"""A finished decoder on its way into an artifact: the manifest's entry, and its files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvdc.artifact.decoder import Decoder

PREFIX = "decoder."
ENCODINGS, BINARY = f"{PREFIX}encodings", f"{PREFIX}binary"
SUFFIX = {ENCODINGS: "json", BINARY: "bin"}
"""Of a file; those of all other tensors are ONNX models."""


@dataclass(frozen=True)
class DecoderParts:
    """``files`` by the names of their tensors, in the entry's order."""

    entry: Decoder
    files: Mapping[str, Path]

    def sizes(self) -> dict[str, tuple[str, int]]:
        """Of each tensor the path in an artifact, and the bytes."""
        return {name: (f"decoder/{file_name(name)}", path.stat().st_size) for name, path in self.files.items()}

    def sha256(self) -> str:
        """Identity, for `--resume`."""
        digest = hashlib.sha256(self.entry.model_dump_json().encode())
        for path in self.files.values():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()


def parts_in(entry: Decoder, folder: Path) -> DecoderParts:
    """The decoder whose files lie in a folder. Raises OSError where one is missing."""
    files = {name: folder / file_name(name) for name in entry.tensors()}
    for path in files.values():
        path.stat()
    return DecoderParts(entry, files)


def file_name(tensor: str) -> str:
    """Of a tensor's file."""
    return f"{tensor.removeprefix(PREFIX)}.{SUFFIX.get(tensor, 'onnx')}"
