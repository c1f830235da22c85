"""What tests of `hvdc probe` ask and answer."""

from __future__ import annotations

from pathlib import Path

from tests.deploy.artifacts import script
from tests.measure.phones import FACTS, MIB


def words(tmp_path: Path) -> list[str]:
    return (tmp_path / "runtime" / "words").read_text().splitlines()


def answering(answer: str, status: int = 0, more: str = "") -> bytes:
    return script(f"cat <<'END'\n{answer}END\n{more}\nexit {status}")


AT_511 = next(i for i, fact in enumerate(FACTS) if fact == {"fact": "trying", "what": "region", "bytes": 511 * MIB}) + 1
