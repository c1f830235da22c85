"""`python -m exporters.qnn.worker`: one task, JSON in on standard input, JSON out on standard output.

See `exporters.qnn.process`, which starts it. Whatever the native libraries print to standard output is sent to
standard error. The process leaves without running the libraries' destructors: by then every file is closed, and
they have nothing to add.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from exporters.qnn.errors import QnnError

_PR_SET_PDEATHSIG = 1
_ADDR_NO_RANDOMIZE, _ASK = 0x0040000, 0xFFFFFFFF
"""Source: personality(2)."""

_ANEW = "EXPORTERS_QNN_STARTED_ANEW"
_STACK_BYTES = 8 << 20
"""Linux's usual limit."""


def _compile(arguments: Mapping[str, Any]) -> Any:
    from exporters.qnn import session

    return session.compile_here(**arguments)


def _emulate(arguments: Mapping[str, Any]) -> Any:
    from exporters.qnn import session

    return session.emulate_here(**arguments)


def _reference(arguments: Mapping[str, Any]) -> Any:
    from exporters.qnn import session

    return session.reference_here(**arguments)


def _metadata(arguments: Mapping[str, Any]) -> Any:
    from exporters.qnn import abi

    return abi.read_here(**arguments)


def _toolchain(arguments: Mapping[str, Any]) -> Any:
    from exporters.qnn import abi

    return abi.toolchain_here(**arguments)


TASKS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "compile": _compile,
    "emulate": _emulate,
    "reference": _reference,
    "metadata": _metadata,
    "toolchain": _toolchain,
}
"""Each imports what it needs only when it is asked for: reading metadata needs no ONNX Runtime."""


def _die_with_the_parent() -> None:
    """The kernel kills this process when the one that started it is gone, and no core file is written."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _fix_addresses() -> bool:
    """Starts this program anew where the kernel loads libraries at the same addresses each time; False: not permitted.

    QAIRT 2.51 writes an address of its own library into the binaries of some graphs (ReduceMean over the channels at
    rank 5 is one), so with random addresses the same graph gives other bytes in every process.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    now = libc.personality(_ASK)
    if os.environ.get(_ANEW):
        return now != -1 and bool(now & _ADDR_NO_RANDOMIZE)
    if now != -1 and libc.personality(now | _ADDR_NO_RANDOMIZE) != -1:
        _, most = resource.getrlimit(resource.RLIMIT_STACK)  # the kernel lays libraries out below the largest stack
        if most == resource.RLIM_INFINITY or most >= _STACK_BYTES:
            resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES, most))
        os.environ |= {_ANEW: "1", "OPENBLAS_NUM_THREADS": "1"}  # stacks of NumPy's threads lie among the libraries
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606  # this very program
    return False  # a container's rules may forbid it


def _peak_rss_bytes() -> int:
    """High-water mark of this program's own resident memory. Source: proc(5), ``VmHWM`` in KiB."""
    status = Path("/proc/self/status").read_text("ascii", "replace")
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))


def main() -> None:
    """Reads the task, does it, writes what came of it, and leaves."""
    fixed = _fix_addresses()
    answer = os.dup(1)
    os.dup2(2, 1)
    _die_with_the_parent()
    try:
        request = json.loads(sys.stdin.buffer.read())
        status, value = "answered", TASKS[request["task"]](request["arguments"])
    except QnnError as error:
        status, value = "refused", error.fields()
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        status, value = "failed", f"{type(error).__name__}: {error}"
    reply = {"status": status, "value": value, "peak_rss_bytes": _peak_rss_bytes(), "fixed_addresses": fixed}
    with os.fdopen(answer, "wb") as stream:
        stream.write(json.dumps(reply).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
