"""A person's own copy of Qualcomm's QAIRT runtime: which of its libraries a device needs, and how old it is.

Nothing of it is part of an artifact or of hvdc. Neither the folders' names nor the libraries were tried on a phone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hvdc.artifact.manifest import Manifest
from hvdc.deploy.device_facts import QNN_HTP, DeviceFacts
from hvdc.errors import UsageError

_VERSION = re.compile(rb"v(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{6,20})")
_BUILD = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")

_CPU_FOLDERS = {
    (True, "aarch64"): ("aarch64-android",),
    (False, "aarch64"): ("aarch64-oe-linux-gcc11.2", "aarch64-ubuntu-gcc9.4", "aarch64-oe-linux-gcc9.3"),
    (False, "x86_64"): ("x86_64-linux-clang",),
}
"""(is Android, machine) -> folders below ``lib/`` of a QAIRT SDK."""


@dataclass(frozen=True)
class Qairt:
    """``version`` None: its libraries do not say."""

    libraries: tuple[Path, ...]
    version: tuple[int, int, int] | None


def library_names(hexagon_arch: str) -> dict[str, str]:
    """What a device needs of QAIRT -> whose library it is, ``cpu`` or ``dsp``. ``hexagon_arch``: ``v79``; ``""`` where
    there is no DSP."""
    of_dsp = {f"libQnnHtp{hexagon_arch.upper()}Stub.so": "cpu", f"libQnnHtp{hexagon_arch.upper()}Skel.so": "dsp"}
    return {QNN_HTP: "cpu", "libQnnSystem.so": "cpu"} | (of_dsp if hexagon_arch else {})


def find_qairt(folder: Path, manifest: Manifest, facts: DeviceFacts) -> Qairt:
    """The libraries for a device: ``folder`` is an SDK, or holds them all side by side.

    Raises UsageError: one is missing, or the runtime is older than what compiled the decoder.
    """
    arch = manifest.target.hexagon_arch
    names = library_names(arch if facts.is_android else "")
    places = {
        "cpu": [folder, *(folder / "lib" / name for name in _CPU_FOLDERS.get((facts.is_android, facts.machine), ()))],
        "dsp": [folder, folder / "lib" / f"hexagon-{arch}" / "unsigned"],
    }
    found = []
    for name, kind in names.items():
        path = next((place / name for place in places[kind] if (place / name).is_file()), None)
        if path is None:
            raise UsageError(
                f"the QAIRT runtime lacks {name}", where=f"--qairt {folder}",
                expected=f"an SDK, or a folder with {', '.join(names)}", fix="give the folder that holds lib/",
            )  # fmt: skip
        found.append(path)
    version = _version_of(found[0]) or _version_of(found[1])
    for binary in manifest.decoder.binaries if manifest.decoder is not None else ():
        due = _BUILD.match(binary.build_id)
        if version is not None and due is not None and version < tuple(map(int, due.groups())):
            raise UsageError(
                "the QAIRT runtime is older than the compiler of the artifact's decoder, whose binaries it refuses",
                where=f"--qairt {folder}", expected=f"{binary.build_id} or newer", found=".".join(map(str, version)),
                fix="take a newer SDK, or compile the decoder with an older one",
            )  # fmt: skip
    return Qairt(tuple(found), version)


def _version_of(library: Path) -> tuple[int, int, int] | None:
    """The build that a library names in its own text."""
    match = _VERSION.search(library.read_bytes())
    return (int(match[1]), int(match[2]), int(match[3])) if match else None
