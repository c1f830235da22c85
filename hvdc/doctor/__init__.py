"""What this machine, and the phones at it, have and lack for hvdc, as facts for people and for bug reports."""

from __future__ import annotations

from hvdc.doctor import compilers, engines, here, phones
from hvdc.doctor.check import Check as Check
from hvdc.doctor.check import Probe, ask_all
from hvdc.doctor.phones import Server as Server
from hvdc.doctor.private import made_public

LIMIT_S = 8.0
"""For all checks, which run at once."""


def probes(server: Server | None = None) -> list[Probe]:
    """What is asked, in the order of the report."""
    return [*here.probes(), *compilers.probes(), *engines.probes(), *phones.probes(server or Server())]


def examine(limit_s: float = LIMIT_S, server: Server | None = None) -> list[Check]:
    """All checks, without names of people, machines and folders. ``server``: whose phones; None: adb's default."""
    return made_public(ask_all(probes(server), limit_s))
