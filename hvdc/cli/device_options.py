"""Options of all commands that reach a device by adb."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from hvdc.cli.shared_options import Command, with_options
from hvdc.deploy.adb import Adb, AdbDevice
from hvdc.deploy.adb_program import find_adb
from hvdc.deploy.devices import AUTO

_SERIAL = click.option("--serial", "--device", "serial", metavar="SERIAL",
                       help="Which device.  [default: ANDROID_SERIAL, or the only one]")  # fmt: skip


def _server(*, short: bool) -> tuple[Callable[[Command], Command], ...]:
    """``short``: also under the names without ``adb-``, which other commands use for this machine."""
    host, port = (("--host",), ("--port",)) if short else ((), ())
    return (
        click.option("--adb", type=click.Path(path_type=Path), metavar="PATH",
                     help="The adb to use.  [default: on PATH, or that of the package adbutils]"),
        click.option("--adb-host", *host, "adb_host", metavar="NAME",
                     help="Where adb's server runs.  [default: here]"),
        click.option("--adb-port", *port, "adb_port", type=click.IntRange(1, 65535), help="Its port.  [default: 5037]"),
    )  # fmt: skip


def adb_options(command: Command) -> Command:
    """``--adb``, ``--adb-host``, ``--adb-port``: of commands whose ``--host`` is this machine, or that have none."""
    return with_options(_server(short=False), command)


def device_options(command: Command) -> Command:
    """``--serial`` and `adb_options`, of which ``--host`` and ``--port`` are other names."""
    return _SERIAL(with_options(_server(short=True), command))


def open_device(adb: Path | None, host: str | None, port: int | None, serial: str | None) -> AdbDevice:
    """The device that is meant; ``serial`` None or ``auto``: the only one, or ANDROID_SERIAL's. Raises DeviceError."""
    return Adb(find_adb(adb), host=host, port=port).device(None if serial == AUTO else serial)
