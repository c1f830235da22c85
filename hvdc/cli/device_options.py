"""Options of all commands that reach a device by adb."""

from __future__ import annotations

from pathlib import Path

import click

from hvdc.cli.shared_options import Command
from hvdc.deploy.adb import Adb, AdbDevice
from hvdc.deploy.adb_program import find_adb
from hvdc.deploy.devices import AUTO

_SERIAL = click.option("--serial", metavar="SERIAL", help="Which device.  [default: ANDROID_SERIAL, or the only one]")
_ADB = (
    click.option("--adb", type=click.Path(path_type=Path), metavar="PATH",
                 help="The adb to use.  [default: on PATH, or that of the package adbutils]"),
    click.option("--host", metavar="NAME", help="Where adb's server runs.  [default: here]"),
    click.option("--port", type=click.IntRange(1, 65535), help="Its port.  [default: 5037]"),
)  # fmt: skip


def adb_options(command: Command) -> Command:
    """``--adb``, ``--host``, ``--port``."""
    for option in reversed(_ADB):
        command = option(command)
    return command


def device_options(command: Command) -> Command:
    """``--serial`` and `adb_options`."""
    return _SERIAL(adb_options(command))


def server_options(command: Command) -> Command:
    """``--adb``, ``--adb-host``, ``--adb-port``: of commands whose ``--host`` is this machine."""
    for option in reversed(
        (
            _ADB[0],
            click.option("--adb-host", metavar="NAME", help="Where adb's server runs.  [default: here]"),
            click.option("--adb-port", type=click.IntRange(1, 65535), help="Its port.  [default: 5037]"),
        )
    ):
        command = option(command)
    return command


def chosen(serial: str | None) -> str | None:
    """Of ``--device SERIAL|auto``: None is the only one, or ANDROID_SERIAL's."""
    return None if serial == AUTO else serial


def open_device(adb: Path | None, host: str | None, port: int | None, serial: str | None) -> AdbDevice:
    """The device that is meant. Raises DeviceError."""
    return Adb(find_adb(adb), host=host, port=port).device(serial)
