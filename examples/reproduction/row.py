"""One figure that the paper's text states, beside what the plan says of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

from examples.rates.derive import Said

Kind = Literal["input", "follows", "prediction", "not reproducible"]
MEANING: dict[Kind, str] = {
    "input": "a rate of the plan, or how a size is counted, was taken from this figure; agreement says nothing",
    "follows": "arithmetic on the paper's own figures leads to it; agreement says that the paper is consistent, no "
    "more",
    "prediction": "the plan computes it from inputs among which it is not",
    "not reproducible": "the text lacks what it would take, or contradicts itself; what comes nearest stands there",
}
SHAPES = "shapes"
"""Source of what is added up from the sizes of the model's tensors."""
CLOSE = 0.02
"""A prediction that is off by no more counts as close."""
WHOLE = ("block", "")
"""Units of which there is no fraction: such a figure agrees or does not."""

Verdict = Literal["as printed", "close", "off"]


@dataclass(frozen=True)
class Row:
    """``stated`` stands in the sentence ``said`` just so; two numbers with – between them are a range, and one that is
    stated as ``at_most`` is one from 0. ``ours`` is None where nothing can be computed. ``source`` names the rate
    table, or what else ours is computed from."""

    what: str
    said: Said
    stated: str
    unit: str
    ours: float | None
    kind: Kind
    source: str
    why: str = ""
    at_most: bool = False

    def __post_init__(self) -> None:
        for number in self.stated.split("–"):
            self.said.number(number)
        if self.ours is None and self.kind != "not reproducible":
            raise ValueError(f"{self.what}: a row of kind {self.kind!r} has a value")
        if self.kind == "not reproducible" and not self.why:
            raise ValueError(f"{self.what}: what cannot be reproduced has a reason")

    @property
    def paper(self) -> tuple[float, float]:
        """The stated figure twice, or the ends of the range."""
        numbers = [self.said.number(number) for number in self.stated.split("–")]
        return 0.0 if self.at_most else numbers[0], numbers[-1]

    @property
    def digits(self) -> int:
        """After the point, as stated."""
        fraction = re.search(r"\.(\d+)$", self.stated)
        return len(fraction.group(1)) if fraction else 0

    def rounded(self, value: float) -> float:
        """To the digits that are stated, halves up, as people round."""
        return float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-self.digits), ROUND_HALF_UP))

    @property
    def off_by(self) -> float | None:
        """Ours against the figure, as a share of it; against the nearer end of a range, and 0 within."""
        if self.ours is None:
            return None
        low, high = self.paper
        nearest = min(max(self.ours, low), high)
        return (self.ours - nearest) / nearest if nearest else self.ours - nearest

    @property
    def verdict(self) -> Verdict | None:
        """Of a prediction, else None: equal in all digits that are stated, or within `CLOSE`, or neither."""
        if self.kind != "prediction" or self.ours is None or self.off_by is None:
            return None
        low, high = self.paper
        if low <= self.rounded(self.ours) <= high:
            return "as printed"
        return "close" if abs(self.off_by) <= CLOSE and self.unit not in WHOLE else "off"


def count(rows: Iterable[Row]) -> str:
    """What the rows amount to, in a sentence; only predictions can agree."""
    listed = list(rows)
    predicted = [row for row in listed if row.kind == "prediction"]
    verdicts = [row.verdict for row in predicted]
    sizes = sum(row.verdict == "as printed" and row.source == SHAPES for row in predicted)
    kinds = {kind: sum(row.kind == kind for row in listed) for kind in MEANING}
    return (
        f"{len(listed)} figures. {len(predicted)} are predictions: {verdicts.count('as printed')} come out as printed "
        f"({sizes} of them sizes that are added up from the model's shapes), "
        f"{verdicts.count('close')} more within {100 * CLOSE:.0f} %, {verdicts.count('off')} further off. The others "
        f"prove nothing and are not counted: {kinds['input']} inputs, {kinds['follows']} that follow from the paper's "
        f"own figures, {kinds['not reproducible']} that its text does not let one reproduce."
    )
