"""One naming, in every command that reaches a device by adb."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest

from hvdc.cli.main import cli
from tests.adb_peer.fixtures import adb_program, adb_server, plugged
from tests.adb_peer.peer import Peer
from tests.adb_peer.server import AdbServer
from tests.commands import hvdc

__all__ = ["adb_program", "adb_server", "plugged"]

SERVER = {"--adb", "--adb-host", "--adb-port"}


def options(verb: str) -> dict[str, str | None]:
    """As they are written -> the name of their value."""
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    return {word: option.name for option in command.params for word in option.opts}


@pytest.mark.parametrize("verb", ["deploy", "run", "bench", "probe"])
def test_a_server_is_named_alike_everywhere(verb: str) -> None:
    found = options(verb)
    assert set(found) >= SERVER | {"--device"}
    assert (found["--adb-host"], found["--adb-port"]) == ("adb_host", "adb_port")


def test_host_is_this_machine_or_an_adb_server_and_never_both() -> None:
    assert (options("deploy")["--host"], options("deploy")["--port"]) == ("adb_host", "adb_port")
    assert (options("bench")["--host"], options("probe")["--host"]) == ("host", "host")
    assert "--host" not in options("run")
    assert set(options("doctor")) >= SERVER


@pytest.mark.parametrize("names", [("--adb-host", "--adb-port"), ("--host", "--port")])
def test_the_server_that_is_named_is_asked(
    plugged: Callable[..., Peer], adb_server: AdbServer, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    peer, port = plugged(), adb_server.environment()["ANDROID_ADB_SERVER_PORT"]
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "1")  # where there is none, and none may listen
    done = hvdc("deploy", "--list", "--device", peer.serial, names[0], "127.0.0.1", names[1], port)
    assert done.status == 0, done.err
    assert "nothing is deployed" in done.out


def test_auto_is_the_only_one(plugged: Callable[..., Peer], tmp_path: Path) -> None:
    plugged()
    assert hvdc("deploy", "--list", "--serial", "auto").status == 0
