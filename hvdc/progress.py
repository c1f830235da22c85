"""Progress of long work: what is done, how fast, how long to go. Stages report to it; the command line draws it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives progress, from several threads. Sizes are in a stage's unit: bytes of FP32 values, or what it names."""

    def start(self, what: str, total: int, items: int, *, unit: str = "bytes") -> None:
        """A stage begins that will process ``total`` units in ``items`` pieces."""

    def advance(self, done: int) -> None:
        """``done`` more units were processed."""

    def skip(self, units: int) -> None:
        """``units`` of the total were done before the stage began: they are neither to do nor speed."""

    def item_done(self, label: str) -> None:
        """A piece (a file, a block) was finished."""

    def finish(self) -> None:
        """The stage ended, by success or not."""


class Silent:
    """Draws nothing."""

    def start(self, what: str, total: int, items: int, *, unit: str = "bytes") -> None:
        pass

    def advance(self, done: int) -> None:
        pass

    def skip(self, units: int) -> None:
        pass

    def item_done(self, label: str) -> None:
        pass

    def finish(self) -> None:
        pass
