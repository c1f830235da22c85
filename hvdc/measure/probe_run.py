"""A whole `hvdc probe`: the runtime is found, brought to a device if there is one, and what it says becomes a file."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.device_facts import DeviceFacts, read_facts
from hvdc.deploy.errors import DeviceError
from hvdc.deploy.layout import Layout
from hvdc.files import explaining, write_durably
from hvdc.measure.phone import pushed_place
from hvdc.measure.places import HostPlace
from hvdc.measure.probe import PROGRAM, Probed, ProbeRequest, run_probe
from hvdc.measure.target_file import Described, describe, target_toml
from hvdc.pipeline.progress import Progress
from hvdc.pipeline.runtime_build import find_runtime, kept_runtime
from hvdc.pipeline.runtime_kept import HEXAGON
from hvdc.targets import TargetDescription, load_target, target_names

BASE = "sm8750"


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
            "notes": list(self.described.notes),
            "file": None if self.output is None else str(self.output),
            "target": self.described.target.model_dump(mode="json"),
        }


def probe_host(
    request: ProbeRequest, base: str | None, output: Path | None, progress: Progress, say: Callable[[str], None]
) -> Found:
    """This machine. Raises HvdcError where nothing was learnt."""
    start = load_target(base or BASE)
    runtime = find_runtime("host", progress, say)
    probed = run_probe(request, HostPlace(runtime, None, None), None, say)
    return Found(probed, describe(probed, start, None), output)


def probe_device(
    request: ProbeRequest, device: AdbDevice, layout: Layout, base: str | None, output: Path | None,
    progress: Progress, say: Callable[[str], None],
) -> Found:  # fmt: skip
    """A device: the program, and what its DSP would load, is sent there and removed afterwards.

    Raises HvdcError where nothing was learnt; DeviceError: there is no program for it, or it is lost before the first
    fact.
    """
    facts = read_facts(device, layout.target)
    start = base_of(facts, base)
    runtime = find_runtime(preset_for(facts), progress, say)
    files = [runtime.folder / PROGRAM]
    if (skels := kept_runtime(HEXAGON)) is not None:
        files += [skels.folder / name for name in skels.programs]
    elif facts.is_android:
        say(f"without `hvdc runtime build --target {HEXAGON}` the phone's DSP has nothing to load and is not asked")
    with pushed_place(device, layout, facts, files, progress) as place:
        say(f"probing {place.what}")
        probed = run_probe(request, place, place.skels, say)
    return Found(probed, describe(probed, start, facts), output)


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
    return load_target(facts.soc.lower() if facts.soc.lower() in target_names() else BASE)
