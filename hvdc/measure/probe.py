"""`hvdc_probe` run on a machine: every fact is kept as it comes, whatever becomes of the program or of the machine."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass

from hvdc.deploy.errors import LinkError
from hvdc.deploy.in_use import InUseError
from hvdc.errors import Exit, HvdcError, StoppedError
from hvdc.measure.places import Place, ProgramError
from hvdc.measure.platform_facts import PlatformFacts, size_text
from hvdc.measure.probe_journal import DIED, STOPPED, Journal, arguments

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
    """``what``: the machine. ``begun``: the day of its first facts, where an unfinished probe was gone on with.
    ``ended``: what cut the probe short, as a sentence; ``""``: nothing did. ``key``: of the device's journal."""

    what: str
    date: datetime.date
    facts: PlatformFacts
    ended: str
    status: Exit
    error: HvdcError | None = None
    begun: str = ""
    key: str = ""

    def days(self) -> str:
        """When it was measured."""
        today = self.date.isoformat()
        return today if self.begun in ("", today) else f"{self.begun} to {today}"


RUNNING = "it is running still, or hvdc was killed"


def run_probe(
    request: ProbeRequest, place: Place, skels: str | None, journal: Journal, say: Callable[[str], None],
    learnt: Callable[[Probed], None] = lambda probed: None,
) -> Probed:  # fmt: skip
    """Every line goes into the journal, and what is known so far to ``learnt`` after each fact.

    Raises HvdcError where nothing at all was learnt; else what was is returned, with what cut it short.
    """
    facts, day = journal.known(), datetime.datetime.now().astimezone().date()
    words = [*request.arguments(skels), *arguments(facts)]
    error: HvdcError | None = None
    facts.has_begun = False

    def probed(ended: str, status: Exit = Exit.OK, error: HvdcError | None = None) -> Probed:
        return Probed(place.what, day, facts, ended, status, error, journal.begun, journal.asked.key)

    def take(line: str) -> None:
        before, had_begun = facts.trying, facts.has_begun
        facts.take(line)
        journal.keep(line)
        if facts.trying is None and had_begun:
            learnt(probed(RUNNING))
        elif facts.trying is not None and facts.trying != before:
            what, size = facts.trying
            say(f"trying {what}" + (f", {size_text(size)}" if size else ""))

    journal.open()
    try:
        ended = place.run(PROGRAM, words, lambda line: False, take)
    except (KeyboardInterrupt, InUseError) as caught:
        if isinstance(caught, KeyboardInterrupt):
            journal.keep(STOPPED)
        journal.close(is_done=False)
        if isinstance(caught, KeyboardInterrupt) and facts.has_begun:
            raise StoppedError(
                "interrupted", found="what was found out so far is kept", fix="the same command goes on with it"
            ) from caught
        raise
    except HvdcError as caught:
        error = caught
        if isinstance(caught, ProgramError) and facts.has_begun:
            journal.keep(DIED)
    else:
        error = place.lost(PROGRAM, ended) if ended.status == 0 and not facts.is_done else None
        if error is None and (ended.status != 0 or not facts.is_done):
            how = f"killed by signal {-ended.status}" if ended.status < 0 else f"status {ended.status}"
            own = [line.removeprefix(f"{PROGRAM}: ") for line in ended.log if line.startswith(f"{PROGRAM}: ")]
            error = ProgramError(own[-1] if own else f"{PROGRAM} ended early: {how}", log=ended.log)
            journal.keep(DIED)
    journal.close(is_done=error is None)
    if error is None:
        return probed("")
    if not facts.has_begun and not journal.has_facts:
        raise error
    return probed(_cut_short(facts, error), _status(error), error)


def _cut_short(facts: PlatformFacts, error: HvdcError) -> str:
    if facts.trying is None:
        return error.what
    what, size = facts.trying
    return f"{error.what}, while it tried {what}" + (f" of {size_text(size)}" if size else "")


def _status(error: HvdcError) -> Exit:
    return Exit.DEVICE if isinstance(error, LinkError) else error.exit_status
