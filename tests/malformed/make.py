"""Makes the corpus of damaged artifacts: ``python -m tests.malformed.make``. A test fails when it is stale.

``base/`` is a whole tiny artifact of version 1.0, ``base-calibrated/`` a calibrated one of 1.1, ``base-decoder/`` one
of 1.2 that is calibrated and has a decoder, ``base-binaries/`` one of 1.3 with a decoder. They were made once and are
kept, because readers must go on accepting them; ``python -m tests.malformed.make base`` replaces one, which only a
change of the format justifies. Every other folder holds the files that take the place of its base's; ``cases.json``
says which files are missing, and what readers answer after the deep checks. Where C accepts what Python refuses,
``only_python`` says why. Each case is named after the attack or accident.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.artifacts import make_artifact
from tests.malformed import binary_cases, calibration_cases, decoder_cases, file_cases, index_cases
from tests.malformed.registry import BASES, CASES

CORPUS = Path(__file__).resolve().parent
MODULES = (file_cases, index_cases, calibration_cases, decoder_cases, binary_cases)
"""Importing them fills `CASES`."""


def make(target: Path) -> None:
    """Write the corpus that follows from the bases in an existing folder into that folder."""
    bases = {name: files_of(target / name) for name in BASES}
    rows = []
    for case in CASES:
        base = bases[case.base]
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "artifact"
            shutil.copytree(target / case.base, root)
            case.damage(root)
            damaged = files_of(root)
        missing = sorted(set(base) - set(damaged))
        row = {"name": case.name, "code": case.code.name, "c": case.c.name, "missing": missing}
        row |= {"only_python": case.only_python} if case.only_python else {}
        rows.append(row | ({"base": case.base} if case.base != "base" else {}))
        for path, content in damaged.items():
            if base.get(path) != content:
                (target / case.name / path).parent.mkdir(parents=True, exist_ok=True)
                (target / case.name / path).write_bytes(content)
    lines = ",\n".join(json.dumps(row) for row in rows)
    (target / "cases.json").write_text(f"[\n{lines}\n]\n", "utf-8")


def files_of(root: Path) -> dict[str, bytes]:
    """Relative path -> bytes of every file below a folder, but for the corpus's own programs."""
    files = (p for p in sorted(root.rglob("*")) if p.is_file() and p.suffix not in (".py", ".pyc"))
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in files if p.name != ".gitattributes"}


def assemble(corpus: Path, row: dict[str, object], root: Path) -> Path:
    """Put a case of the corpus together in the new folder ``root``."""
    shutil.copytree(corpus / str(row.get("base", "base")), root)
    missing = row["missing"]
    assert isinstance(missing, list)
    for path in missing:
        (root / path).unlink()
        if not any((root / path).parent.iterdir()):
            (root / path).parent.rmdir()
    overlay = corpus / str(row["name"])
    if overlay.is_dir():
        shutil.copytree(overlay, root, dirs_exist_ok=True)
    return root


def main() -> None:
    """Replace the kept corpus."""
    kept = {"__pycache__", *BASES} - set(sys.argv[1:2])
    for path in CORPUS.iterdir():
        if path.is_dir() and path.name not in kept:
            shutil.rmtree(path)
    for name, spec in BASES.items():
        if not (CORPUS / name).exists():
            make_artifact(CORPUS / name, spec)
    make(CORPUS)
    print(f"{len(CASES)} cases")


if __name__ == "__main__":
    main()
