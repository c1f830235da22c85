"""What this machine, and the phones at it, have and lack for hvdc, as facts for people and for bug reports."""

from __future__ import annotations

from hvdc.doctor import compilers, engines, here, phones
from hvdc.doctor.check import Check as Check
from hvdc.doctor.check import Probe, ask_all
from hvdc.doctor.private import made_public

LIMIT_S = 8.0
"""For all checks, which run at once."""


def probes() -> list[Probe]:
    """What is asked, in the order of the report."""
    return [*here.probes(), *compilers.probes(), *engines.probes(), *phones.probes()]


def examine(limit_s: float = LIMIT_S) -> list[Check]:
    """All checks, without names of people, machines and folders."""
    return made_public(ask_all(probes(), limit_s))
