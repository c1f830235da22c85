"""What a device's target folder holds, as the device lists it. Nothing that it says is taken for more than a text."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from hvdc.deploy.layout import ARTIFACTS, MARKER_TEXT, NEW, PART, PARTS, VERSION, checked_name, is_inside
from hvdc.errors import UsageError

SIZE_LINE = re.compile(r"(\d{1,15}) (\S{1,400})")
_FILE_LINE = re.compile(r"([0-9a-f]{64}) (\d{1,15}) (\S{1,400})")
_PIECE_LINE = re.compile(r"([0-9a-f]{64}) (\d{1,15}) (\d{1,15}) (\S{1,400})")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Piece:
    """``bytes`` of a file of a version, from ``offset`` on."""

    path: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class Held:
    """A version on the device. ``files``: path -> SHA-256 and bytes, as its own list has them; ``pieces``: SHA-256 ->
    where one with these contents is, as its list of pieces has it."""

    name: str
    version: str
    is_current: bool
    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    deployed: dict[str, Any] = field(default_factory=dict)
    pieces: dict[str, Piece] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.files.values())

    def facts(self) -> dict[str, str]:
        """What `deployed.json` says, as texts; ``""`` for what it does not say."""
        names = {"deployed": "deployed", "model": "model_sha256", "hvdc": "hvdc", "target": "target"}
        texts = {name: self.deployed.get(key) for name, key in names.items()}
        return {
            n: "".join(c for c in t if c.isprintable())[:80] if isinstance(t, str) else "" for n, t in texts.items()
        }


@dataclass(frozen=True)
class Found:
    """``parts``: SHA-256 -> bytes of pieces that were verified; ``unverified``: of those that were not.
    ``unfinished``: path within ``NAME/VERSION.new`` -> bytes, by (name, version)."""

    is_ours: bool
    versions: tuple[Held, ...] = ()
    parts: dict[str, int] = field(default_factory=dict)
    unverified: dict[str, int] = field(default_factory=dict)
    unfinished: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)

    @property
    def unfinished_bytes(self) -> int:
        """Of deployments that were interrupted, which the same command goes on with."""
        files = sum(sum(sizes.values()) for sizes in self.unfinished.values())
        return files + sum(self.parts.values()) + sum(self.unverified.values())

    def where(self, sha256: str, size: int) -> tuple[Held, str] | None:
        """A version and a path in it with these contents."""
        for held in self.versions:
            for path, known in held.files.items():
                if known == (sha256, size):
                    return held, path
        return None

    def where_piece(self, sha256: str, size: int) -> tuple[Held, Piece] | None:
        """A version and a place in one of its files with these contents."""
        for held in self.versions:
            piece = held.pieces.get(sha256)
            if piece is not None and piece.bytes == size:
                return held, piece
        known = self.where(sha256, size)
        return None if known is None else (known[0], Piece(known[1], 0, size))


def parse_found(text: str) -> Found:
    """The answer of `Store.look`. Lines of another form, and names that are not ours, are passed over."""
    is_ours, name, version, sizes = False, "", "", False
    files: dict[tuple[str, str], dict[str, tuple[str, int]]] = {}
    deployed: dict[tuple[str, str], dict[str, Any]] = {}
    pieces: dict[tuple[str, str], dict[str, Piece]] = {}
    current: dict[str, str] = {}
    parts: dict[str, int] = {}
    unverified: dict[str, int] = {}
    unfinished: dict[tuple[str, str], dict[str, int]] = {}
    for raw in text.splitlines():
        line = raw.rstrip("\r")
        if line.startswith("marker "):
            is_ours = line == f"marker {MARKER_TEXT}"
        elif line.startswith("version "):
            name, version = _version_of(line.removeprefix("version "))
            if version:
                files[name, version] = {}
        elif line.startswith("deployed ") and version:
            with contextlib.suppress(ValueError, RecursionError):
                facts = json.loads(line.removeprefix("deployed "))
                deployed[name, version] = facts if isinstance(facts, dict) else {}
        elif line.startswith("current "):
            words = line.split(" ")
            if len(words) == 3 and VERSION.fullmatch(words[2]):
                current[words[1].split("/")[-2]] = words[2]
        elif line == "sizes":
            sizes = True
        elif sizes and (match := SIZE_LINE.fullmatch(line)):
            size, path = int(match[1]), match[2]
            digest = path.removeprefix(f"{PARTS}/").removesuffix(PART)
            if path.startswith(f"{PARTS}/") and _HASH.fullmatch(digest):
                (unverified if path.endswith(PART) else parts)[digest] = size
            elif path.startswith(f"{ARTIFACTS}/") and NEW in path:
                head, _, inside = path.partition(f"{NEW}/")
                its_name, its_version = _version_of(head)
                if its_version and is_inside(inside):
                    unfinished.setdefault((its_name, its_version), {})[inside] = size
        elif version and (match := _FILE_LINE.fullmatch(line)) and is_inside(match[3]):
            files[name, version][match[3]] = (match[1], int(match[2]))
        elif version and (match := _PIECE_LINE.fullmatch(line)) and is_inside(match[4]):
            piece = Piece(match[4], int(match[3]), int(match[2]))
            pieces.setdefault((name, version), {})[match[1]] = piece
    versions = tuple(
        Held(key[0], key[1], current.get(key[0]) == key[1], held, deployed.get(key, {}), pieces.get(key, {}))
        for key, held in files.items()
    )
    return Found(is_ours, versions, parts, unverified, unfinished)


def _version_of(path: str) -> tuple[str, str]:
    """Name and version of ``artifacts/NAME/VERSION``; two empty words for anything else."""
    words = path.split("/")
    if len(words) != 3 or words[0] != ARTIFACTS or not VERSION.fullmatch(words[2]):
        return "", ""
    with contextlib.suppress(UsageError):
        return checked_name(words[1]), words[2]
    return "", ""
