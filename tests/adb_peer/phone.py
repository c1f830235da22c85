"""A folder that plays a phone: its files, its programs, what it says about itself.

A command's text has the phone's own places in it (``/data``, ``/vendor``, ``/sys``, …): these are looked for in the
folder. Its shell is Android's, mksh, where that is installed, and its programs are toybox's, as on a phone; else this
machine's.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.adb_peer.faults import Faults

PLACES = ("data", "vendor", "system", "odm", "sys", "proc/meminfo", "proc/uptime", "proc/version", "sdcard")
_PLACE = re.compile(rf"(?<![\w.\-/])/(?={'|'.join(PLACES)})(?=(?:{'|'.join(PLACES)})(?![\w-]))")

GALAXY_S25 = {
    "ro.product.manufacturer": "samsung",
    "ro.product.model": "SM-S931B",
    "ro.product.device": "pa1q",
    "ro.product.name": "pa1qxxx",
    "ro.product.cpu.abi": "arm64-v8a",
    "ro.product.cpu.abilist": "arm64-v8a",
    "ro.build.version.release": "15",
    "ro.build.version.sdk": "35",
    "ro.soc.manufacturer": "QTI",
    "ro.soc.model": "SM8750",
    "ro.board.platform": "sun",
    "ro.hardware": "qcom",
    "ro.build.fingerprint": "samsung/pa1qxxx/pa1q:15/AP3A.240905.015.A2/S931BXXU1AYA1:user/release-keys",
}
"""Properties as such a phone has them; written down from public listings, not from a phone."""

PROGRAMS = """
basename cat chmod cmp cp cut date dd df dirname du echo env false find flock grep head kill ln ls mkdir mktemp mv nproc
od pgrep printf ps pwd readlink realpath rm rmdir sed setsid sha256sum sleep sort stat sync tail tee test timeout touch
tr true uname uniq wc which whoami xargs yes
""".split()  # noqa: SIM905 - a list of words reads better
WRITING = ("chmod", "cp", "ln", "mkdir", "mktemp", "mv", "rm", "rmdir", "touch")


@dataclass
class Phone:
    """``root`` is filled when it is made. ``properties`` empty: a Linux device that speaks adb and is no Android.
    ``libraries``: file name -> what lies under it in ``/vendor/lib64``, where the phone's loader looks."""

    root: Path
    faults: Faults = field(default_factory=Faults)
    properties: dict[str, str] = field(default_factory=lambda: dict(GALAXY_S25))
    machine: str | None = "aarch64"
    """What ``uname -m`` says; None: what this machine is."""
    memory_available_bytes: int = 6 << 30
    free_bytes: int = 40 << 30
    capacity_bytes: int | None = None
    """What its storage holds, so that less is free the more lies there; None: ``free_bytes`` are, whatever happens."""
    libraries: dict[str, Path | None] = field(default_factory=lambda: {"libcdsprpc.so": None, "libOpenCL.so": None})
    hashes_fast: bool = False
    """Android's toybox hashes by instructions that phones have; the one for this machine has none. True: openssl's
    program, which takes longer to start, and has the same words, is used in place of it."""
    links_allowed: bool = True
    """Whether ``ln`` makes hard links; Android's SELinux rules forbid that to the shell's user."""

    def __post_init__(self) -> None:
        self.pushed_bytes = 0
        self._installed: object = None
        self.commands: list[str] = []
        self.when_sent: Callable[[str], None] = lambda name: None
        """Told the name of each file that the host begins to send."""
        for folder in ("data/local/tmp", "system/bin", "vendor/lib64", "sys/devices/soc0", "proc"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        for name, library in self.libraries.items():
            path = self.root / "vendor" / "lib64" / name
            path.unlink(missing_ok=True)
            path.write_bytes(b"") if library is None else path.symlink_to(library)
        soc = self.properties.get("ro.soc.model")
        if soc:
            (self.root / "sys/devices/soc0/machine").write_text(f"{soc}\n")
        self.refresh()

    def refresh(self) -> None:
        """Take over facts and switches that have changed."""
        (self.root / "proc/meminfo").write_text(
            "MemTotal:       11377048 kB\nMemFree:          412345 kB\n"
            f"MemAvailable:   {self.memory_available_bytes >> 10} kB\n"
        )
        self._installed = None
        self._install()

    @property
    def target(self) -> Path:
        """``/data/local/tmp``."""
        return self.root / "data" / "local" / "tmp"

    def place(self, name: str) -> Path:
        """Where a path of the phone lies. ``..`` cannot leave the folder."""
        return self.root / os.path.normpath("/" + name).lstrip("/")

    def banner(self) -> bytes:
        features = ["cmd", "stat_v2", "ls_v2", "fixed_push_mkdir"] + ([] if self.faults.old_shell else ["shell_v2"])
        names = [f"ro.product.{name}" for name in ("name", "model", "device")]
        listed = ";".join(f"{name}={self.properties.get(name, 'linux')}" for name in names)
        return f"device::{listed};features={','.join(features)}".encode()

    def start(self, command: str, *, mixed: bool) -> subprocess.Popen[bytes]:
        """Run a shell's command. ``mixed``: standard error goes where standard output goes."""
        self.commands.append(command)
        self._install()
        shell = shutil.which("mksh") or "/bin/sh"
        text = _PLACE.sub(f"{self.root}/", command)
        return subprocess.Popen(
            [shell, "-c", text or "exit"], cwd=self.root, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if mixed else subprocess.PIPE, env=self._environment(), start_new_session=True,
        )  # fmt: skip

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if name.startswith(("OCL_", "POCL_", "HVDC_STAND_IN"))
        }
        home = {name: os.environ[name] for name in ("HOME",) if name in os.environ}
        folders = {"PATH": f"{self.root}/system/bin", "LD_LIBRARY_PATH": f"{self.root}/vendor/lib64"}
        return kept | home | folders | {"TMPDIR": str(self.target), "ANDROID_DATA": f"{self.root}/data"}

    def _install(self) -> None:
        """Programs as the switches have it now."""
        faults = self.faults
        switches = (faults.missing, faults.read_only, faults.clock_off_s, faults.full_at_bytes)
        state = (*switches, self.hashes_fast, self.links_allowed, self.free_bytes, self.capacity_bytes)
        if state == self._installed:
            return
        self._installed = state
        folder = self.root / "system" / "bin"
        for name in (*PROGRAMS, "getprop", "toybox", "sh"):
            (folder / name).unlink(missing_ok=True)
            if name not in self.faults.missing and name not in ("getprop", "toybox", "sh"):
                self._install_program(folder / name)
        (folder / "sh").symlink_to(shutil.which("mksh") or "/bin/sh")
        if self.properties and "getprop" not in self.faults.missing:
            lines = "".join(f"[{name}]: [{value}]\n" for name, value in self.properties.items())
            one = "".join(f"{name}) echo {shlex.quote(value)};;\n" for name, value in self.properties.items())
            _script(folder / "getprop", f"if [ $# = 0 ]; then cat <<'END'\n{lines}END",
                    f'else case "$1" in\n{one}*) echo;;\nesac\nfi')  # fmt: skip

    def _install_program(self, path: Path) -> None:
        name = path.name
        real = _program(name)
        if real is None:
            return
        run = f'exec {" ".join(real)} "$@"'
        if name == "df":
            total_kib, free_kib = 230_000_000, self.free_bytes >> 10
            left = None if self.faults.hidden else self.faults.free_bytes()
            free_kib = free_kib if left is None else min(free_kib, left >> 10)
            free = str(free_kib)
            if self.capacity_bytes is not None:
                free = f"$(( {self.capacity_bytes >> 10} - $(du -sk {self.target} | cut -f 1) ))"
            _script(path, "echo 'Filesystem      1K-blocks     Used Available Use% Mounted on'",
                    f'echo "/dev/block/dm-53 {total_kib} {total_kib - free_kib} {free}  37% /data"')  # fmt: skip
        elif name == "sha256sum" and self.hashes_fast and (openssl := shutil.which("openssl")) is not None:
            _script(path, f'exec {openssl} dgst -sha256 -r "$@"')
        elif name == "uname" and self.machine is not None:
            _script(path, f'[ "$1" != -m ] || {{ echo {self.machine}; exit; }}', run)
        elif name == "date" and self.faults.clock_off_s:
            _script(path, f'exec {real[0]} -d "@$(( $({real[0]} +%s) + {self.faults.clock_off_s} ))" "$@"')
        elif name in WRITING and self.faults.read_only:
            _script(path, f'echo "{name}: $1: Read-only file system" >&2', "exit 1")
        elif name == "ln" and not self.links_allowed:
            refused = 'echo "ln: cannot create hard link: Permission denied" >&2; exit 1'
            _script(path, f'case "$1" in -s*) ;; *) {refused};; esac', run)
        else:
            path.symlink_to(real[0])


_OF_THIS_MACHINE = ("cat", "cp", "date")
"""Programs whose speed or options matter here."""


@functools.cache
def _toybox() -> tuple[str, frozenset[str]]:
    """Its path and the programs that it is; ``""`` where it is not installed."""
    path = shutil.which("toybox")
    if path is None:
        return "", frozenset()
    return path, frozenset(subprocess.run([path], capture_output=True, text=True, check=False).stdout.split())


def _program(name: str) -> list[str] | None:
    """The words that call a program."""
    toybox, names = _toybox()
    if name in names and name not in _OF_THIS_MACHINE:
        return [toybox, name]
    found = shutil.which(name)
    return None if found is None else [found]


def _script(path: Path, *lines: str) -> None:
    path.write_text("\n".join(["#!/bin/sh", f"PATH={path.parent}", *lines, ""]))
    path.chmod(0o755)
