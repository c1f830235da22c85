"""The NPU engine behind a stand-in of FastRPC's library, and the skel asked with raw calls.

What the calls look like is asked of ``hvdc_dsp --interface``, which has it from the C side's one description.
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType

STAND_IN = "libcdsprpc_stand_in.so"
MAGIC = 0x43505248
OPEN, CLOSE = (0 << 24) | (2 << 16) | 1, (1 << 24) | (1 << 4)
"""Scalars of what FastRPC's shell calls."""
NOT_OURS = 0x7FFFFFFF
BAD_PARAMETER, UNSUPPORTED, NO_SUCH_HANDLE, VERSION, OUT_OF_HANDLES = 0x0E, 0x14, 0x46, 0x04, 0x2D


@dataclass(frozen=True)
class Buffer:
    name: str
    element_bytes: int
    least_bytes: int
    most_bytes: int


@dataclass
class Method:
    number: int
    name: str
    fields_in: list[tuple[str, int]] = field(default_factory=list)
    fields_out: list[tuple[str, int]] = field(default_factory=list)
    given: list[Buffer] = field(default_factory=list)
    taken: list[Buffer] = field(default_factory=list)

    @property
    def in_bytes(self) -> int:
        return sum(size for _, size in self.fields_in)

    @property
    def out_bytes(self) -> int:
        return sum(size for _, size in self.fields_out)

    @property
    def scalars(self) -> int:
        return (self.number << 24) | ((1 + len(self.given)) << 16) | ((2 + len(self.taken)) << 8)

    def record(self, **values: int | bytes) -> bytes:
        """A record in; what is not named is 0."""
        unknown = set(values) - {name for name, _ in self.fields_in}
        assert not unknown, unknown
        parts = [_packed(values.get(name, 0), size) for name, size in self.fields_in]
        return b"".join(parts)

    def unpacked(self, record: bytes) -> dict[str, int | bytes]:
        values: dict[str, int | bytes] = {}
        for name, size in self.fields_out:
            part, record = record[:size], record[size:]
            values[name] = part if size > 8 else int.from_bytes(part, "little")
        return values


def _packed(value: int | bytes, size: int) -> bytes:
    return value.to_bytes(size, "little") if isinstance(value, int) else value.ljust(size, b"\0")


@dataclass(frozen=True)
class Interface:
    version: str
    constants: Mapping[str, int]
    methods: Mapping[str, Method]


@cache
def interface_of(program: Path) -> Interface:
    constants: dict[str, int] = {}
    methods: dict[str, Method] = {}
    method, version = Method(0, ""), ""
    for line in subprocess.run(
        [program, "--interface"], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        kind, *words = line.split()
        if kind == "version":
            version = words[0]
        elif kind == "constant":
            constants[words[0]] = int(words[1])
        elif kind == "method":
            method = methods[words[1]] = Method(int(words[0]), words[1])
        elif kind in ("in", "out"):
            (method.fields_in if kind == "in" else method.fields_out).append((words[0], int(words[1])))
        else:
            buffer = Buffer(words[0], *map(int, words[1:]))
            (method.given if kind == "given" else method.taken).append(buffer)
    return Interface(version, constants, methods)


@dataclass(frozen=True)
class Answer:
    """``kind`` 0: done. ``said``: the sentence of a refusal."""

    kind: int
    said: str
    values: dict[str, int | bytes]
    taken: list[bytes]


class Skel:
    """``hvdc_dsp`` as a process: the skel, asked by this process. A sanitizer's report fails the test that asked."""

    def __init__(self, program: Path) -> None:
        self.interface = interface_of(program)
        self._process = subprocess.Popen(
            [program, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def __enter__(self) -> Skel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _, report = self._process.communicate(timeout=60)
        if kind is None:
            assert self._process.returncode == 0, report.decode(errors="replace")

    def raw(
        self, handle: int, scalars: int, given: Sequence[bytes], sizes_out: Sequence[int]
    ) -> tuple[int, int, list[bytes]]:
        """(result, handle of an opening, buffers out if the result is 0). An empty buffer is NULL to the skel."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        assert ((scalars >> 16) & 255, (scalars >> 8) & 255) == (len(given), len(sizes_out))
        sizes = [*map(len, given), *sizes_out]
        stdin.write(struct.pack(f"<IIQ{len(sizes)}I", MAGIC, scalars, handle, *sizes) + b"".join(given))
        stdin.flush()
        head = stdout.read(16)
        if len(head) < 16:  # it died: a sanitizer has something to say
            _, report = self._process.communicate(timeout=60)
            raise AssertionError(report.decode(errors="replace"))
        magic, result, opened = struct.unpack("<IiQ", head)
        assert magic == MAGIC
        return result, opened, [stdout.read(size) for size in sizes_out] if result == 0 else []

    def open(self) -> int:
        """A new session's handle."""
        result, handle, _ = self.raw(0, OPEN, [struct.pack("<I", 4), b"uri\0"], [])
        assert result == 0, result
        return handle

    def close(self, handle: int) -> int:
        """The result."""
        return self.raw(handle, CLOSE, [], [])[0]

    def ask(self, handle: int, name: str, *given: bytes, **values: int | bytes) -> Answer:
        """A well-formed call."""
        method = self.interface.methods[name]
        record = method.record(**{"abi": self.interface.constants["abi"], **values})
        sizes = [method.out_bytes, *(b.least_bytes for b in method.taken), self.interface.constants["sentence_bytes"]]
        result, _, out = self.raw(handle, method.scalars, [record, *given], sizes)
        assert result == 0, hex(result)
        answered = method.unpacked(out[0])
        kind = answered.pop("kind")
        assert isinstance(kind, int)
        return Answer(kind, out[-1].split(b"\0")[0].decode(), answered, out[1:-1])

    def done(self, handle: int, name: str, *given: bytes, **values: int | bytes) -> Answer:
        answer = self.ask(handle, name, *given, **values)
        assert answer.kind == 0, answer.said
        return answer

    def refused(self, handle: int, name: str, *given: bytes, **values: int | bytes) -> str:
        answer = self.ask(handle, name, *given, **values)
        assert answer.kind != 0
        assert answer.said
        return answer.said
