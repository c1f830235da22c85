"""What `hvdc_probe` says, fact by fact as it comes: what is no fact is kept apart, and what was tried last is known."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hvdc.errors import HvdcError

VERSION = 1
"""``REPORT_VERSION`` of device_runtime/tools/hvdc_probe.c."""

MAX_FACTS = 10_000
MIB = 1 << 20


@dataclass(frozen=True)
class Region:
    """A region of shared memory of so many bytes. ``gpu``, ``dsp``: whether that engine took part. ``refused_by``:
    the kind of memory, ``gpu``, ``dsp`` or ``""``."""

    bytes: int
    works: bool
    tried: bool
    gpu: bool
    dsp: bool
    refused_by: str
    why: str


@dataclass(frozen=True)
class Sharing:
    """Which engines take a kind of memory. ``way``: how the GPU imports it, ``copy`` in none. ``shares``: every engine
    that there is takes it."""

    way: str
    gpu: bool
    dsp: bool
    shares: bool
    why: str

    def text(self) -> str:
        """For a source."""
        parts = [f"GPU by {self.way}" if self.gpu else "not the GPU", "DSP" if self.dsp else "not the DSP"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Mappings:
    """Regions that were mapped at once. ``is_over``: no more were tried, as one was ``refused``, or nobody asked for
    more."""

    count: int
    total_bytes: int
    is_over: bool
    refused: bool
    gpu: bool
    dsp: bool
    why: str


@dataclass(frozen=True)
class GpuFacts:
    platform: str
    device: str
    driver: str
    is_cpu: bool
    max_buffer_bytes: int
    dots: dict[str, str] = field(default_factory=dict)
    """Form of the dot product -> why it is not taken; ``""``: it compiles and is right."""

    @property
    def right_dots(self) -> tuple[str, ...]:
        return tuple(form for form, why in self.dots.items() if not why)


@dataclass(frozen=True)
class DspFacts:
    """``arch`` 0: a stand-in that is no Hexagon."""

    arch: int
    contexts: int
    vtcm_bytes: int


class PlatformFacts:
    """Collects lines. Everything that was not said is None or empty."""

    def __init__(self) -> None:
        self.has_begun = False
        self.is_done = False
        self.memory_bytes: int | None = None
        self.gpus: list[GpuFacts] = []
        self.no_gpu = ""
        self.kinds: dict[str, str] = {}
        """Kind of shared memory -> why it does not work; ``""``: it does."""
        self.sharing: dict[str, Sharing] = {}
        """Kind of shared memory that works -> which engines take it."""
        self.kind: str | None = None
        """With which all else was tried: the first that all engines share, else the first that works."""
        self.dsp: DspFacts | None = None
        self.no_dsp = ""
        self.regions: list[Region] = []
        self.counted: Mappings | None = None
        self.summed: Mappings | None = None
        self.trying: tuple[str, int] | None = None
        """What was tried last, and with how many bytes; None once there was an answer."""
        self.deadly: tuple[tuple[str, int], ...] = ()
        """What probes before ended at, and with how many bytes: not tried again."""
        self.odd_lines = 0
        self._facts = 0

    @property
    def chosen(self) -> Sharing | None:
        """Of the kind that all else was tried with."""
        return None if self.kind is None else self.sharing.get(self.kind)

    @property
    def largest(self) -> Region | None:
        """The largest region that works."""
        return max((r for r in self.regions if r.works), key=lambda r: r.bytes, default=None)

    @property
    def smallest_refused(self) -> Region | None:
        """The smallest region that was tried and refused."""
        return min((r for r in self.regions if r.tried and not r.works), key=lambda r: r.bytes, default=None)

    def take(self, line: str) -> None:
        """One line. Raises HvdcError for facts without end, and for a program of another version."""
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        if isinstance(said, dict) and "hvdc_probe" in said:
            self._begin(said["hvdc_probe"])
            return
        if not self.has_begun or not isinstance(said, dict) or not isinstance(said.get("fact"), str):
            self.odd_lines += 1
            return
        self._facts += 1
        if self._facts > MAX_FACTS:
            raise HvdcError("hvdc_probe talks without end", expected=f"at most {MAX_FACTS} facts")
        try:
            self._learn(said["fact"], said)
        except (LookupError, TypeError, ValueError):
            self.odd_lines += 1

    def _begin(self, version: Any) -> None:
        if version != VERSION or isinstance(version, bool):
            raise HvdcError(
                "hvdc_probe is of another version than this command", expected=str(VERSION), found=str(version)[:40],
                fix="hvdc runtime build makes the programs anew",
            )  # fmt: skip
        self.has_begun = True

    def _learn(self, fact: str, said: dict[str, Any]) -> None:
        if fact == "trying":
            self.trying = (_text(said, "what"), _number(said, "bytes"))
            return
        if fact == "memory":
            self.memory_bytes = _number(said, "total_bytes")
        elif fact == "gpu":
            platform, device, driver = (_text(said, name) for name in ("platform", "device", "driver"))
            index, is_cpu, most = _number(said, "index"), _flag(said, "is_cpu"), _number(said, "max_buffer_bytes")
            self.gpus[index:] = [GpuFacts(platform, device, driver, is_cpu, most)]
        elif fact == "dot":
            form, why = _text(said, "form"), _text(said, "why")
            self.gpus[-1].dots[form] = "" if _flag(said, "right") else why or "it gives other sums"
        elif fact == "no-gpu":
            self.no_gpu = _text(said, "why")
        elif fact == "kind":
            self.kinds[_text(said, "name")] = "" if _flag(said, "works") else _text(said, "why") or "it does not work"
        elif fact == "sharing":
            gpu, dsp, shares = (_flag(said, name) for name in ("gpu", "dsp", "shares"))
            self.sharing[_text(said, "kind")] = Sharing(_text(said, "way"), gpu, dsp, shares, _text(said, "why"))
        elif fact == "chosen":
            self.kind = _text(said, "kind")
        elif fact == "dsp":
            self.dsp = DspFacts(_number(said, "arch"), _number(said, "contexts"), _number(said, "vtcm_bytes"))
        elif fact == "no-dsp":
            self.no_dsp = _text(said, "why")
        elif fact == "region":
            works, tried, gpu, dsp = (_flag(said, name) for name in ("works", "tried", "gpu", "dsp"))
            size, by, why = _number(said, "bytes"), _text(said, "refused_by"), _text(said, "why")
            self.regions = [region for region in self.regions if region.bytes != size]
            self.regions.append(Region(size, works, tried, gpu, dsp, by, why))
        elif fact in ("mapped", "mappings"):
            self._learn_mappings(said, is_over=fact == "mappings")
        elif fact == "done":
            self.is_done = True
        else:
            raise ValueError(fact)
        self.trying = None

    def _learn_mappings(self, said: dict[str, Any], *, is_over: bool) -> None:
        what = _text(said, "what")
        found = Mappings(
            _number(said, "count"), _number(said, "total_bytes"), is_over, _flag(said, "refused") if is_over else False,
            _flag(said, "gpu"), _flag(said, "dsp"), _text(said, "why") if is_over else "",
        )  # fmt: skip
        if what not in ("count", "total"):
            raise ValueError(what)
        before = self.counted if what == "count" else self.summed
        if not is_over and before is not None and before.total_bytes > found.total_bytes:
            return  # a probe before came further
        if what == "count":
            self.counted = found
        else:
            self.summed = found


def size_text(size: int) -> str:
    """Bytes, for people."""
    return f"{size / MIB:,.4g} MiB" if size >= MIB else f"{size / 1024:,.4g} KiB"


def _text(said: dict[str, Any], name: str) -> str:
    value = said[name]
    if not isinstance(value, str):
        raise TypeError(name)
    return " ".join("".join(c if c.isprintable() else " " for c in value).split())[:400]


def _number(said: dict[str, Any], name: str) -> int:
    value = said[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise TypeError(name)
    return value


def _flag(said: dict[str, Any], name: str) -> bool:
    value = said[name]
    if not isinstance(value, bool):
        raise TypeError(name)
    return value
