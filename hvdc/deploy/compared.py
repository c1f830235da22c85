"""What ``hvdc_bench --answer`` reports, as sentences: results of blocks beside what they must be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WHAT_TO_DO = (
    "results of this engine on this device are wrong. Take the other engine alone (hvdc run --mode npu or gpu), update "
    "the device's system, deploy again with the newest hvdc; if it stays, report it with what `hvdc doctor` says"
)


@dataclass(frozen=True)
class Compared:
    """One block execution. ``relative``: RMS of the difference ÷ RMS of what the block changes, None where something
    is not finite. ``limit``: of that; None: no bit may differ."""

    block: int
    expert: str
    different: int
    relative: float | None
    limit: float | None
    right: bool

    def text(self) -> str:
        """How far it is off."""
        by = "numbers that are not finite" if self.relative is None else f"{self.relative:.1e} of what it changes"
        allowed = "no bit may differ" if self.limit is None else f"at most {self.limit:.0e} is allowed"
        return f"block {self.block} ({self.expert} expert) differs by {by}, where {allowed}"


def read_compared(report: dict[str, Any]) -> tuple[Compared, ...]:
    """The report's ``answers``; ``()`` where anything in them is not as the program writes it."""
    rows = report.get("answers")
    found = [_row(row) for row in rows] if isinstance(rows, list) else []
    known = tuple(row for row in found if row is not None)
    return known if len(known) == len(found) else ()


def _row(row: object) -> Compared | None:
    if not isinstance(row, dict):
        return None
    relative, limit, decides = row.get("relative"), row.get("limit"), row.get("decides")
    if not (_is_count(row.get("block")) and _is_count(row.get("different")) and decides in ("bits", "limit")):
        return None
    if not (relative is None or _is_share(relative)) or not _is_share(limit) or not isinstance(row.get("right"), bool):
        return None
    by_bits = decides == "bits"
    expert = str(row.get("expert"))[:40]
    return Compared(row["block"], expert, row["different"], relative, None if by_bits else limit, row["right"])


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def all_right(compared: Sequence[Compared]) -> bool:
    """Whether no result is wrong."""
    return all(each.right for each in compared)


def compared_text(compared: Sequence[Compared]) -> str:
    """What the comparison says, and what to do where a result is wrong."""
    wrong = [each for each in compared if not each.right]
    if wrong:
        return f"{'; '.join(each.text() for each in wrong)}: {WHAT_TO_DO}"
    if not any(each.different for each in compared):
        return "equal to the stored answer to the bit"
    off = max(each.relative or 0.0 for each in compared)
    limit = max(each.limit or 0.0 for each in compared)
    return f"off from the stored answer by {off:.1e} of what a block changes; up to {limit:.0e} is rounding"
