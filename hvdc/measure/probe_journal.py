"""What a device's probes have said so far, on disk as it is said: a phone that goes down, or an hvdc that is killed,
costs nothing that was learnt, and what was being tried then is not tried again.

One file a device in the user's cache: a line of JSON that says which device and which programs, then the programs' own
lines. It goes when a probe has come to its end, but for what was deadly, which is kept until a person has it forgotten.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from hvdc.errors import HvdcError
from hvdc.files import explaining, write_durably
from hvdc.measure.platform_facts import MIB, PlatformFacts, size_text

VERSION = 1
MAX_BYTES = 8 << 20
STOPPED, DIED = '{"fact": "stopped"}', '{"fact": "died"}'
"""Lines of ours: a person ended the probe, or the program died of what it tried. Where there is neither, hvdc itself
was killed or the device was lost: that it has started anew since then says which."""


@dataclass(frozen=True)
class Asked:
    """What makes facts of two probes comparable. ``device``: which one; it goes to disk as a hash. ``what``: as it says
    of itself, with its system's version. ``boot``: another text each time that it has started; ``""``: it does not
    say. ``sources``: of the programs. ``options``: that change what is found."""

    device: str
    what: str
    boot: str
    sources: str
    options: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return hashlib.sha256(f"{self.device}\n{self.what}".encode()).hexdigest()[:16]


@dataclass
class Journal:
    """``begun``: the day of the first fact in it. ``lines``: of the programs. ``deadly``: (step, bytes)."""

    path: Path
    asked: Asked
    begun: str
    lines: list[str] = field(default_factory=list)
    deadly: tuple[tuple[str, int], ...] = ()
    _file: IO[str] | None = None

    @property
    def has_facts(self) -> bool:
        return bool(self.lines)

    def known(self) -> PlatformFacts:
        """What the probes before have found out. Raises HvdcError for lines without end."""
        facts = PlatformFacts()
        facts.has_begun = True  # the same programs have said these lines
        for line in self.lines:
            facts.take(line)
        facts.trying, facts.is_done, facts.deadly = None, False, self.deadly
        return facts

    def open(self) -> None:
        """From here on what is said is kept. Raises HvdcError: the disk takes nothing."""
        with explaining(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(self.path, self._text().encode())
            self._file = self.path.open("a", encoding="utf-8")

    def keep(self, line: str) -> None:
        """One line, on disk before the next step begins; not what a driver prints between them. That the disk is full
        ends the keeping, not the probe."""
        if self._file is None or not line.startswith("{") or self._file.tell() > MAX_BYTES // 2:
            return
        try:
            self._file.write(f"{line}\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            self._file = None

    def close(self, *, is_done: bool) -> None:
        """``is_done``: all was tried that may be."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
        if not is_done:
            return
        self.lines = []
        with contextlib.suppress(OSError):
            if self.deadly:
                write_durably(self.path, self._text().encode())
            else:
                self.path.unlink(missing_ok=True)

    def _text(self) -> str:
        head = {
            "hvdc_probe_journal": VERSION, "begun": self.begun, "what": self.asked.what, "boot": self.asked.boot,
            "sources": self.asked.sources, "options": list(self.asked.options),
            "deadly": [list(step) for step in self.deadly],
        }  # fmt: skip
        return "".join(f"{line}\n" for line in (json.dumps(head), *self.lines))


def open_journal(folder: Path, asked: Asked, today: str, say: Callable[[str], None], *, forget: bool) -> Journal:
    """The device's journal, with what a probe that did not come to its end has left. ``forget``: of nothing."""
    fresh = Journal(folder / f"{asked.key}.jsonl", asked, today)
    if forget:
        return fresh
    try:
        with fresh.path.open("rb") as file:
            head, *lines = file.read(MAX_BYTES).decode("utf-8", "replace").splitlines()
        said = json.loads(head)
        deadly = tuple((str(what), int(size)) for what, size in said["deadly"])
        begun, same = str(said["begun"])[:10], _is_same(said, asked)
        stayed_up = bool(asked.boot) and said["boot"] == asked.boot
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return fresh
    last = _last_step(lines, stayed_up=stayed_up)
    if last is not None and last not in deadly:
        deadly = (*deadly, last)
    for what, size in deadly:
        with_size = f" of {size_text(size)}" if size else ""
        say(f"a probe of this device has ended while it tried {what}{with_size}: that is not tried again (--forget)")
    facts = _facts_alone(lines)
    if not (same and facts):
        return Journal(fresh.path, asked, today, [], deadly)
    say(f"going on with the probe of {begun} that did not come to its end (--forget starts over)")
    return Journal(fresh.path, asked, begun, facts, deadly)


def arguments(known: PlatformFacts) -> list[object]:
    """Of the program: what it need not, and what it must not try again."""
    words: list[object] = []
    for what, size in known.deadly:
        words += ["--avoid", f"{what}:{size}"]
    if known.largest is not None and known.largest.bytes >= MIB:
        words += ["--known-mib", known.largest.bytes // MIB]
    for name, found in (("count", known.counted), ("total", known.summed)):
        was_deadly = any(what == name for what, _ in known.deadly)
        if found is not None and (found.is_over or was_deadly):
            words += ["--skip", name]
    return words


def _is_same(said: dict[str, Any], asked: Asked) -> bool:
    mine = (VERSION, asked.what, asked.sources, list(asked.options))
    return (said["hvdc_probe_journal"], said["what"], said["sources"], said["options"]) == mine


def _last_step(lines: list[str], *, stayed_up: bool) -> tuple[str, int] | None:
    """What was being tried when the journal ends, if that ended it."""
    facts = PlatformFacts()
    with contextlib.suppress(HvdcError):
        for line in lines:
            if line not in (STOPPED, DIED):
                facts.take(line)
    end = lines[-1] if lines else ""
    return None if end == STOPPED or (stayed_up and end != DIED) else facts.trying


def _facts_alone(lines: list[str]) -> list[str]:
    return [line for line in lines if '"fact": ' in line and line not in (STOPPED, DIED) and '"trying"' not in line]
