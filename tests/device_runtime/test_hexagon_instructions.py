"""What Hexagon code holds. Emulated programs: nothing but instructions that the emulator executes, and executes right.
Objects for a device: the vector floats that their architecture has.

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
from tests.device_runtime.hexagon import (
    DISASSEMBLER,
    NEWEST_CPU_OF_EVERY_EMULATOR,
    built_for_hexagon,
    disassembled,
    vector_objects,
)

NOT_EXECUTED = re.compile(r"qf16|qf32|\bv\d+(?::\d+)?\.(?:hf|sf|bf|f8)\b|<unknown>")
PADDING = re.compile(r"\b00000000\s+<unknown>")
"""Between functions: a word that no processor executes."""

pytestmark = pytest.mark.skipif(
    shutil.which(DISASSEMBLER) is None, reason=f"there is no {DISASSEMBLER}: apt-get install llvm-22"
)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_for_hexagon(tmp_path_factory)


def code(program: Path, arch: str) -> list[str]:
    return [line for line in disassembled(program, arch) if not PADDING.search(line)]


def not_executed(lines: list[str]) -> list[str]:
    return [line for line in lines if NOT_EXECUTED.search(line)]


VECTOR = re.compile(r"\b(?:v\d|q[0-3]\b)")
WORD = re.compile(r"^\s*[0-9a-f]+:\s.*?\s[0-9a-f]{8}\s+(.*)$")


def refused_by_assembler(lines: list[str], folder: Path) -> list[str]:
    """Vector instructions that are none of the architecture whose processor the emulator is told to be, each alone. A
    disassembler knows those of all; an assembler insists on its own."""
    texts = {match[1].strip("{} \t").split("}")[0].strip() for line in lines if (match := WORD.match(line))}
    source = folder / "vectors.s"
    alone = sorted({re.sub(r"\.(?:new|cur|tmp)\b", "", text) for text in texts if VECTOR.search(text)})
    source.write_text("".join(f"{{ {text} }}\n" for text in alone))
    target = ["--target=hexagon-unknown-elf", f"-m{NEWEST_CPU_OF_EVERY_EMULATOR}", "-mhvx", "-mhvx-length=128B"]
    command = ["clang-22", *target, "-c", str(source), "-o", str(source.with_suffix(".o"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = re.findall(r"vectors\.s:(\d+):\d+: error", done.stderr)
    assert (done.returncode == 0) == (not errors), done.stderr
    return [alone[int(number) - 1] for number in dict.fromkeys(errors)]


@pytest.mark.parametrize("arch", HEXAGON_EMULATED)
def test_no_instruction_that_the_emulator_lacks_or_has_wrong(build: Path, tmp_path: Path, arch: str) -> None:
    names = [name for name in TOOLS["hexagon"] if name.startswith(f"hexagon-{arch}/") and not name.endswith(".so")]
    programs = [build / name for name in names]
    assert programs
    for program in programs:
        lines = code(program, arch)
        assert len(lines) > 1000
        assert not_executed(lines) == []
        assert refused_by_assembler(lines, tmp_path) == []


def test_the_guard_sees_what_it_should(tmp_path: Path) -> None:
    """The four that run on silently, one that stops, a word that is no instruction; and integers of a newer unit."""
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
            v[5] = Q6_Vuh_vmpy_VuhVuh_rs16(v[5], v[5]);
        }
        """
    )
    target = source.with_suffix(".o")
    flags = ["--target=hexagon-unknown-elf", "-mv73", "-mhvx", "-mhvx-length=128B", "-O1", "-ffreestanding"]
    if shutil.which("clang-22") is None:
        pytest.skip("there is no clang-22: apt-get install clang-22")
    subprocess.run(["clang-22", *flags, "-c", str(source), "-o", str(target)], check=True)
    lines = code(target, "v73")
    assert len(not_executed(lines)) == 6
    assert len(refused_by_assembler(lines, tmp_path)) == 6  # not the word, which is no vector's by its look


IEEE = re.compile(r"\.sf = (?:vadd|vsub|vmpy)\(v\d+\.sf,v\d+\.sf\)")
"""Sums and products of FP32 that are FP32."""

QF32 = re.compile(r"\.qf32 = (?:vadd|vsub|vmpy)\(v\d+\.sf,v\d+\.sf\)|\.sf = v\d+\.qf32")
"""Those of Qualcomm's format, and the way back from it."""

NARROWED = re.compile(r"\.hf = vcvt\(v\d+\.sf,v\d+\.sf\)")
WIDENED = re.compile(r"v\d+:\d+\.sf = vcvt\(v\d+\.hf\)")


@pytest.mark.parametrize(("arch", "floats", "others"), [("v73", QF32, IEEE), ("v75", QF32, IEEE), ("v79", IEEE, QF32),
                                                        ("v81", IEEE, QF32)])  # fmt: skip
def test_a_device_s_kernels_use_its_vector_floats(
    build: Path, arch: str, floats: re.Pattern[str], others: re.Pattern[str]
) -> None:
    """lanes_device.h: IEEE instructions from v79 on, before it qf32 with a conversion after each."""
    objects = {path.name.split(".")[0]: code(path, arch) for path in vector_objects(build, arch)}
    assert set(objects) == {"hvx_attention", "hvx_results", "hvx_rows", "hvx_tiles", "hvx_units"}
    del objects["hvx_units"]  # a table
    for name, lines in objects.items():
        assert any(map(floats.search, lines)), name
        assert not any(map(others.search, lines)), name
        assert any(map(NARROWED.search, lines)), name
        assert not any("<unknown>" in line for line in lines), name
    for name in ("hvx_attention", "hvx_results", "hvx_rows"):
        assert any(map(WIDENED.search, objects[name])), name
