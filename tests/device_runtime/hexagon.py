"""Hexagon programs under qemu-hexagon, built by upstream clang."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from device_runtime.build import HEXAGON_EMULATED, SOURCE
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
    return sorted(build.rglob(f"hvdc_skel_{arch}.dir/src/hvx_*.obj"))


DISASSEMBLER = "llvm-objdump-22"


def disassembled(program: Path, arch: str) -> list[str]:
    """The lines of a program's or object's code."""
    features = "+hvx,+hvx-length128b,+hvx-qfloat,+hvx-ieee-fp"
    command = [DISASSEMBLER, "-d", f"--mcpu=hexagon{arch}", f"--mattr={features}", str(program)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


SOURCES = SOURCE / "npu" / "hexagon" / "src"


@dataclass(frozen=True)
class Fault:
    """``was``, which is there once, becomes ``is_`` in a file of `SOURCES`; ``compiled`` are then compiled again."""

    file: str
    was: str
    is_: str
    compiled: tuple[str, ...]

    def put_into(self, sources: Path) -> None:
        text = (sources / self.file).read_text()
        assert text.count(self.was) == 1
        (sources / self.file).write_text(text.replace(self.was, self.is_))


def rebuilt(build: Path, program: str, arch: str, folder: Path, fault: Fault) -> Path:
    """An emulated program of a build with a fault in it, made in ``folder``."""
    sources = shutil.copytree(SOURCES, folder / "src")
    fault.put_into(sources)
    parts = (f"/hvdc_npu_{arch}.dir/", "/hvdc_emulated.dir/", f"/{program}_emulated.dir/")
    objects = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source, words = Path(entry["file"]), shlex.split(entry["command"])
        made = Path(entry["directory"]) / words[words.index("-o") + 1]
        if not any(part in str(made) for part in parts):
            continue
        if source.parent == SOURCES and source.name in fault.compiled:
            made = folder / made.name
            words = [f"-I{sources}" if word == f"-I{SOURCES}" else word for word in words]
            words[words.index("-o") + 1] = str(made)
            words[words.index("-c") + 1] = str(sources / source.name)
            subprocess.run(words, cwd=entry["directory"], check=True)
        objects.append(made)
    again = {path.name.removesuffix(".obj") for path in objects if path.parent == folder}
    assert again == set(fault.compiled)
    linked = folder / program
    subprocess.run(["ld.lld-22", "-static", *map(str, objects), "-o", str(linked)], check=True)
    return linked
