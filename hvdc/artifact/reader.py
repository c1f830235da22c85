"""An artifact opened for reading: every cheap check made, tensors by name.

`open_artifact` makes the checks of the C reader in the C reader's order (docs/FORMAT.md, "Order of checks"), then those
that need the manifest. `hvdc.artifact.validate` makes the deep ones.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdc.artifact import records
from hvdc.artifact.codes import Code
from hvdc.artifact.directory import Directory
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.index_read import parse_index
from hvdc.artifact.index_tables import Index
from hvdc.artifact.index_write import build_index
from hvdc.artifact.manifest import (
    INDEX_NAME,
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    Manifest,
    TensorEntry,
    parse_manifest,
)
from hvdc.artifact.runtime import FOLDER as RUNTIME_FOLDER
from hvdc.errors import UsageError
from layouts import grid
from layouts.order import BY_NAME

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name).newbyteorder("<") for name in (dtype.name.lower() for dtype in records.DType)
}
"""A manifest's dtype -> numpy's, little-endian."""

PARTIAL_SUFFIX = ".partial"
"""What the name of an artifact ends with while it is being built."""

_CHUNK = 1 << 20


class Artifact:
    """An artifact whose layout was checked. Made by `open_artifact`; use it as a context manager.

    Arrays that it hands out are read-only and stay valid after `close`. Methods may be called from several threads.
    A name that is no tensor raises UsageError.

    The files must not change while an array is in use: they are mapped, and a file cut short under a mapping raises
    SIGBUS, which ends the process. `read` does not map.
    """

    def __init__(
        self, directory: Directory, index: Index, manifest: Manifest, manifest_bytes: bytes, fds: tuple[int, ...]
    ) -> None:
        self.path = directory.path
        self.index = index
        self.manifest = manifest
        self.manifest_bytes = manifest_bytes
        self._directory = directory
        self._fds = fds
        self._maps: dict[int, npt.NDArray[np.uint8]] = {}
        self._entries = {
            tensor.name: (file_index, tensor)
            for file_index, file in enumerate(manifest.files)
            for tensor in file.tensors
        }
        self._closed = False

    def __enter__(self) -> Artifact:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptors back. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._maps.clear()  # a map goes with the last array that views it
            for fd in self._fds:
                os.close(fd)
            self._directory.close()

    def __iter__(self) -> Iterator[str]:
        """Names of the tensors, in id order."""
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def entry(self, name: str) -> TensorEntry:
        """The manifest's description of a tensor."""
        return self._entry(name)[1]

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The stored bytes of a tensor, padding included: uint8 ``[bytes]``, mapped from the file."""
        file, entry = self._entry(name)
        return self.file_bytes(file)[entry.offset : entry.offset + entry.bytes]

    def stored(self, name: str) -> npt.NDArray[Any]:
        """The stored elements in their dtype and stored order: flat if tiled, else of the padded shape."""
        entry = self.entry(name)
        flat = self.raw(name).view(DTYPES[entry.dtype])
        return flat if entry.tile_order != "row-major" else flat.reshape(entry.padded_shape)

    def tensor(self, name: str) -> npt.NDArray[Any]:
        """A tensor as the model has it: its dtype and logical shape, de-tiled, padding cut off.

        Tiled tensors are copied, others are views of the mapped file.
        """
        entry, data = self.entry(name), self.stored(name)
        if entry.tile_order == "row-major":
            return data[tuple(slice(size) for size in entry.shape)]
        out = grid.unpack(self.tile_grid(name), data)
        out.flags.writeable = False
        return out

    def scale(self, name: str) -> npt.NDArray[np.float32]:
        """The FP32 scales ``[n]`` of an INT8 tensor's output columns."""
        entry = self.entry(name)
        if entry.scale is None:
            raise UsageError(f"the tensor {name!r} is {entry.dtype}, which has no scale", where=str(self.path))
        return self.tensor(entry.scale)

    def dequantized(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor as float32 of its logical shape; for INT8 ``q · s``, ``s`` along the first axis. A new array."""
        data = self.tensor(name).astype(np.float32)
        if self.entry(name).scale is not None:
            data *= self.scale(name).reshape(-1, *[1] * (data.ndim - 1))
        return data

    def opaque(self, name: str) -> bytes:
        """A decoder's file, exactly as others wrote it and read it, compared with its SHA-256 on every call.

        A context binary holds no checksum of its own, and a driver believes it: these bytes are read, hashed and
        returned, and none is read again. Raises ArtifactError DATA_HASH, UsageError for a tensor that is no such file.
        """
        file, entry = self._entry(name)
        if entry.kind != "decoder":
            raise UsageError(f"the tensor {name!r} is of kind {entry.kind}, not a decoder's file", where=str(self.path))
        data = self.read(file, entry.offset, entry.bytes).tobytes()
        expected, digest = self.manifest.files[file].sha256, hashlib.sha256(data).hexdigest()
        if digest != expected:
            raise ArtifactError(
                Code.DATA_HASH,
                where=self.where(file),
                expected=expected,
                found=digest,
                fix="the file was damaged or edited: copy it again, or compile again",
            )
        return data

    def tile_grid(self, name: str) -> grid.TileGrid:
        """The tile grid of a tiled tensor. Raises UsageError for a row-major one."""
        entry = self.entry(name)
        if entry.tile_order == "row-major":
            raise UsageError(
                f"the tensor {name!r} is row-major: it has no tiles",
                where=str(self.path),
                fix="hvdc inspect --tensors '*' shows which ones have",
            )
        n, k = entry.shape
        return grid.TileGrid(BY_NAME[entry.tile_order], n, k)

    def tile(self, name: str, n_tile: int, k_tile: int) -> npt.NDArray[Any]:
        """One tile as ``[rows (k), cols (n)]``. Raises IndexError outside the grid, UsageError if row-major."""
        return grid.tile(self.tile_grid(name), self.stored(name), n_tile, k_tile)

    def file_bytes(self, file_index: int) -> npt.NDArray[np.uint8]:
        """A whole data file, mapped: uint8 ``[bytes]``, read-only."""
        if self._closed:
            raise ValueError(f"the artifact {self.path} is closed")
        if file_index not in self._maps:
            view = mmap.mmap(self._fds[file_index], self.manifest.files[file_index].bytes, prot=mmap.PROT_READ)
            self._maps[file_index] = np.frombuffer(view, np.uint8)
        return self._maps[file_index]

    def read(self, file_index: int, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """Bytes of a data file, read and not mapped, so that going through a large file keeps little of it in memory.

        Raises ArtifactError IO, or FILE_SIZE if the file has become shorter since it was opened.
        """
        if self._closed:
            raise ValueError(f"the artifact {self.path} is closed")
        out, got = np.empty(size, np.uint8), 0
        where = self.where(file_index)
        while got < size:
            try:
                n = os.preadv(self._fds[file_index], [out.data[got:]], offset + got)
            except OSError as error:
                raise ArtifactError(Code.IO, where=where, found=str(error)) from error
            if n == 0:
                raise ArtifactError(Code.FILE_SIZE, where=where, expected=f"{offset + size}", found=f"{offset + got}")
            got += n
        return out

    def where(self, file_index: int) -> str:
        """A data file's place, for messages."""
        return self._directory.where(self.manifest.files[file_index].path)

    def _entry(self, name: str) -> tuple[int, TensorEntry]:
        try:
            return self._entries[name]
        except KeyError:
            raise UsageError(
                f"the artifact has no tensor {name!r}",
                where=str(self.path),
                fix=f"list them with `hvdc inspect {self.path} --tensors '*'`",
            ) from None


def open_artifact(path: str | os.PathLike[str]) -> Artifact:
    """Open an artifact and check all but its data. Raises ArtifactError with the first fault in documented order."""
    path = Path(path)
    try:
        _refuse_other_things(path)
    except OSError as error:
        raise ArtifactError(Code.IO, where=str(path), found=error.strerror or str(error)) from error
    directory = Directory(path)
    fds: list[int] = []
    try:
        index_bytes = _read_index(directory)
        index = parse_index(index_bytes)
        manifest_bytes = _read_manifest(directory, index)
        for record in index.files:
            _open_data(directory, index.text(int(record["path"])), int(record["bytes"]), fds)
        _refuse_extra_files(directory, index)
        manifest = parse_manifest(manifest_bytes, directory.where(MANIFEST_NAME))
        if build_index(manifest, manifest_bytes) != index_bytes:
            raise ArtifactError(
                Code.MANIFEST_INDEX,
                where=directory.where(INDEX_NAME),
                fix="one of the two was edited or comes from another artifact: compile again",
            )
    except BaseException:
        for fd in fds:
            os.close(fd)
        directory.close()
        raise
    return Artifact(directory, index, manifest, manifest_bytes, tuple(fds))


def _refuse_other_things(path: Path) -> None:
    """A sentence for each of the things that people give instead of an artifact."""
    what, fix = "", "give the directory NAME.hvdc that `hvdc compile -o` wrote"
    code, found = Code.MISSING_FILE, ""
    if not path.exists():
        what = "there is no such artifact"
    elif not path.is_dir():
        what, code, found = "an artifact is a directory, not a file", Code.IO, "a file"
        if path.name in (INDEX_NAME, MANIFEST_NAME):
            fix = f"give its directory: {path.parent}"
    elif path.resolve().name.endswith(PARTIAL_SUFFIX):
        what = "this is an artifact that was not finished"
        fix = "run the same `hvdc compile` again with --resume"
    elif not (path / INDEX_NAME).exists() and not (path / MANIFEST_NAME).exists():
        what = "this directory is not an artifact"
        found = f"neither {INDEX_NAME} nor {MANIFEST_NAME}"
    if what:
        raise ArtifactError(code, what=what, where=str(path), found=found, fix=fix)


def _read_all(fd: int, limit: int) -> bytes:
    parts, left = [], limit
    while left and (part := os.read(fd, min(left, _CHUNK))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _read_index(directory: Directory) -> bytes:
    fd, _ = directory.open(INDEX_NAME)
    try:
        return _read_all(fd, records.MAX_INDEX_BYTES + 1)  # one more byte is refused as too large
    except OSError as error:
        raise ArtifactError(Code.IO, where=directory.where(INDEX_NAME), found=str(error)) from error
    finally:
        os.close(fd)


def _read_manifest(directory: Directory, index: Index) -> bytes:
    """The manifest, whose hash index.bin holds; cut off after the largest size that a parser accepts."""
    fd, _ = directory.open(MANIFEST_NAME)
    digest, kept = hashlib.sha256(), bytearray()
    where = directory.where(MANIFEST_NAME)
    try:
        while part := os.read(fd, _CHUNK):
            digest.update(part)
            if len(kept) <= MAX_MANIFEST_BYTES:
                kept += part
    except OSError as error:
        raise ArtifactError(Code.IO, where=where, found=str(error)) from error
    finally:
        os.close(fd)
    expected = index.header["manifest_sha256"].tobytes()
    if digest.digest() != expected:
        raise ArtifactError(
            Code.MANIFEST_HASH, where=where, expected=f"SHA-256 {expected.hex()}", found=digest.hexdigest()
        )
    return bytes(kept)


def _open_data(directory: Directory, path: str, size: int, fds: list[int]) -> None:
    fd, found = directory.open(path)
    fds.append(fd)
    if found != size:
        raise ArtifactError(
            Code.FILE_SIZE,
            where=directory.where(path),
            expected=f"{size} bytes",
            found=f"{found} bytes",
            fix="the copy is incomplete or damaged: copy the whole directory again",
        )


def _refuse_extra_files(directory: Directory, index: Index) -> None:
    paths = [index.text(int(record["path"])) for record in index.files]
    known = {INDEX_NAME, MANIFEST_NAME, *paths, *(path.rpartition("/")[0] + "/" for path in paths)}
    for entry in directory.entries():
        runtime = entry.startswith(f"{RUNTIME_FOLDER}/") and f"{RUNTIME_FOLDER}/" not in known  # has its own list
        if entry not in known and not runtime:
            raise ArtifactError(
                Code.EXTRA_FILE, where=directory.where(entry), fix="move it out of the artifact's directory"
            )
