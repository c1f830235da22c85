"""adb, the phones that it sees, the maker's libraries that programs find on them, and what of hvdc is there.

None is written to.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hvdc.deploy.adb import Adb
from hvdc.deploy.adb_program import find_adb
from hvdc.deploy.device_facts import FASTRPC, OPENCL, DeviceFacts, read_facts
from hvdc.deploy.devices import UNUSABLE, DeviceState
from hvdc.deploy.errors import DeviceError
from hvdc.deploy.layout import TARGET, Layout
from hvdc.doctor.check import Check, Probe
from hvdc.doctor.deployed import deployed
from hvdc.doctor.private import shortened

_NEEDED_FOR = "hvdc deploy, and bench, probe and run on a phone"
NEW_SERVER_S = 1.0
PHONE_S = 5.0
"""For what one phone is asked; all are asked at once."""

LIBRARIES = {
    FASTRPC: ("the NPU of this phone", "only a Snapdragon phone has it: is it one?"),
    OPENCL: ("the GPU of this phone", "its maker does not let programs load it: hvdc run --mode npu"),
}
"""Library -> what it is needed for, what to do."""


@dataclass(frozen=True)
class Server:
    """The adb to use, and where its server runs; None: as it is found, and adb's own default."""

    adb: Path | None = None
    host: str | None = None
    port: int | None = None


def probes(server: Server = Server()) -> list[Probe]:
    return [Probe("adb", _NEEDED_FOR, lambda: _adb(server))]


def _adb(server: Server) -> Iterator[Check]:
    try:
        program = find_adb(server.adb)
    except DeviceError as error:
        yield Check("adb", "missing", _text(error), _NEEDED_FOR, error.fix)
        return
    yield Check("adb", "ok", program.text())
    adb = Adb(program, host=server.host, port=server.port)
    was_running = server.host is not None or _server_runs(server.port)
    try:
        yield from _phones(adb, was_running)
    finally:
        if not was_running:  # whoever only asks leaves no server behind
            with contextlib.suppress(DeviceError):
                adb.run("kill-server", timeout_s=PHONE_S)


def _server_runs(port: int | None = None) -> bool:
    """Whether somebody listens where adb's client looks for its server. One at another place is somebody's own."""
    if port is None and (os.environ.get("ADB_SERVER_SOCKET") or os.environ.get("ANDROID_ADB_SERVER_ADDRESS")):
        return True
    default = os.environ.get("ANDROID_ADB_SERVER_PORT", "")
    default_port = int(default) if default.isdigit() else 5037
    try:
        with socket.create_connection(("127.0.0.1", default_port if port is None else port), timeout=1):
            return True
    except (OSError, OverflowError):
        return False


def _listed(adb: Adb, was_running: bool) -> list[DeviceState]:
    """A server that has just been started finds its devices only after a while."""
    end_s = time.monotonic() + (0.0 if was_running else NEW_SERVER_S)
    while not (devices := adb.devices()) and time.monotonic() < end_s:
        time.sleep(0.1)
    return devices


def _phones(adb: Adb, was_running: bool) -> Iterator[Check]:
    try:
        devices = _listed(adb, was_running)
    except DeviceError as error:
        yield Check("phones", "unknown", _text(error), _NEEDED_FOR, error.fix)
        return
    if not devices:
        fix = "plug one in, enable USB debugging in its developer options, and accept this computer on it"
        yield Check("phones", "missing", "adb sees none", _NEEDED_FOR, fix)
    for checks in _asked(adb, devices):
        yield from checks


def _asked(adb: Adb, devices: list[DeviceState]) -> list[list[Check]]:
    """All at once, so that one that does not answer costs no more than its own limit."""
    answers: list[list[Check] | None] = [None] * len(devices)

    def ask(i: int) -> None:
        name = _name(devices[i])
        try:
            answers[i] = list(_phone(adb, devices[i]))
        except Exception as error:  # the report is of all others, too
            found = f"the check itself failed: {type(error).__name__}"
            answers[i] = [Check(name, "unknown", found, _NEEDED_FOR, "report this line")]

    threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(len(devices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PHONE_S)
    late = "it does not answer"
    return [
        [Check(_name(device), "unknown", late, _NEEDED_FOR, "is it awake? unplug it and plug it in again")]
        if (answer := answers[i]) is None
        else answer
        for i, device in enumerate(devices)
    ]


def _phone(adb: Adb, state: DeviceState) -> Iterator[Check]:
    name = _name(state)
    if state.state != "device":
        found, fix = UNUSABLE.get(state.state, (f"it is in the state {state.state!r}", "restart it into Android"))
        yield Check(name, "missing", found, _NEEDED_FOR, fix)
        return
    try:
        device = adb.device(state.serial)
        facts = read_facts(device, TARGET)
    except DeviceError as error:
        yield Check(
            name, "unknown", _text(error).replace(state.serial, shortened(state.serial)), _NEEDED_FOR, error.fix
        )
        return
    parts = [facts.text()]
    if facts.memory_available_bytes is not None:
        parts.append(f"{facts.memory_available_bytes / (1 << 30):.1f} GiB of memory available")
    if facts.free_bytes is not None:
        parts.append(f"{facts.free_bytes / (1 << 30):.1f} GiB free")
    yield Check(name, "ok", ", ".join(parts))
    yield from _libraries(facts, name)
    try:
        yield from deployed(device, facts, Layout(TARGET), name)
    except DeviceError as error:
        found = _text(error).replace(state.serial, shortened(state.serial))
        yield Check(f"{name} artifacts", "unknown", found, _NEEDED_FOR, error.fix)


def _libraries(facts: DeviceFacts, name: str) -> Iterator[Check]:
    for library, (needed_for, fix) in LIBRARIES.items():
        path = facts.libraries.get(library)
        if path is None:
            yield Check(f"{name} {library}", "missing", "not where a program's loader looks", needed_for, fix)
        else:
            yield Check(f"{name} {library}", "ok", path)


def _name(state: DeviceState) -> str:
    return f"phone {shortened(state.serial)}"


def _text(error: DeviceError) -> str:
    return f"{error.what}: {error.found}" if error.found else error.what
