"""What this machine has and lacks for hvdc, as facts."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from ctypes.util import find_library
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from hvdc.pipeline.machine import memory_bytes

Status = Literal["ok", "missing", "error"]

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

PROGRAMS = {
    "cc": ("building the device runtime for this machine", "apt-get install gcc libc6-dev"),
    "cmake": ("building the device runtime", "apt-get install cmake, or pip install cmake"),
    "make": ("building the device runtime", "apt-get install make"),
    "clang": ("fuzzing the C reader", "apt-get install clang"),
    "clang-22": ("building libhvdc_skel.so for a phone's DSP", "apt-get install clang-22"),
    "ld.lld-22": ("building libhvdc_skel.so for a phone's DSP", "apt-get install lld-22"),
    "qemu-hexagon": ("executing the DSP's code in tests", "apt-get install qemu-user"),
}


@dataclass(frozen=True)
class Check:
    """One fact. ``missing`` disables only what it is needed for; ``error`` breaks hvdc itself."""

    name: str
    status: Status
    found: str
    needed_for: str = ""
    fix: str = ""


def examine() -> list[Check]:
    """All checks, in order of importance. Imports none of the libraries, so it is quick."""
    return [_python(), *_owners(), *_libraries(), *_programs(), _opencl(), _qnn(), _memory(), _disk()]


def _python() -> Check:
    good = sys.version_info >= (3, 11)
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check("python", "ok" if good else "error", found, "everything", "install Python 3.11 or newer")


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
    home = Path(__file__).resolve().parents[1]
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


def _qnn() -> Check:
    """The libraries are looked for, not loaded."""
    from exporters.qnn.available import problems  # here, because another program's folder may hide ours

    found = problems()
    if not found:
        return Check("qnn", "ok", f"onnxruntime-qnn {metadata.version('onnxruntime-qnn')}", "compiling the decoder")
    return Check("qnn", "missing", str(found[0]), "compiling and emulating the decoder", "pip install 'hvdc[qnn]'")


def _programs() -> Iterator[Check]:
    for name, (needed_for, fix) in PROGRAMS.items():
        path = shutil.which(name)
        if path is None:
            yield Check(name, "missing", "not on PATH", needed_for, fix)
            continue
        try:
            output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
            yield Check(name, "ok", output.splitlines()[0] if output else path)
        except (OSError, subprocess.SubprocessError) as error:
            yield Check(name, "missing", f"{path} does not run: {error}", needed_for, fix)


def _opencl() -> Check:
    """The loader and the drivers that it is told of are looked for, not loaded."""
    folder = Path(os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors")
    drivers = sorted(path.name for path in folder.glob("*.icd")) if folder.is_dir() else []
    needed_for, fix = "hvdc run in modes hetero, gpu and dp", "apt-get install pocl-opencl-icd, or your GPU's driver"
    if find_library("OpenCL") is None:
        return Check("OpenCL", "missing", "there is no libOpenCL", needed_for, fix)
    if not drivers:
        return Check("OpenCL", "missing", f"there is no driver in {folder}", needed_for, fix)
    return Check("OpenCL", "ok", ", ".join(drivers))


def _memory() -> Check:
    total = memory_bytes()
    return Check("memory", "ok", f"{total / (1 << 30):.1f} GiB, {len(os.sched_getaffinity(0))} cores usable")


def _disk() -> Check:
    free = shutil.disk_usage(Path.cwd()).free
    return Check("disk", "ok", f"{free / (1 << 30):.1f} GiB free here")
