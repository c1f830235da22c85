"""Progress of long work: what is done, how fast, how long to go. Stages report to it; the command line draws it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives progress, from several threads. Sizes are bytes of FP32 values processed."""

    def start(self, what: str, total_bytes: int, items: int) -> None:
        """A stage begins that will process ``total_bytes`` in ``items`` pieces."""

    def advance(self, done_bytes: int) -> None:
        """``done_bytes`` more were processed."""

    def item_done(self, label: str) -> None:
        """A piece (a file, a block) was finished."""

    def finish(self) -> None:
        """The stage ended, by success or not."""


class Silent:
    """Draws nothing."""

    def start(self, what: str, total_bytes: int, items: int) -> None:
        pass

    def advance(self, done_bytes: int) -> None:
        pass

    def item_done(self, label: str) -> None:
        pass

    def finish(self) -> None:
        pass
