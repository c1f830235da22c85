"""The one error type of `exporters`: a checkpoint that cannot be used, and what to do about it."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint, adapter or schedule that hvdc refuses.

    Every field is a finished phrase for a person:

    - ``what``: what is wrong, in one sentence without the path.
    - ``where``: file, and tensor or byte offset when known.
    - ``expected`` / ``found``: the numbers or names that disagree, or ``""``.
    - ``fix``: what to do next, in the imperative.
    """

    def __init__(self, what: str, *, where: str = "", expected: str = "", found: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.expected = expected
        self.found = found
        self.fix = fix

    def __str__(self) -> str:
        parts = [self.what]
        if self.where:
            parts.append(f"where: {self.where}")
        if self.expected:
            parts.append(f"expected: {self.expected}")
        if self.found:
            parts.append(f"found: {self.found}")
        if self.fix:
            parts.append(f"fix: {self.fix}")
        return "\n".join(parts)
