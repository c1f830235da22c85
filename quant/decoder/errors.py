"""What is wrong with a graph, ranges or encodings that a caller gave."""

from __future__ import annotations


class DecoderQuantError(ValueError):
    """``what`` is wrong; ``where`` is the graph, node or tensor; ``fix`` is what to do."""

    def __init__(self, what: str, *, where: str, fix: str = "") -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(f"{what} ({where})" + (f": {fix}" if fix else ""))
