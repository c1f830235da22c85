"""Programs that hvdc starts, and what of the runtime can be built with them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

from hvdc.doctor.check import Check, Probe, first_line

PROGRAMS = {
    "cc": ("building the device runtime for this machine", "apt-get install gcc libc6-dev"),
    "c++": ("building the device runtime for this machine", "apt-get install g++"),
    "cmake": ("building the device runtime", "apt-get install cmake, or pip install cmake"),
    "make": ("building the device runtime", "apt-get install make"),
    "clang": ("fuzzing the C reader", "apt-get install clang"),
    "clang-22": ("building libhvdc_skel.so for a phone's DSP", "apt-get install clang-22"),
    "ld.lld-22": ("building libhvdc_skel.so for a phone's DSP", "apt-get install lld-22"),
    "aarch64-linux-gnu-gcc": ("building the device runtime for ARM Linux", "apt-get install g++-aarch64-linux-gnu"),
    "qemu-aarch64": ("executing ARM programs in tests", "apt-get install qemu-user"),
    "qemu-hexagon": ("executing the DSP's code in tests", "apt-get install qemu-user"),
}
"""Program -> what it is needed for, how to get it."""

BUILDS = {
    "host": "hvdc run on this machine",
    "android-arm64": "hvdc deploy: what executes an artifact on a phone",
    "hexagon": "the NPU of a phone",
    "aarch64-linux": "running on ARM Linux",
}
"""Preset of the runtime -> what it is needed for."""


def probes() -> list[Probe]:
    programs = [_program_probe(name, *why) for name, why in PROGRAMS.items()]
    return [*programs, *(_build_probe(target, needed_for) for target, needed_for in BUILDS.items())]


def _program_probe(name: str, needed_for: str, fix: str) -> Probe:
    return Probe(name, needed_for, lambda: _program(name, needed_for, fix))


def _program(name: str, needed_for: str, fix: str) -> Iterator[Check]:
    path = shutil.which(name)
    if path is None:
        yield Check(name, "missing", "not on PATH", needed_for, fix)
        return
    try:
        yield Check(name, "ok", first_line([path, "--version"]) or path)
    except (OSError, subprocess.SubprocessError) as error:
        yield Check(name, "missing", f"{path} does not run: {error}", needed_for, fix)


def _build_probe(target: str, needed_for: str) -> Probe:
    return Probe(f"runtime {target}", needed_for, lambda: _build(target, needed_for))


def _build(target: str, needed_for: str) -> Iterator[Check]:
    """Whether the cache holds a build of these sources; if not, whether one could be made."""
    from device_runtime.build import why_not  # here, because another program's folder may hide ours
    from hvdc.pipeline.runtime_build import kept_runtime

    name, problem = f"runtime {target}", why_not(target)
    kept = kept_runtime(target)
    if kept is not None:
        yield Check(name, "ok", f"built with {kept.compiler or 'an unknown compiler'}")
    elif not problem:
        yield Check(name, "ok", f"not built yet, and can be: hvdc runtime build --target {target}")
    else:
        what, _, remedy = problem.partition(": ")
        yield Check(name, "missing", what, needed_for, remedy or problem)
