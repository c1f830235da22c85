"""How a case of the corpus is written down: a name, the code that readers answer, and the damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hvdc.artifact import records
from hvdc.artifact.codes import Code
from hvdc.artifact.index_write import build_index
from hvdc.artifact.manifest import INDEX_NAME, MANIFEST_NAME, TensorEntry
from tests.artifacts import Spec, edit_tensor, read_manifest
from tests.index_edit import IndexEdit, edited, with_fields

BASE = Spec(layers=1, width=32, ffn_width=40, rank=16, linears=1)
BASES = {
    "base": BASE,
    "base-calibrated": replace(BASE, calibrated=True),
    "base-decoder": replace(BASE, calibrated=True, decoder="qnn"),
    "base-binaries": replace(BASE, decoder="qnn"),
}
"""Folder of the corpus -> the artifact in it."""

REGION, ADAPTER, SCHEDULE = "regions/block-000.bin", "adapters/detail-000.bin", "schedule/tables.bin"
WEIGHT = "blocks.0.attn1.to_q.weight"
FACTOR = "blocks.0.attn1.to_q.lora_A.weight"
BIAS = "blocks.0.ffn.net.0.proj.bias"
ROPE = "schedule.rope_freqs_frame"
ADALN = "schedule.adaln"


NO_JSON = "C does not parse JSON: it knows the manifest by its hash, which is right here"
NEWER = "C skips what a newer minor version added; Python, which makes the index anew from the manifest, has to know it"


@dataclass(frozen=True)
class Case:
    """A way to damage an artifact, and the code that readers answer.

    ``only_python`` is the reason why C accepts what Python refuses; ``""`` where both answer the code.
    """

    name: str
    code: Code
    damage: Callable[[Path], None]
    only_python: str = ""
    base: str = "base"
    """What is damaged: a key of `BASES`."""

    @property
    def c(self) -> Code:
        """What C answers."""
        return Code.OK if self.only_python else self.code


CASES: list[Case] = []


def case(code: Code, base: str = "base") -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Register a case under its function's name; the function changes the artifact at the path that it gets."""

    def register(damage: Callable[[Path], None]) -> Callable[[Path], None]:
        name = damage.__name__.strip("_").replace("_", "-")
        CASES.append(Case(name, code, damage, base=base))
        return damage

    return register


def index_case(
    code: Code, name: str, change: Callable[[IndexEdit], object], only_python: str = "", base: str = "base"
) -> None:
    """Register a case that changes tables of the index only."""

    def damage(root: Path) -> None:
        with edited(root) as edit:
            change(edit)

    CASES.append(Case(name, code, damage, only_python, base))


def raw_case(code: Code, name: str, change: Callable[[bytes], bytes], base: str = "base") -> None:
    """Register a case that changes the bytes of the index."""

    def damage(root: Path) -> None:
        (root / INDEX_NAME).write_bytes(change((root / INDEX_NAME).read_bytes()))

    CASES.append(Case(name, code, damage, base=base))


def tensor_case(
    code: Code, name: str, tensor: str, change: Callable[[bytearray, TensorEntry], object], base: str = "base"
) -> None:
    """Register a case that changes stored bytes, with every hash made right again."""

    def damage(root: Path) -> None:
        def edit(part: bytearray, entry: TensorEntry) -> None:
            change(part, entry)

        edit_tensor(root, tensor, edit)

    CASES.append(Case(name, code, damage, base=base))


def manifest_case(code: Code, name: str, change: Callable[[bytes], bytes], base: str = "base") -> None:
    """Register a case that changes the manifest, with its hash in index.bin made right: only Python can object."""

    def damage(root: Path) -> None:
        text = change((root / MANIFEST_NAME).read_bytes())
        index = build_index(read_manifest(root), text)
        (root / MANIFEST_NAME).write_bytes(text)
        (root / INDEX_NAME).write_bytes(index)

    CASES.append(Case(name, code, damage, NO_JSON, base))


def put(part: bytearray, at: int, value: bytes) -> None:
    """Overwrite bytes in place."""
    at %= len(part)
    part[at : at + len(value)] = value


def setter(table: str, field: str, row: int | str, value: object) -> Callable[[IndexEdit], object]:
    """A change of one field of one record; a tensor's row may be its name."""

    def change(edit: IndexEdit) -> None:
        column = getattr(edit, table)[field]
        at = edit.id(row) if isinstance(row, str) else row
        column[at] = value(edit) if callable(value) else value

    return change


def section(row: int, **fields: int) -> Callable[[bytes], bytes]:
    """A change of an entry of the section table."""
    return lambda data: with_fields(data, records.SECTION, records.HEADER.bytes + row * records.SECTION.bytes, fields)


def header(**fields: int) -> Callable[[bytes], bytes]:
    """A change of the header."""
    return lambda data: with_fields(data, records.HEADER, 0, fields)


def both(*changes: Callable[[IndexEdit], object]) -> Callable[[IndexEdit], object]:
    """Several changes of one index."""
    return lambda edit: [change(edit) for change in changes]


def without(*names: str) -> Callable[[IndexEdit], object]:
    """The index without some of its sections or the feature bits."""
    return lambda edit: [setattr(edit, name, 0 if name == "features" else None) for name in names]


def replaced(old: str, new: str, count: int = -1) -> Callable[[bytes], bytes]:
    """A change of the manifest's text, in the first ``count`` places."""
    return lambda text: text.replace(old.encode(), new.encode(), count)
