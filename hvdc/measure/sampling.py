"""Conditions while something is measured, so that a device that gets hot in the middle is seen.

A loop in a shell of the measured machine prints `SAMPLE` every few seconds. What that costs is measured with it: the
shell counts the processor time of its own and of what it has started.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hvdc.deploy.leash import LEASH
from hvdc.measure.conditions import SAMPLE, THROTTLING, Conditions, parse_conditions

EVERY_S = 5
MAX_SAMPLES = 20_000
"""A day of them."""
SAMPLE_BYTES = 1 << 16

_END = "hvdc-sample-end"
_TIMES = re.compile(r"(\d{1,9})m(\d{1,9}(?:\.\d{1,9})?)s +(\d{1,9})m(\d{1,9}(?:\.\d{1,9})?)s\s*", re.ASCII)


def loop(every_s: int = EVERY_S) -> str:
    """Lines of a POSIX shell without end; `Samples.take` reads them. It ends when its input does."""
    return f"{LEASH}while :; do\n{SAMPLE}\ntimes\necho {_END} || exit\nsleep {every_s}\ndone\n"


@dataclass
class Samples:
    """``seen``: seconds since the first block, and what was found then. ``cost_s``: processor time that it took."""

    begun_s: float = field(default_factory=time.monotonic)
    seen: list[tuple[float, Conditions]] = field(default_factory=list)
    cost_s: float = 0.0
    _lines: list[str] = field(default_factory=list)
    _bytes: int = 0

    def take(self, line: str) -> None:
        """One line of the loop. What is no sample is passed over."""
        self._bytes += len(line)
        if self._bytes > SAMPLE_BYTES:
            self._lines.clear()
            self._bytes = 0
        if line.strip() != _END:
            self._lines.append(line)
            return
        found, times = parse_conditions("\n".join(self._lines)), list(map(_TIMES.fullmatch, self._lines))
        self.cost_s = sum(60 * (int(t[1]) + int(t[3])) + float(t[2]) + float(t[4]) for t in times if t is not None)
        self._lines.clear()
        self._bytes = 0
        if len(self.seen) < MAX_SAMPLES and found != Conditions():
            self.seen.append((time.monotonic() - self.begun_s, found))

    @property
    def hottest(self) -> tuple[float, str, float] | None:
        """When, which sensor, and degrees Celsius."""
        all_ = [(at_s, *found.hottest) for at_s, found in self.seen if found.hottest is not None]
        return max(all_, key=lambda one: one[2], default=None)

    @property
    def throttling(self) -> str | None:
        """The worst."""
        levels = [THROTTLING.index(found.throttling) for _, found in self.seen if found.throttling is not None]
        return THROTTLING[max(levels)] if levels else None

    @property
    def power_w(self) -> tuple[float, ...]:
        """Of the whole phone, wherever it was known."""
        return tuple(w for _, found in self.seen if (w := found.battery.power_w) is not None)

    def clocks_hz(self, name: str) -> tuple[int, int] | None:
        """The lowest and the highest clock that was seen of one."""
        seen = [found.clocks_hz[name][0] for _, found in self.seen if name in found.clocks_hz]
        return (min(seen), max(seen)) if seen else None

    def text(self) -> str:
        """One line for people; ``""``: nothing was seen."""
        if not self.seen:
            return ""
        parts = [f"{len(self.seen)} looks"]
        if self.hottest is not None:
            at_s, sensor, degrees = self.hottest
            parts.append(f"hottest {degrees:.1f} °C ({sensor}, after {at_s:.0f} s)")
        for name in dict.fromkeys(name for _, found in self.seen for name in found.clocks_hz):
            low, high = self.clocks_hz(name) or (0, 0)
            whose = "GPU" if name == "gpu" else name
            parts.append(
                f"{whose} {low / 1e6:.0f} to {high / 1e6:.0f} MHz" if low != high else f"{whose} {low / 1e6:.0f} MHz"
            )
        if self.throttling is not None:
            parts.append(f"throttling up to {self.throttling}")
        if self.power_w:
            mean_w = sum(self.power_w) / len(self.power_w)
            parts.append(f"whole phone {mean_w:.2f} W on average of {len(self.power_w)} (by its battery)")
        return ", ".join([*parts, f"which took {self.cost_s:.2f} s of one processor"])

    def facts(self) -> dict[str, object]:
        """For JSON."""
        return {"cost_s": self.cost_s, "every_s": EVERY_S, "seen": [{"at_s": t, **c.facts()} for t, c in self.seen]}


@contextmanager
def sampling(follow: Callable[[str, Callable[[str], None], threading.Event], None]) -> Iterator[Samples]:
    """Samples that come in while the block runs. ``follow``: runs a script until an event is set, and passes its lines
    on; that it cannot costs the samples only."""
    samples, enough = Samples(), threading.Event()

    def work() -> None:
        try:
            follow(loop(), samples.take, enough)
        except Exception:  # whatever becomes of it, what is measured goes on
            samples._lines.clear()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        enough.set()
        thread.join(5)
