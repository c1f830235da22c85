"""Python, packages, memory and disk of this machine."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from hvdc.doctor.check import Check, Probe
from hvdc.pipeline.machine import free_memory_bytes, memory_bytes

OWN_PACKAGES = ("hvdc", "exporters", "quant", "layouts", "device_runtime")
"""Import names that the hvdc distribution installs."""

LIBRARIES = {
    "numpy": "compiling",
    "safetensors": "compiling",
    "pydantic": "compiling",
    "click": "the command line",
    "rich": "the command line",
    "torch": "calibrating, evaluating, reading .pth files",
    "transformers": "embedding prompts",
    "diffusers": "decoding frames for evaluation",
    "av": "writing videos",
    "matplotlib": "drawing figures",
    "scikit-image": "SSIM of frames",
    "onnx": "exporting the decoder",
    "qai-hub": "compiling the decoder in Qualcomm's cloud",
}


def probes() -> list[Probe]:
    return [
        Probe("python", "everything", _python),
        Probe("packages", "everything", _owners),
        Probe("libraries", "everything", _libraries),
        Probe("memory", "compiling and running", _memory),
        Probe("disk", "compiling and running", _disk),
    ]


def _python() -> Iterator[Check]:
    from hvdc import __version__

    yield Check("hvdc", "ok", __version__)
    yield Check("system", "ok", _system())
    good = sys.version_info >= (3, 11)
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Check("python", "ok" if good else "error", found, "everything", "install Python 3.11 or newer")


def _system() -> str:
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        name = ""
    libc = " ".join(filter(None, platform.libc_ver()))
    return ", ".join(filter(None, (name or platform.system(), f"kernel {platform.release()}", libc)))


def foreign_owners(names: tuple[str, ...] = OWN_PACKAGES) -> dict[str, list[str]]:
    """Import name -> other distributions that install a top-level package of that name."""
    owners: dict[str, list[str]] = {}
    for distribution in metadata.distributions():
        try:
            name = str(distribution.metadata["Name"])
        except (UnicodeDecodeError, KeyError, TypeError):  # left behind by a broken uninstallation: owns nothing
            continue
        if name == "hvdc":
            continue
        tops = {Path(str(f)).parts[0].removesuffix(".py") for f in distribution.files or ()}
        for package in set(names) & tops:
            owners.setdefault(package, []).append(name)
    return owners


def foreign_places(names: tuple[str, ...] = OWN_PACKAGES) -> dict[str, str]:
    """Import name -> file that Python would import instead of ours, which lies beside this package."""
    home = Path(__file__).resolve().parents[2]
    places = {}
    for name in names:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin) if spec is not None and spec.origin is not None else None
        if origin is None or origin.resolve().parents[1] != home:
            places[name] = str(origin or "nothing")
    return places


def _owners() -> Iterator[Check]:
    foreign, places = foreign_owners(), foreign_places()
    for package in OWN_PACKAGES:
        others = ", ".join(sorted(foreign.get(package, ())))
        if package in places:
            yield Check(
                f"package {package}",
                "error",
                f"Python finds {places[package]} instead of ours",
                "everything: another program's code would be imported",
                "remove that folder from PYTHONPATH or the working directory, or use a virtual environment",
            )
            continue
        yield Check(
            f"package {package}",
            "error" if others else "ok",
            f"also installed by {others}" if others else "ours alone",
            "everything: one of the two would import the other's code",
            f"use a virtual environment without {others}",
        )


def _libraries() -> Iterator[Check]:
    for name, needed_for in LIBRARIES.items():
        try:
            yield Check(name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            essential = needed_for in ("compiling", "the command line")
            yield Check(name, "error" if essential else "missing", "not installed", needed_for, f"pip install {name}")


def _memory() -> Iterator[Check]:
    total, free = memory_bytes() / (1 << 30), free_memory_bytes() / (1 << 30)
    cores = len(os.sched_getaffinity(0))
    yield Check("memory", "ok", f"{total:.1f} GiB, {free:.1f} GiB of it available; {cores} cores usable")


def _disk() -> Iterator[Check]:
    free = shutil.disk_usage(Path.cwd()).free
    yield Check("disk", "ok", f"{free / (1 << 30):.1f} GiB free here")
