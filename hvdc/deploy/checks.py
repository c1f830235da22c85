"""Does an artifact fit a device? Everything that can be said before it is sent."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hvdc.artifact.manifest import Manifest
from hvdc.artifact.runtime import Build, Runtime
from hvdc.deploy.device_facts import FASTRPC, OPENCL, DeviceFacts
from hvdc.deploy.errors import DeviceError

ANDROID, HEXAGON = "android-", "hexagon"
OLDEST_SDK = 30
"""The API level that the programs for Android are built for."""
NEEDED_PROGRAMS = {"sha256sum": "hashing what arrived", "mv": "putting files in place", "df": "asking for free space"}


@dataclass(frozen=True)
class Mismatch:
    """One thing in which a device does not fit. ``may_force``: --force goes on in spite of it."""

    what: str
    expected: str = ""
    found: str = ""
    fix: str = ""
    may_force: bool = False

    def text(self) -> str:
        """One line for people."""
        facts = ", ".join(filter(None, (f"expected {self.expected}" if self.expected else "",
                                        f"found {self.found}" if self.found else "")))  # fmt: skip
        fix = f" → {self.fix}" if self.fix else ""
        force = "; --force goes on without" if self.may_force else ""
        return f"{self.what}{f' ({facts})' if facts else ''}{fix}{force}"


def fitting_builds(runtime: Runtime | None, facts: DeviceFacts) -> tuple[Build, ...]:
    """The programs in an artifact that a device can execute, and the libraries for its DSP."""
    builds = runtime.builds if runtime is not None else ()
    own = [b for b in builds if b.machine == facts.machine and _for_its_system(b, facts)]
    dsp = [b for b in builds if b.target == HEXAGON and FASTRPC in facts.libraries]
    return (*own[:1], *dsp)


def _for_its_system(build: Build, facts: DeviceFacts) -> bool:
    return build.target != HEXAGON and build.target.startswith(ANDROID) == facts.is_android


def mismatches(
    manifest: Manifest, builds: tuple[Build, ...], facts: DeviceFacts, artifact: Path, *, has_qairt: bool
) -> Iterator[Mismatch]:
    """All that does not fit but for space, which `hvdc.deploy.room` knows after the device was looked at."""
    into = shlex.quote(str(artifact))
    for program, purpose in NEEDED_PROGRAMS.items():
        if program not in facts.programs:
            yield Mismatch(f"the device has no {program}, which is needed for {purpose}", found="not on its PATH",
                           fix="update its system")  # fmt: skip
    if facts.android_sdk is not None and facts.android_sdk < OLDEST_SDK:
        yield Mismatch("the device's Android is too old", f"11 (API {OLDEST_SDK}) or newer",
                       f"{facts.android_release} (API {facts.android_sdk})", "update the phone")  # fmt: skip
    own = [build for build in builds if build.target != HEXAGON]
    if not own:
        system = f"{facts.abi or facts.machine}, {'Android' if facts.is_android else 'Linux'}"
        yield Mismatch("the artifact has no runtime that this device can execute", system, fix=_build(facts, into))
    yield from _libraries(manifest, builds, facts, into)
    needed = manifest.totals.data_bytes - manifest.totals.decoder_bytes
    free = facts.memory_available_bytes
    if free is not None and free < needed:
        yield Mismatch("the device has too little free memory for the weights", f"{needed:,} bytes",
                       f"{free:,} bytes available", "close apps, or restart it", may_force=True)  # fmt: skip
    binaries = manifest.decoder.binaries if manifest.decoder is not None else ()
    if binaries and facts.is_android and not has_qairt:
        yield Mismatch(
            "the artifact's decoder needs the libraries of a QAIRT runtime, which are not part of it",
            f"one that is not older than {binaries[0].build_id}",
            fix="--qairt DIR names your copy of Qualcomm's QAIRT SDK; without it videos stay latents", may_force=True,
        )  # fmt: skip


def _libraries(manifest: Manifest, builds: tuple[Build, ...], facts: DeviceFacts, into: str) -> Iterator[Mismatch]:
    if FASTRPC not in facts.libraries:
        yield Mismatch(f"the device has no {FASTRPC}, by which programs reach the DSP", fix="take a Snapdragon phone",
                       may_force=True)  # fmt: skip
    else:
        arch = manifest.target.hexagon_arch
        names = {program.name for build in builds for program in build.programs}
        if not any(name.startswith(f"{HEXAGON}-{arch}-") for name in names):
            yield Mismatch(
                f"the artifact has no library for the phone's DSP ({arch})", f"{HEXAGON}-{arch}-libhvdc_skel.so",
                fix=f"hvdc runtime build --target hexagon --into {into}", may_force=True,
            )  # fmt: skip
    if manifest.calibration is not None and OPENCL not in facts.libraries:
        yield Mismatch(f"the device has no {OPENCL} that its programs may load, which is the way to its GPU",
                       fix="only the NPU will run", may_force=True)  # fmt: skip


def _build(facts: DeviceFacts, into: str) -> str:
    if facts.is_android:
        return f"hvdc runtime build --target android --ndk PATH --into {into}"
    return f"hvdc runtime build --target {'aarch64-linux' if facts.machine == 'aarch64' else 'host'} --into {into}"


def arch_mismatch(manifest: Manifest, asked: int | None, said: str) -> Mismatch | None:
    """``asked``: the architecture that the DSP itself has said; None: it could not be asked, ``said`` is why."""
    due = manifest.target.hexagon_arch
    if asked is None:
        return Mismatch("the phone's DSP cannot be asked what it is", found=said, may_force=True,
                        fix="restart the phone; `hvdc doctor` says more")  # fmt: skip
    if f"v{asked}" != due:
        return Mismatch("the artifact was compiled for another DSP", due, f"v{asked}",
                        "compile it with --target for this phone", may_force=True)  # fmt: skip
    return None


def refuse(found: list[Mismatch], *, force: bool, where: str) -> list[Mismatch]:
    """Raises DeviceError unless nothing is left, or all that is may be forced and is; returns what is forced."""
    hard = [m for m in found if not (force and m.may_force)]
    if not hard:
        return found
    first = hard[0]
    if len(hard) == 1:
        fix = first.fix + ("; or --force, to go on without" if first.may_force else "")
        raise DeviceError(first.what, where=where, expected=first.expected, found=first.found, fix=fix.lstrip("; "))
    raise DeviceError(
        f"the device does not fit the artifact in {len(hard)} points", where=where,
        found="; ".join(f"{i}. {m.text()}" for i, m in enumerate(hard, 1)),
        fix="nothing was sent; see each point" + (", or --force" if all(m.may_force for m in hard) else ""),
    )  # fmt: skip
