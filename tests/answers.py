"""Stored answers of artifacts under test: taken apart, changed, and put back with every hash right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hvdc.artifact.answer_records import ANSWER, ANSWER_NAME, HEADER
from hvdc.artifact.reader import open_artifact
from hvdc.artifact.runtime import FOLDER, LIST_NAME

Edit = Callable[[bytearray], object]


def stored(root: Path) -> bytes:
    """``answer.bin`` of an artifact."""
    return (root / FOLDER / ANSWER_NAME).read_bytes()


def header_of(data: bytearray) -> np.ndarray:
    """The header, writable."""
    return np.frombuffer(data, HEADER.dtype, 1)


def table_of(data: bytearray) -> np.ndarray:
    """The records, writable."""
    return np.frombuffer(data, ANSWER.dtype, int(header_of(data)["answers"][0]), HEADER.bytes)


def sealed(data: bytes | bytearray) -> bytes:
    """With the right size and SHA-256 in the header, so that only other checks can object."""
    whole = bytearray(data)
    header_of(whole)["total_bytes"] = len(whole)
    header_of(whole)["sha256"] = 0
    header_of(whole)["sha256"][0] = np.frombuffer(hashlib.sha256(whole).digest(), np.uint8)
    return bytes(whole)


def put(root: Path, data: bytes) -> Path:
    """Give an artifact this answer, with size and hash in the list of its folder."""
    (root / FOLDER / ANSWER_NAME).write_bytes(data)
    listed = json.loads((root / FOLDER / LIST_NAME).read_text())
    listed["answer"] = {"name": ANSWER_NAME, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (root / FOLDER / LIST_NAME).write_text(json.dumps(listed))
    return root


def edited(root: Path, edit: Edit) -> Path:
    """Change an artifact's answer, and seal it."""
    data = bytearray(stored(root))
    edit(data)
    return put(root, sealed(data))


def owned(root: Path) -> Path:
    """Make the answer that an artifact had before its weights were edited its own: now it is a wrong one."""
    with open_artifact(root) as artifact:
        own = artifact.index.header["index_sha256"]

    def own_it(data: bytearray) -> None:
        header_of(data)["artifact_sha256"][0] = own

    return edited(root, own_it)
