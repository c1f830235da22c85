"""A whole `hvdc probe`: the runtime is found, brought to a device if there is one, and what it says becomes a file."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.device_facts import DeviceFacts, read_facts
from hvdc.deploy.errors import DeviceError
from hvdc.deploy.layout import Layout
from hvdc.errors import HvdcError, UsageError
from hvdc.files import explaining, write_durably
from hvdc.measure.bench_run import check_table_path
from hvdc.measure.phone import DevicePlace, pushed_place
from hvdc.measure.places import HostPlace
from hvdc.measure.probe import PROGRAM, Probed, ProbeRequest, run_probe
from hvdc.measure.probe_journal import Asked, open_journal
from hvdc.measure.target_file import Described, describe, target_toml, unfinished_key
from hvdc.pipeline.cache import cache_folder, locked
from hvdc.pipeline.runtime_build import find_runtime, kept_runtime
from hvdc.pipeline.runtime_kept import HEXAGON, Runtime
from hvdc.progress import Progress
from hvdc.targets import TargetDescription, load_target, target_of_soc

BASE = "sm8750"
BOOT = "echo $(getprop ro.runtime.firstboot 2>/dev/null) $(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
"""Prints another text after each start of the device."""


@dataclass(frozen=True)
class Found:
    """``output`` None: no file is written."""

    probed: Probed
    described: Described
    output: Path | None

    def write(self) -> None:
        """The description's file, whole or not at all. Raises HvdcError."""
        if self.output is not None:
            with explaining(self.output):
                write_durably(self.output, target_toml(self.described).encode())

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "device": self.probed.what,
            "cut_short": self.probed.ended,
            "not_tried_again": [{"what": what, "bytes": size} for what, size in self.probed.facts.deadly],
            "notes": list(self.described.notes),
            "file": None if self.output is None else str(self.output),
            "target": self.described.target.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class Wish:
    """Of a person. ``base`` None: the SoC's own. ``forget``: what probes before have left. ``force``: replace
    ``output``, whatever it is."""

    request: ProbeRequest
    base: str | None = None
    output: Path | None = None
    forget: bool = False
    force: bool = False


def probe_host(wish: Wish, progress: Progress, say: Callable[[str], None]) -> Found:
    """This machine. Raises HvdcError where nothing was learnt."""
    start = load_target(wish.base or BASE)
    runtime = find_runtime("host", progress, say)
    place = HostPlace(runtime, None, None)
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    asked = Asked("this machine", place.what, boot, _identity(runtime), _options(wish.request))
    return _probe(wish, place, None, asked, start, None, say)


def probe_device(
    wish: Wish, device: AdbDevice, layout: Layout, progress: Progress, say: Callable[[str], None]
) -> Found:
    """A device: the program, and what its DSP would load, is sent there and removed afterwards.

    Raises HvdcError where nothing was learnt; DeviceError: there is no program for it, or it is lost before the first
    fact.
    """
    facts = read_facts(device, layout.target)
    start = base_of(facts, wish.base)
    runtime = find_runtime(preset_for(facts), progress, say)
    files, programs = [runtime.folder / PROGRAM], [runtime]
    if (skels := kept_runtime(HEXAGON)) is not None:
        files += [skels.folder / name for name in skels.programs]
        programs.append(skels)
    elif facts.is_android:
        say(f"without `hvdc runtime build --target {HEXAGON}` the phone's DSP has nothing to load and is not asked")
    boot, identity = device.script(BOOT).text.strip(), _identity(*programs)
    asked = Asked(device.serial, facts.text(), boot, identity, _options(wish.request))
    _check_unfinished(wish, asked)
    with pushed_place(device, layout, facts, files, progress) as place:
        say(f"probing {place.what}")
        return _probe(wish, place, place.skels, asked, start, facts, say)


def _probe(
    wish: Wish, place: HostPlace | DevicePlace, skels: str | None, asked: Asked, start: TargetDescription,
    facts: DeviceFacts | None, say: Callable[[str], None],
) -> Found:  # fmt: skip
    _check_unfinished(wish, asked)
    folder, today = cache_folder("probe"), datetime.datetime.now().astimezone().date().isoformat()

    def found(probed: Probed) -> Found:
        return Found(probed, describe(probed, start, facts), wish.output)

    def learnt(probed: Probed) -> None:
        with contextlib.suppress(HvdcError):  # at the end it is tried once more, and said
            found(probed).write()

    with locked(folder / asked.key, say):
        journal = open_journal(folder, asked, today, say, forget=wish.forget)
        return found(run_probe(wish.request, place, skels, journal, say, learnt))


def _identity(*runtimes: Runtime) -> str:
    """Of programs and libraries."""
    texts = [f"{name} {digest}" for runtime in runtimes for name, digest in sorted(runtime.sha256.items())]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _options(request: ProbeRequest) -> tuple[str, ...]:
    """Those that decide which engines are asked."""
    return (request.opencl_device or "", request.fastrpc or "")


def check_output(output: Path | None, *, force: bool) -> None:
    """Before anything is asked; a file that a probe has not finished may be gone on with. Raises UsageError."""
    if output is not None and output.is_file() and unfinished_key(_head(output)) is not None:
        force = True
    check_table_path(output, force=force)


def _check_unfinished(wish: Wish, asked: Asked) -> None:
    """Raises UsageError: the output is an unfinished file of another device."""
    if wish.output is None or wish.force or not wish.output.is_file():
        return
    if unfinished_key(_head(wish.output)) != asked.key:
        raise UsageError(
            "the output is of another device, whose probe has not come to its end", where=str(wish.output),
            found=f"this device: {asked.what}", fix="choose another -o, or --force to replace it",
        )  # fmt: skip


def _head(path: Path) -> str:
    with explaining(path), path.open(encoding="utf-8", errors="replace") as file:
        return file.read(200)


def preset_for(facts: DeviceFacts) -> str:
    """The runtime's preset whose programs a device executes. Raises DeviceError."""
    if facts.is_android and facts.machine == "aarch64":
        return "android-arm64"
    if not facts.is_android and facts.machine == platform.machine():
        return "host"
    if not facts.is_android and facts.machine == "aarch64":
        return "aarch64-linux"
    raise DeviceError("the runtime is not built for this device", expected="arm64-v8a, or Linux", found=facts.text())


def base_of(facts: DeviceFacts, base: str | None) -> TargetDescription:
    """What is not measured is taken from here: as given, the SoC's own description, or the one that there is."""
    if base is not None:
        return load_target(base)
    return target_of_soc(facts.soc) or load_target(BASE)
