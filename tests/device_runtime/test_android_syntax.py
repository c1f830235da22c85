"""Compile-only: the sources as clang sees them for Android on 64-bit ARM.

There is no NDK here. The compiler is told Android's ABI, so that ``__ANDROID__`` is defined and Android's kinds of
memory are compiled; C's headers are glibc's for ARM in the place of bionic's. So this finds what does not parse, what a
type of another width does, and warnings; not what bionic lacks, and it links nothing.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from device_runtime.build import SOURCE

HEADERS = Path("/usr/aarch64-linux-gnu/include")
TARGET = ["--target=aarch64-linux-android31", "-nostdlibinc", "-isystem", str(HEADERS)]
STRICT = ["-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wshadow", "-Wstrict-prototypes", "-pedantic"]
DEFINES = ["-DHVDC_ANDROID_MEMORY", "-DHVDC_WITH_GPU", "-DHVDC_CPU_LEVEL=generic"]
PARTS = ("core", "host", "npu", "gpu", "platform", "coordinator", "runner")


@pytest.fixture(scope="module")
def clang() -> list[str]:
    compiler = shutil.which("clang")
    if compiler is None:
        pytest.skip("the sources are not compiled for Android: there is no clang: apt-get install clang")
    if not (HEADERS / "stdio.h").exists():
        pytest.skip(
            "the sources are not compiled for Android: there are no headers: apt-get install libc6-dev-arm64-cross"
        )
    folders = [
        f"-I{folder}" for part in (*PARTS, "decoder") for folder in (SOURCE / part / "include", SOURCE / part / "src")
    ]
    return [compiler, *TARGET, "-std=c11", "-fsyntax-only", *STRICT, *DEFINES, *folders]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_compiles_for_android(clang: list[str], part: str) -> None:
    for source in sorted((SOURCE / part / "src").glob("*.c")):
        posix = ["-D_POSIX_C_SOURCE=200809L"] if part == "gpu" else []  # as its CMakeLists.txt has it
        done = subprocess.run([*clang, *posix, str(source)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_androids_memory_is_what_is_compiled(clang: list[str], tmp_path: Path) -> None:
    """That the check above can fail: a mistake where only Android looks."""
    source = tmp_path / "mistake.c"
    source.write_text("#if defined(__ANDROID__) && defined(HVDC_ANDROID_MEMORY)\nint x = y;\n#endif\ntypedef int z;\n")
    done = subprocess.run([*clang, str(source)], capture_output=True, text=True, check=False)
    assert "use of undeclared identifier 'y'" in done.stderr
