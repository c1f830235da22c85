"""What a file is, from its first bytes. The name and the suffix are never consulted."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from exporters.errors import CheckpointError

Kind = Literal["safetensors", "zip", "pickle", "json"]
"""The kinds that can lead to weights: ``zip`` and ``pickle`` are torch's new and old file formats."""

UNKNOWN_FILE = "this is neither a safetensors file nor a PyTorch checkpoint"

_SNIFF_BYTES = 4096

_DOWNLOAD_AGAIN = "download the file again and compare its size with the one that its host shows"

# (first bytes, what the file is, what to do)
_FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (
        b"version https://git-lfs",
        "this is a Git-LFS pointer, a small text that stands for the weights, not the weights",
        "run `git lfs pull` in the repository it came from, or download the file itself",
    ),
    (
        b"GGUF",
        "this is a GGUF file: its weights are already quantised for llama.cpp-style runtimes",
        "give the safetensors checkpoint that the GGUF file was made from",
    ),
    (b"\x1f\x8b", "this is a gzip archive", "unpack it and give the checkpoint inside"),
    (b"\xfd7zXZ", "this is an xz archive", "unpack it and give the checkpoint inside"),
    (b"7z\xbc\xaf", "this is a 7z archive", "unpack it and give the checkpoint inside"),
    (b"\x28\xb5\x2f\xfd", "this is a zstandard archive", "unpack it and give the checkpoint inside"),
    (b"Rar!", "this is a RAR archive", "unpack it and give the checkpoint inside"),
    (b"\x93NUMPY", "this is one NumPy array, not a checkpoint", "give the model's safetensors file"),
    (b"\x89HDF", "this is an HDF5 file, not a checkpoint of this model", "give the model's safetensors file"),
)
_PAGE_STARTS = (b"<!doctype", b"<html", b"<head", b"<?xml", b"<body", b"<script")


def kind_of(path: Path) -> Kind:
    """What ``path`` holds.

    Raises:
        CheckpointError: the file is empty, unreadable, or something that holds no checkpoint; says what it is.
    """
    if not path.is_file():
        raise CheckpointError("this is not a regular file", where=str(path), fix="give a file or a folder of files")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_SNIFF_BYTES)
    except OSError as error:
        raise CheckpointError(
            f"the file cannot be read: {error.strerror or error}",
            where=str(path),
            fix="check path and permissions",
        ) from error
    where = str(path)
    if size == 0:
        raise CheckpointError("the file is empty", where=where, found="0 bytes", fix=_DOWNLOAD_AGAIN)
    # A safetensors file starts with its header's length, which can look like anything: test it before the rest.
    if head[8:9] == b"{":
        return "safetensors"
    for magic, what, fix in _FOREIGN:
        if head.startswith(magic):
            raise CheckpointError(what, where=where, found=f"{size:,} bytes", fix=fix)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith(_PAGE_STARTS):
        raise CheckpointError(
            "this is a web page saved under a checkpoint's name: the download link led to a page, not to the file",
            where=where,
            found=f"{size:,} bytes of HTML or XML",
            fix="open the link in a browser (it may ask for a login or a licence), then download the file itself",
        )
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "pickle"
    if text.startswith(b"{"):
        return "json"
    if head[257:262] == b"ustar":
        raise CheckpointError(
            "this is a tar archive",
            where=where,
            found=f"{size:,} bytes",
            fix="unpack it and give the checkpoint inside",
        )
    if not any(head):
        raise CheckpointError(
            "the file starts with zeros: space was reserved for a download that never arrived",
            where=where,
            found=f"{size:,} bytes, the first {len(head):,} all zero",
            fix=_DOWNLOAD_AGAIN,
        )
    raise CheckpointError(
        UNKNOWN_FILE,
        where=where,
        expected="a safetensors header, or a zip or pickle written by torch.save",
        found=f"{size:,} bytes that start with {head[:12]!r}",
        fix="give the model's .safetensors or .pth file; if this should be one, " + _DOWNLOAD_AGAIN,
    )
