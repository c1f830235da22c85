"""Hexagon programs under qemu-hexagon, built by upstream clang."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from device_runtime.build import HEXAGON_EMULATED
from tests.device_runtime.builds import built

NEWEST_CPU_OF_EVERY_EMULATOR = "v67"
"""Debian 12's emulator knows no newer one by name. It executes programs built for any, as long as it has each of their
instructions; which it lacks, or has wrong, is what `test_hexagon_instructions.py` looks for."""


def why_no_hexagon() -> str:
    if shutil.which("qemu-hexagon") is None:
        return "the Hexagon kernels are not executed: there is no qemu-hexagon: apt-get install qemu-user"
    return ""


def built_for_hexagon(factory: pytest.TempPathFactory) -> Path:
    """The folder of the build; skips where there is no compiler for it."""
    programs = built(factory, "hexagon", "the Hexagon kernels are not tested")
    return next(iter(programs.values())).parent.parent


def emulated(build: Path, arch: str, program: str) -> list[str]:
    """The command that runs a program of an architecture."""
    assert arch in HEXAGON_EMULATED
    return ["qemu-hexagon", "-cpu", NEWEST_CPU_OF_EVERY_EMULATOR, str(build / f"hexagon-{arch}" / program)]


def vector_objects(build: Path, arch: str) -> list[Path]:
    """The vector unit's kernels as a device has them: with vector floats."""
    return sorted(build.rglob(f"hvdc_vector_{arch}.dir/src/*.obj"))


DISASSEMBLER = "llvm-objdump-22"


def disassembled(program: Path, arch: str) -> list[str]:
    """The lines of a program's or object's code."""
    features = "+hvx,+hvx-length128b,+hvx-qfloat,+hvx-ieee-fp"
    command = [DISASSEMBLER, "-d", f"--mcpu=hexagon{arch}", f"--mattr={features}", str(program)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
