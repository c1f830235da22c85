"""What is pasted into a bug report says nothing about who and where somebody is."""

from __future__ import annotations

import getpass
import socket
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdc import doctor
from hvdc.doctor.check import Check, Probe
from hvdc.doctor.private import made_public, shortened, without_names
from tests.commands import hvdc

NAMES = ("ada", "lovelace-laptop")
HOME = Path("/srv/people/ada")


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("/srv/people/ada/x/y is odd", "~/x/y is odd"),
        ("no /srv/people/ada: nothing", "no ~: nothing"),
        ("/srv/people/adalbert/x", "/srv/people/adalbert/x"),
        ("/home/grace/ndk and /home/ada/b", "~/ndk and ~/b"),
        ("/Users/Grace Hopper/x", "~ Hopper/x"),
        (r"C:\Users\grace\x", r"~\x"),
        ("built by ada on lovelace-laptop", "built by USER on HOST"),
        ("adapter of Canada", "adapter of Canada"),
        ("/tmp/pytest-of-ada/0", "/tmp/pytest-of-USER/0"),
        ("no user, no home", "no user, no home"),
    ],
)
def test_names_and_homes_are_replaced(text: str, public: str) -> None:
    assert without_names(text, NAMES, HOME) == public


def test_root_is_nobody() -> None:
    assert without_names("/usr/root is the root", ("root", "localhost"), Path("/root")) == "/usr/root is the root"


@given(st.text(string.ascii_letters + string.digits, min_size=6, max_size=24))
def test_a_serial_cannot_be_used(serial: str) -> None:
    if serial.startswith("emulator-") or serial.isdigit():
        return
    short = shortened(serial)
    assert serial not in short
    assert len(short) == 5
    assert (short[:2], short[-2:]) == (serial[:2], serial[-2:])


@pytest.mark.parametrize(
    "serial", ["192.168.1.20:5555", "[fe80::1]:5555", "adb-R5C._adb-tls-connect._tcp.:1", "10.0.0.7"]
)
def test_where_a_phone_is_is_not_said(serial: str) -> None:
    assert shortened(serial) == "on the network"


@pytest.mark.parametrize("serial", ["", "a", "abcde"])
def test_short_serials_are_not_shown_at_all(serial: str) -> None:
    assert shortened(serial) == "…"


def test_every_text_of_a_check_is_made_public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdc.doctor.private.own_names", lambda: NAMES)
    check = Check("x", "missing", "ada's\nfile", "ada's work", "ask\x1b[2Jada")
    assert made_public([check]) == [Check("x", "missing", "USER's file", "USER's work", "ask USER")]


def test_no_report_has_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A person whose home, user and machine are in everything that tools say."""
    home = tmp_path / "home" / "ada"
    (home / "tools").mkdir(parents=True)
    program = home / "tools" / "clang-22"
    program.write_text(f"#!/bin/sh\necho clang of ada at lovelace-laptop in {home}/llvm\n")
    program.chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(home / "tools"))
    monkeypatch.setenv("ANDROID_NDK_ROOT", str(home / "ndk"))
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(socket, "gethostname", lambda: "lovelace-laptop")
    done = hvdc("doctor", "--json")
    assert "clang of USER at HOST in ~/llvm" in done.out
    for name in ("ada", "lovelace", str(home), "home/ada"):
        assert name not in done.out.replace("adapter", "").replace("readable", "")


def test_the_token_is_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = "s3cr3t" * 6
    for text in (f"[api]\napi_token {secret}\n", f"api_token = {secret}\n", f"[api]\napi_token = {secret}\n", "\x00"):
        file = tmp_path / "client.ini"
        file.write_text(text)
        monkeypatch.setenv("QAIHUB_CLIENT_INI", str(file))
        (check,) = next(probe for probe in doctor.engines.probes() if probe.names == "AI Hub token").ask()
        assert secret not in "".join((check.found, check.needed_for, check.fix))
        assert check.status in ("ok", "missing")
        assert check.status == "ok" or check.fix
    file.write_text(f"api_token {secret}\n")
    done = hvdc("doctor", "--json")
    assert secret not in done.out + done.err


def test_a_failing_check_is_made_public_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> list[Check]:
        raise OSError("/home/grace/x cannot be read")

    monkeypatch.setattr(doctor.engines, "probes", lambda: [Probe("odd", "a test", ask)])
    assert "OSError: ~/x cannot be read" in hvdc("doctor").out
