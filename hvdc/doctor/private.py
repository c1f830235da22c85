"""A report is pasted where everybody reads it: what says who and where somebody is does not go into it."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hvdc.doctor.check import Check

_HOMES = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[/\\](?:home|Users)[/\\][^/\\\s:;,'\"()]+")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NOBODY = frozenset({"root", "nobody", "user", "localhost"})
"""Names that say nothing about anybody, and stand for other things in messages."""


def shortened(serial: str) -> str:
    """A serial that its owner recognises and nobody else can use: its ends. A device on a network is only that."""
    if ":" in serial or re.fullmatch(r"[\d.]+", serial):
        return "on the network"
    return serial if serial.startswith("emulator-") else f"{serial[:2]}…{serial[-2:]}" if len(serial) > 5 else "…"


def without_names(text: str, names: Iterable[str] | None = None, home: Path | None = None) -> str:
    """``text`` with ``~`` for home folders, this user's and others', USER and HOST for this user's and machine's names.

    ``names`` are what is replaced, the user's first; by default, this user's and this machine's.
    """
    home = _home() if home is None else home
    for folder in {str(home), str(home.resolve())} if home is not None else ():
        if len(folder) > 1:
            text = re.sub(rf"(?<![\w.]){re.escape(folder)}(?![\w.-])", "~", text)
    text = _HOMES.sub("~", text)
    for name, instead in zip(own_names() if names is None else names, ("USER", "HOST"), strict=False):
        if name and name.lower() not in _NOBODY:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", instead, text)
    return text


def made_public(checks: Iterable[Check]) -> list[Check]:
    """The same facts without names, each on one line."""
    names, home = own_names(), _home()

    def plain(text: str) -> str:
        printable = "".join(c if c.isprintable() else " " for c in _COLOURS.sub(" ", text))
        return without_names(" ".join(printable.split()), names, home)

    return [replace(c, found=plain(c.found), needed_for=plain(c.needed_for), fix=plain(c.fix)) for c in checks]


def own_names() -> tuple[str, str]:
    """Of this user and of this machine; "" for what nobody knows."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user without a name
        user = ""
    return user, socket.gethostname()


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:
        return None
