"""Errors for people and exit statuses for scripts. See docs/CLI.md, "Exit statuses"."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit statuses of every command."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    BAD_CHECKPOINT = 3
    BAD_ARTIFACT = 4
    DEVICE = 5
    DIFFERENT = 10
    INTERRUPTED = 130


class HvdcError(Exception):
    """What is wrong, where, what was expected and found, and what to do next: each a finished phrase, or ``""``."""

    exit_status: Exit = Exit.FAILURE

    def __init__(self, what: str, *, where: str = "", expected: str = "", found: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.expected = expected
        self.found = found
        self.fix = fix

    def details(self) -> dict[str, str]:
        """The fields that say something, in reading order."""
        fields = {"where": self.where, "expected": self.expected, "found": self.found, "fix": self.fix}
        return {name: value for name, value in fields.items() if value}

    def __str__(self) -> str:
        return "\n".join([self.what, *(f"{name}: {value}" for name, value in self.details().items())])


class StoppedError(HvdcError):
    """Work that was stopped by Ctrl-C or SIGTERM and can be resumed."""

    exit_status = Exit.INTERRUPTED


class UsageError(HvdcError):
    """Arguments that cannot be carried out."""

    exit_status = Exit.USAGE
