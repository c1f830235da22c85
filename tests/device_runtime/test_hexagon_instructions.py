"""What emulated Hexagon programs may hold: instructions that the emulator executes, and executes right.

Four of the vector-float instructions run on with wrong numbers instead of stopping the emulator, so that nothing but a
look at the code tells.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from device_runtime.build import HEXAGON_EMULATED, TOOLS
from tests.device_runtime.hexagon import built_for_hexagon

DISASSEMBLER = "llvm-objdump-22"
NOT_EXECUTED = re.compile(r"qf16|qf32|\bv\d+(?::\d+)?\.(?:hf|sf|bf)\b|<unknown>")
PADDING = re.compile(r"\b00000000\s+<unknown>")
"""Between functions: a word that no processor executes."""

pytestmark = pytest.mark.skipif(
    shutil.which(DISASSEMBLER) is None, reason=f"there is no {DISASSEMBLER}: apt-get install llvm-22"
)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_for_hexagon(tmp_path_factory)


def disassembled(program: Path, arch: str) -> list[str]:
    features = "+hvx,+hvx-length128b,+hvx-qfloat,+hvx-ieee-fp"
    command = [DISASSEMBLER, "-d", f"--mcpu=hexagon{arch}", f"--mattr={features}", str(program)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if not PADDING.search(line)]


def not_executed(lines: list[str]) -> list[str]:
    return [line for line in lines if NOT_EXECUTED.search(line)]


@pytest.mark.parametrize("arch", HEXAGON_EMULATED)
def test_no_instruction_that_the_emulator_lacks_or_has_wrong(build: Path, arch: str) -> None:
    names = [name for name in TOOLS["hexagon"] if name.startswith(f"hexagon-{arch}/") and not name.endswith(".so")]
    programs = [build / name for name in names]
    assert programs
    for program in programs:
        lines = disassembled(program, arch)
        assert len(lines) > 1000
        assert not_executed(lines) == []


def test_the_guard_sees_what_it_should(tmp_path: Path) -> None:
    """The four that run on silently, one that stops, and a word that is no instruction."""
    source = tmp_path / "float.c"
    source.write_text(
        """
        #include <hexagon_types.h>
        #include <hexagon_protos.h>
        #include <hvx_hexagon_protos.h>
        void f(HVX_Vector *v) {
            v[0] = Q6_Vhf_equals_Vh(v[0]);
            v[1] = Q6_Vh_equals_Vhf(v[1]);
            v[2] = Q6_Vsf_equals_Vw(v[2]);
            v[3] = Q6_Vsf_equals_Vqf32(v[3]);
            v[4] = Q6_Vqf32_vadd_VsfVsf(v[4], v[4]);
            __asm__ volatile(".word 0xA6E0C013");
        }
        """
    )
    target = source.with_suffix(".o")
    flags = ["--target=hexagon-unknown-elf", "-mv73", "-mhvx", "-mhvx-length=128B", "-O1", "-ffreestanding"]
    if shutil.which("clang-22") is None:
        pytest.skip("there is no clang-22: apt-get install clang-22")
    subprocess.run(["clang-22", *flags, "-c", str(source), "-o", str(target)], check=True)
    assert len(not_executed(disassembled(target, "v73"))) == 6
