"""`hvdc_probe` run on a machine: every fact is kept as it comes, whatever becomes of the program or of the machine."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass

from hvdc.deploy.errors import LinkError
from hvdc.errors import Exit, HvdcError
from hvdc.measure.places import Place, ProgramError
from hvdc.measure.platform_facts import PlatformFacts, size_text

PROGRAM = "hvdc_probe"
SAFE_MIB, MOST_MIB = 511, 2047
"""Regions up to the first are tried unasked, up to the second on request: see device_runtime/tools/hvdc_probe.c."""


@dataclass(frozen=True)
class ProbeRequest:
    """``total_mib``, ``mappings`` None: as the program has it. ``fastrpc``: FastRPC's library, where it is another."""

    largest_mib: int = SAFE_MIB
    total_mib: int | None = None
    mappings: int | None = None
    opencl_device: str | None = None
    fastrpc: str | None = None

    def arguments(self, skels: str | None) -> list[object]:
        """Of the program."""
        words: list[object] = ["--largest-mib", self.largest_mib]
        words += ["--dangerous"] if self.largest_mib > SAFE_MIB else []
        for option, value in (
            ("--total-mib", self.total_mib), ("--mappings", self.mappings), ("--device", self.opencl_device),
            ("--fastrpc", self.fastrpc), ("--skels", skels),
        ):  # fmt: skip
            words += [] if value is None else [option, value]
        return words


@dataclass(frozen=True)
class Probed:
    """``what``: the machine. ``ended``: what cut the probe short, as a sentence; ``""``: nothing did."""

    what: str
    date: datetime.date
    facts: PlatformFacts
    ended: str
    status: Exit
    error: HvdcError | None = None


def run_probe(request: ProbeRequest, place: Place, skels: str | None, say: Callable[[str], None]) -> Probed:
    """Raises HvdcError where nothing at all was learnt; else what was is returned, with what cut it short."""
    facts, day = PlatformFacts(), datetime.datetime.now().astimezone().date()
    error: HvdcError | None = None

    def take(line: str) -> None:
        before = facts.trying
        facts.take(line)
        if facts.trying is not None and facts.trying != before:
            what, size = facts.trying
            say(f"trying {what}" + (f", {size_text(size)}" if size else ""))

    try:
        ended = place.run(PROGRAM, request.arguments(skels), lambda line: False, take)
    except HvdcError as caught:
        if not facts.has_begun:
            raise
        error = caught
    else:
        if ended.status != 0 or not facts.is_done:
            how = f"killed by signal {-ended.status}" if ended.status < 0 else f"status {ended.status}"
            own = [line.removeprefix(f"{PROGRAM}: ") for line in ended.log if line.startswith(f"{PROGRAM}: ")]
            error = ProgramError(own[-1] if own else f"{PROGRAM} ended early: {how}", log=ended.log)
        if error is not None and not facts.has_begun:
            raise error
    if error is None:
        return Probed(place.what, day, facts, "", Exit.OK)
    return Probed(place.what, day, facts, _cut_short(facts, error), _status(error), error)


def _cut_short(facts: PlatformFacts, error: HvdcError) -> str:
    if facts.trying is None:
        return error.what
    what, size = facts.trying
    return f"{error.what}, while it tried {what}" + (f" of {size_text(size)}" if size else "")


def _status(error: HvdcError) -> Exit:
    return Exit.DEVICE if isinstance(error, LinkError) else error.exit_status
