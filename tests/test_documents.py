"""Links of documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path for place in (ROOT, ROOT / "docs", ROOT / "examples", ROOT / "tests") for path in
    (place.glob("*.md") if place == ROOT else place.rglob("*.md"))
)  # fmt: skip


def prose(path: Path) -> str:
    """Without blocks of code."""
    return re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*)$", prose(path), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        number = next(n for n in range(100) if (f"{name}-{n}" if n else name) not in found)
        found.add(f"{name}-{number}" if number else name)
    return found


def test_there_are_documents() -> None:
    assert {ROOT / "README.md", ROOT / "docs" / "CLI.md"} <= set(DOCUMENTS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_within_the_project_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = unquote(target).partition("#")
        path = (document.parent / place).resolve() if place else document
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), target
