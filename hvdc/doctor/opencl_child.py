"""Every OpenCL device and its INT8 dot products, tried where the runtime is not built: run as a program of its own.

A driver may crash or hang, so that it is loaded here, in a process whose end costs nothing but its own answer. What it
says are `hvdc_probe`'s lines, each before the next step. The text of the runtime's dot products, dot.cl, comes on
standard input; nothing but the standard library is imported.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

VERSION = 1
"""Of the lines: hvdc/measure/platform_facts.py reads them."""
LIBRARIES = ("libOpenCL.so.1", "libOpenCL.so", "/vendor/lib64/libOpenCL.so")
FORMS = {"plain": 4, "khr": 1, "qcom": 2, "nvidia": 3}
"""DOT_FORM of dot.cl; the one that every device must have first."""
STANDARDS = ("", "-cl-std=CL3.0", "-cl-std=CL1.2")
COLUMNS, WORDS = 64, 96
ALL, CPU = 0xFFFFFFFF, 2
PLATFORM_NAME, TYPE, NAME, DRIVER, MOST_BYTES, BUILD_LOG = 0x0902, 0x1000, 0x102B, 0x102D, 0x1010, 0x1183
COPY_HOST_PTR, WRITABLE = 32, 1

KERNEL = """
static int total(uint word) { const char4 c = as_char4(word); return c.s0 + c.s1 + c.s2 + c.s3; }
kernel void dots(global const uint *w, global const uint *x, global int *sums, uint words) {
    const uint column = get_global_id(0);
    int sum = 0, sum_w = 0, sum_x = 0;
    for (uint k = 0; k < words; k++) {
        const uint a = w[column * words + k];
        sum = DOT(a, x[k], sum);
        sum_w += total(a);
        sum_x += total(x[k]);
    }
    sums[column] = sum + ZERO_POINT(sum_w, sum_x, words);
}
"""


class RefusedError(Exception):
    """OpenCL says no."""


def operands() -> tuple[bytes, bytes, list[int]]:
    """Codes of columns, of one row, and the sums of their products; column 0 and much of the row are the largest."""
    state, k = 1, 4 * WORDS

    def code() -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % 255 - 127

    columns = [[-127] * k, *([code() for _ in range(k)] for _ in range(COLUMNS - 1))]
    row = [-127 if i % 3 else code() for i in range(k)]
    sums = [sum(a * b for a, b in zip(column, row, strict=True)) for column in columns]
    return b"".join(bytes(c & 0xFF for c in column) for column in columns), bytes(c & 0xFF for c in row), sums


class Library:
    """OpenCL's functions, as far as they are called here; each that fails raises RefusedError."""

    def __init__(self) -> None:
        self._cl = self._load()

    @staticmethod
    def _load() -> Any:
        why = ""
        for name in LIBRARIES:
            try:
                return ctypes.CDLL(name)
            except OSError as error:
                why = why or str(error)
        raise RefusedError(f"OpenCL cannot be loaded: {why}")

    def do(self, name: str, *arguments: Any) -> None:
        """A function that returns a code."""
        function = getattr(self._cl, name)
        function.restype = c_int
        if code := function(*arguments):
            raise RefusedError(f"{name} fails with {code}")

    def make(self, name: str, *arguments: Any) -> c_void_p:
        """A function that returns an object, and its code by its last argument."""
        function, code = getattr(self._cl, name), c_int(0)
        function.restype = c_void_p
        made = function(*arguments, byref(code))
        if code.value or not made:
            raise RefusedError(f"{name} fails with {code.value}")
        return c_void_p(made)

    def every(self, name: str, *before: Any) -> list[c_void_p]:
        """Platforms, or devices of one."""
        found, count = (c_void_p * 16)(), c_uint(0)
        try:
            self.do(name, *before, c_uint(16), found, byref(count))
        except RefusedError:
            return []
        return [c_void_p(found[i]) for i in range(min(16, count.value))]

    def text(self, name: str, *before: Any) -> str:
        """A text about something; ``"?"`` where it is not told."""
        buffer = ctypes.create_string_buffer(4096)
        try:
            self.do(name, *before, c_size_t(4095), buffer, None)
        except RefusedError:
            return "?"
        return buffer.value.decode("utf-8", "replace").strip()

    def number(self, device: c_void_p, what: int) -> int:
        value = c_uint64(0)
        try:
            self.do("clGetDeviceInfo", device, c_uint(what), c_size_t(8), byref(value), None)
        except RefusedError:
            return 0
        return value.value


