"""adb, and the phones that it sees."""

from __future__ import annotations

from collections.abc import Iterator

from hvdc.doctor.check import Check, Probe


def probes() -> list[Probe]:
    return [Probe("adb", "hvdc deploy, and bench, probe and run on a phone", _adb)]


def _adb() -> Iterator[Check]:
    yield from ()
