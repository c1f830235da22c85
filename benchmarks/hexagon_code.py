"""Hexagon objects disassembled: functions, packets of instructions, and their innermost loops.

A packet is what a hardware thread starts at once: up to four instructions. Counting packets of a loop is counting its
shortest time; waits for memory and for results come on top.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

DISASSEMBLER = "llvm-objdump-22"
FEATURES = "+hvx,+hvx-length128b,+hvx-qfloat,+hvx-ieee-fp"

_FUNCTION = re.compile(r"^[0-9a-f]+ <(?P<name>[\w.$]+)>:")
_LINE = re.compile(r"^\s+(?P<at>[0-9a-f]+): ?(?P<open>\s*\{)?(?P<text>[^}]*)(?P<end>\}.*)?$")
_SETS_LOOP = re.compile(r"\bloop(?P<level>[01])\(0x(?P<to>[0-9a-f]+)")
_JUMP = re.compile(r"\bjump(?::n?t)? 0x(?P<to>[0-9a-f]+)")
_ENDS = re.compile(r":endloop(?P<levels>[01]+)")

VECTOR_LOAD = re.compile(r"\bv\d+(?:\.cur|\.tmp)? ?= ?vmemu?\(")
VECTOR_STORE = re.compile(r"\bvmemu?\([^)]*\) ?= ?")
VECTOR = re.compile(r"\bv\d+|\bq\d\b")
MULTIPLIER = re.compile(
    r"\.(?:sf|hf|qf32|qf16|w|h|uw|uh) ?[-+]?= ?(?:vmpy|vdmpy|vrmpy|vmpyi|vmpyie|vmpyio|vmpye|vmpyo)\("
    r"|\.(?:sf|hf) ?= ?(?:vadd|vsub)\(v\d+\.(?:sf|hf)"
    r"|= ?vcvt\("
)  # fmt: skip
"""Instructions that take the vector unit's multipliers, or one of the two."""

BOTH_MULTIPLIERS = re.compile(
    r"v\d+\.(?:sf|qf32) ?= ?vmpy\(|v\d+:\d+\.\w+ ?= ?(?:vmpy|vcvt)\(|= ?vmpyi[eo]\(|= ?vmpy[eo]\("
)
"""Those that take both. Which take what is what LLVM's assembler accepts in a packet; see `shares`."""


@dataclass(frozen=True)
class Packet:
    at: int
    instructions: tuple[str, ...]
    ends: str
    """Levels of hardware loops that end with it."""


@dataclass(frozen=True)
class Loop:
    """An innermost loop: one that has no other inside."""

    packets: tuple[Packet, ...]
    hardware: bool

    @property
    def instructions(self) -> list[str]:
        return [text for packet in self.packets for text in packet.instructions]

    def count(self, pattern: re.Pattern[str]) -> int:
        return sum(bool(pattern.search(text)) for text in self.instructions)

    @property
    def loads(self) -> int:
        return self.count(VECTOR_LOAD)

    @property
    def stores(self) -> int:
        return self.count(VECTOR_STORE)

    @property
    def multiplier_slots(self) -> int:
        """Of two in each packet."""
        return self.count(MULTIPLIER) + self.count(BOTH_MULTIPLIERS)

    @property
    def vector_instructions(self) -> int:
        return self.count(VECTOR)


def functions(path: Path, arch: str) -> dict[str, list[Packet]]:
    """Name -> packets of every function of an object."""
    command = [DISASSEMBLER, "-d", "--no-show-raw-insn", f"--mcpu=hexagon{arch}", f"--mattr={FEATURES}", str(path)]
    return parse(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def parse(disassembly: str) -> dict[str, list[Packet]]:
    found: dict[str, list[Packet]] = {}
    packets: list[Packet] = []
    at, texts = 0, list[str]()
    for line in disassembly.splitlines():
        if head := _FUNCTION.match(line):
            packets = found.setdefault(head["name"], [])
            continue
        part = _LINE.match(line)
        if part is None:
            continue
        if part["open"]:
            at, texts = int(part["at"], 16), []
        texts += [text.strip() for text in part["text"].split(";") if text.strip() not in ("", "nop")]
        if part["end"] is not None:
            ends = _ENDS.search(part["end"])
            packets.append(Packet(at, tuple(texts), ends["levels"] if ends else ""))
    return found


def loops(packets: list[Packet]) -> list[Loop]:
    """The innermost loops of a function, in the order of its code."""
    index = {packet.at: i for i, packet in enumerate(packets)}
    spans: set[tuple[int, int, bool]] = set()
    for i, packet in enumerate(packets):
        for text in packet.instructions:
            if begins := _SETS_LOOP.search(text):
                first, level = index[int(begins["to"], 16)], begins["level"]
                last = next((j for j in range(first, len(packets)) if level in packets[j].ends), None)
                if last is not None:
                    spans.add((first, last, True))
            elif (jump := _JUMP.search(text)) and int(jump["to"], 16) <= packet.at and int(jump["to"], 16) in index:
                spans.add((index[int(jump["to"], 16)], i, False))
    innermost = [
        (first, last, hardware)
        for first, last, hardware in spans
        if not any((a, b) != (first, last) and first <= a and b <= last for a, b, _ in spans)
    ]
    return [Loop(tuple(packets[first : last + 1]), hardware) for first, last, hardware in sorted(innermost)]