class Device:
    """A device with a context and a queue."""

    def __init__(self, cl: Library, device: c_void_p) -> None:
        self._cl, self._device = cl, device
        one = (c_void_p * 1)(device)
        self._context = cl.make("clCreateContext", None, c_uint(1), one, None, None)
        self._queue = cl.make("clCreateCommandQueue", self._context, device, c_uint64(0))

    def why_not(self, form: int, source: str) -> str:
        """What is wrong with a form of the dot product; ``""``: nothing."""
        why = ""
        for standard in STANDARDS:
            try:
                program = self._built(source, f"{standard} -DDOT_FORM={form}".strip())
                return self._compared(program)
            except RefusedError as error:
                why = why or f"does not compile: {error}"
        return why

    def _built(self, source: str, options: str) -> c_void_p:
        text = (c_char_p * 1)(source.encode())
        program = self._cl.make("clCreateProgramWithSource", self._context, c_uint(1), text, None)
        one = (c_void_p * 1)(self._device)
        try:
            self._cl.do("clBuildProgram", program, c_uint(1), one, options.encode(), None, None)
        except RefusedError as error:
            log = self._cl.text("clGetProgramBuildInfo", program, self._device, c_uint(BUILD_LOG))
            lines = [line for line in log.splitlines() if "error" in line]
            raise RefusedError((lines or [str(error)])[0][:200]) from error
        return program

    def _compared(self, program: c_void_p) -> str:
        columns, row, sums = operands()
        try:
            found = self._sums(program, columns, row)
        except RefusedError as error:
            return f"does not run: {error}"
        wrong = next((i for i in range(COLUMNS) if found[i] != sums[i]), None)
        return "" if wrong is None else f"multiplies wrongly: column {wrong} is {found[wrong]} instead of {sums[wrong]}"

    def _sums(self, program: c_void_p, columns: bytes, row: bytes) -> Sequence[int]:
        cl, found = self._cl, (c_int * COLUMNS)()
        kernel = cl.make("clCreateKernel", program, b"dots")
        buffers = [
            cl.make("clCreateBuffer", self._context, c_uint64(COPY_HOST_PTR | WRITABLE), c_size_t(len(data)), data)
            for data in (columns, row, bytes(4 * COLUMNS))
        ]
        for i, buffer in enumerate(buffers):
            cl.do("clSetKernelArg", kernel, c_uint(i), c_size_t(8), byref(buffer))
        cl.do("clSetKernelArg", kernel, c_uint(3), c_size_t(4), byref(c_uint(WORDS)))
        size = (c_size_t * 1)(COLUMNS)
        cl.do("clEnqueueNDRangeKernel", self._queue, kernel, c_uint(1), None, size, None, c_uint(0), None, None)
        out = ctypes.cast(found, POINTER(c_int))
        cl.do("clEnqueueReadBuffer", self._queue, buffers[2], c_uint(1), c_size_t(0), c_size_t(4 * COLUMNS), out,
              c_uint(0), None, None)  # fmt: skip
        return list(found)


def look(source: str, say: Callable[[dict[str, Any]], None]) -> None:
    """All devices, one fact after the other."""
    trying = {"fact": "trying", "bytes": 0}
    say({**trying, "what": "gpu"})
    try:
        cl = Library()
        platforms = cl.every("clGetPlatformIDs")
    except (RefusedError, AttributeError) as error:
        say({"fact": "no-gpu", "why": str(error)})
        return
    index = 0
    for platform in platforms:
        name = cl.text("clGetPlatformInfo", platform, c_uint(PLATFORM_NAME))
        for device in cl.every("clGetDeviceIDs", platform, c_uint64(ALL)):
            texts = {key: cl.text("clGetDeviceInfo", device, c_uint(what)) for key, what in
                     (("device", NAME), ("driver", DRIVER))}  # fmt: skip
            is_cpu, most = bool(cl.number(device, TYPE) & CPU), cl.number(device, MOST_BYTES)
            say({"fact": "gpu", "index": index, "platform": name, **texts, "is_cpu": is_cpu, "max_buffer_bytes": most})
            opened: Device | None = None
            for form, number in FORMS.items():
                say({**trying, "what": form})
                try:
                    opened = opened or Device(cl, device)
                    why = opened.why_not(number, source)
                except RefusedError as error:
                    why = f"cannot be used: {error}"
                say({"fact": "dot", "index": index, "form": form, "right": not why, "why": why})
            index += 1
    if not index:
        say({"fact": "no-gpu", "why": "OpenCL's loader is there, but no driver with a device"})


def main() -> None:
    # Drivers print to standard output: facts alone go there.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(fact: dict[str, Any]) -> None:
        out.write(json.dumps(fact) + "\n")
        out.flush()

    say({"hvdc_probe": VERSION})
    look(sys.stdin.read() + KERNEL, say)
    say({"fact": "done"})
    os._exit(0)  # some drivers crash when they are unloaded


if __name__ == "__main__":
    main()
