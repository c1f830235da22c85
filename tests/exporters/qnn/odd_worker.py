"""A worker with tasks that misbehave, for `test_process`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

from exporters.qnn import worker
from exporters.qnn.errors import QnnError


def noise(arguments):
    """Prints to both streams from Python and from C, as the native libraries do."""
    print("python on stdout")
    libc = ctypes.CDLL(None)
    libc.puts(b"C on stdout <E> wanted")
    libc.fflush(None)
    os.write(2, b"\x1b[0;93mcoloured <E>\x1b[m\n\n" + b"x" * 100_000 + b"\nno end of line")
    return arguments


def flood(arguments):
    line = b"0123456789abcdef" * 8 + b"\n"
    for _ in range(arguments["lines"]):
        os.write(2, line)


def grow(arguments):
    blocks = []
    while True:
        blocks.append(bytearray(b"\1" * (8 << 20)))
        time.sleep(0.005)


def refuse(arguments):
    raise QnnError("no", where="here", fix="go")


def leave(arguments):
    print("last words", file=sys.stderr, flush=True)
    os._exit(arguments["status"])


def orphan(arguments):
    """Starts a child that would live on and holds the streams open."""
    if not os.fork():
        time.sleep(60)
    time.sleep(60)


def heir(arguments):
    """Leaves a child behind that holds the streams open for a while."""
    if not os.fork():
        time.sleep(3)
        os._exit(0)
    return "done"


worker.TASKS.update(
    {
        "noise": noise,
        "flood": flood,
        "grow": grow,
        "refuse": refuse,
        "leave": leave,
        "orphan": orphan,
        "heir": heir,
        "sleep": lambda arguments: time.sleep(60),
        "fail": lambda arguments: 1 // 0,
        "crash": lambda arguments: os.kill(os.getpid(), signal.SIGSEGV),
    }
)

if __name__ == "__main__":
    worker.main()
