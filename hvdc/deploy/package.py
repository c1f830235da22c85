"""What goes onto a device: every file of a version with its hash, and how large ones are cut into pieces."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hvdc import __version__
from hvdc.artifact.codes import Code
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.manifest import INDEX_NAME, MANIFEST_NAME
from hvdc.artifact.reader import Artifact
from hvdc.artifact.runtime import FOLDER, Build, RuntimeFile
from hvdc.deploy.layout import ARTIFACT, QNN, is_inside
from hvdc.errors import UsageError
from hvdc.progress import Progress

CHUNK_BYTES = 64 << 20
"""A piece that is sent, and hashed on the device, at once: what a cut link costs at most."""
HASHES = 4
"""Files that are hashed at once."""
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Chunk:
    """A piece of a file."""

    offset: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Item:
    """A file of a version. ``path``: within the version's folder. ``chunks`` cover it in order."""

    path: str
    source: Path
    bytes: int
    sha256: str
    chunks: tuple[Chunk, ...]
    executable: bool = False


@dataclass(frozen=True)
class Package:
    """All files of a version; the small ones that are needed to ask the device come first. ``target``: of the programs
    for it. ``version``: a function of all paths and contents."""

    items: tuple[Item, ...]
    target: str
    model_sha256: str

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)

    @property
    def version(self) -> str:
        return hashlib.sha256(self.listing().encode()).hexdigest()[:16]

    def listing(self) -> str:
        """``files.txt``: hash, size and path of every file, as lines."""
        return "".join(f"{item.sha256} {item.bytes} {item.path}\n" for item in self.items)

    def pieces(self) -> str:
        """``pieces.txt``: hash, size, offset and path of every piece of the files that have several, as lines."""
        return "".join(
            f"{chunk.sha256} {chunk.bytes} {chunk.offset} {item.path}\n"
            for item in self.items if len(item.chunks) > 1 for chunk in item.chunks
        )  # fmt: skip

    def facts(self) -> dict[str, object]:
        """What ``deployed.json`` says of it."""
        return {
            "format": 1, "hvdc": __version__, "target": self.target, "model_sha256": self.model_sha256,
            "version": self.version, "bytes": self.bytes,
        }  # fmt: skip


def make_package(
    artifact: Artifact, builds: Iterable[Build], libraries: Iterable[Path], progress: Progress, *,
    chunk_bytes: int = CHUNK_BYTES, answer: RuntimeFile | None = None,
) -> Package:  # fmt: skip
    """Hash every file, and compare it with what the artifact says of it.

    ``builds``: whose programs go along; ``libraries``: of a QAIRT runtime; ``answer``: what these programs are tried
    with. Raises ArtifactError DATA_HASH, IO.
    """
    builds, manifest = tuple(builds), artifact.manifest
    wanted: list[tuple[str, Path, str | None, bool]] = []
    for build in builds:
        for program in build.programs:
            path = f"{FOLDER}/{program.name}"
            wanted.append((f"{ARTIFACT}/{path}", artifact.path / path, program.sha256, True))
    if answer is not None:
        path = f"{FOLDER}/{answer.name}"
        wanted.append((f"{ARTIFACT}/{path}", artifact.path / path, answer.sha256, False))
    # These two were compared with each other when the artifact was opened.
    wanted += [(f"{ARTIFACT}/{name}", artifact.path / name, None, False) for name in (INDEX_NAME, MANIFEST_NAME)]
    wanted += [(f"{QNN}/{library.name}", library, None, False) for library in libraries]
    wanted += [(f"{ARTIFACT}/{file.path}", artifact.path / file.path, file.sha256, False) for file in manifest.files]
    for path, source, _, _ in wanted:
        if not is_inside(path):
            raise UsageError("a file has a name that is not put onto a device", where=ascii(str(source)),
                             expected="letters, digits, '.', '_' and '-'", fix="rename it")  # fmt: skip
    total = sum(source.stat().st_size for _, source, _, _ in wanted)

    def hashed(each: tuple[str, Path, str | None, bool]) -> Item:
        return _item(*each, chunk_bytes, progress)

    progress.start("checking", total, len(wanted))
    pool = ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), HASHES), thread_name_prefix="hash")
    try:
        items = tuple(pool.map(hashed, wanted))
    finally:
        pool.shutdown(cancel_futures=True)  # a file that is being read is read to its end
        progress.finish()
    target = next((build.target for build in builds if build.target != "hexagon"), "")
    return Package(items, target, manifest.model_sha256)


def _item(
    path: str, source: Path, expected: str | None, executable: bool, chunk_bytes: int, progress: Progress
) -> Item:
    whole, pieces, size = hashlib.sha256(), [hashlib.sha256()], 0
    in_pieces = False
    try:
        with source.open("rb") as file:
            in_pieces = os.fstat(file.fileno()).st_size > chunk_bytes
            while data := file.read(min(_READ_BYTES, chunk_bytes - size % chunk_bytes)):
                if size and size % chunk_bytes == 0:
                    pieces.append(hashlib.sha256())
                pieces[-1].update(data)
                if in_pieces:  # else the first piece is the whole
                    whole.update(data)
                size += len(data)
                progress.advance(len(data))
    except OSError as error:
        raise ArtifactError(Code.IO, where=str(source), found=error.strerror or str(error)) from error
    digest = whole.hexdigest() if in_pieces else pieces[0].hexdigest()
    if expected is not None and digest != expected:
        raise ArtifactError(
            Code.DATA_HASH, where=str(source), expected=expected, found=digest,
            fix="the file was damaged or edited: copy it again, or compile again",
        )  # fmt: skip
    chunks = tuple(
        Chunk(i * chunk_bytes, min(chunk_bytes, size - i * chunk_bytes), piece.hexdigest())
        for i, piece in enumerate(pieces)
    )
    progress.item_done(source.name)
    return Item(path, source, size, digest, chunks, executable)
