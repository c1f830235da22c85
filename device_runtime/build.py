"""Locate the device runtime's sources and build them for this machine with CMake."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
"""The folder with ``CMakeLists.txt``; headers are below ``core/include``."""

INCLUDE = SOURCE / "core" / "include"

TOOLS = {
    "host": ("hvdc_dump", "hvdc_check"),
    "host-asan": ("hvdc_dump", "hvdc_check"),
    "fuzz": ("hvdc_dump", "hvdc_check", "fuzz_index"),
}
"""Preset of ``CMakePresets.json`` -> the programs that it builds."""


class BuildError(Exception):
    """The runtime cannot be built here: a tool is missing, or it said no. The text says which and how to go on."""


def why_not(preset: str) -> str:
    """What keeps a preset from being built on this machine, as a sentence with the remedy; ``""`` if nothing does."""
    if preset not in TOOLS:
        return f"there is no preset {preset!r}; presets are {', '.join(TOOLS)}"
    if _which("cmake") is None:
        return "cmake is not installed: apt-get install cmake, or pip install cmake"
    if _which("make") is None and _which("ninja") is None:
        return "neither make nor ninja is installed: apt-get install ninja-build, or pip install ninja"
    if preset == "fuzz":
        return _why_no_libfuzzer()
    compilers = [os.environ["CC"].split()[0]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    if not any(_which(compiler) for compiler in compilers):
        return f"there is no C compiler ({', '.join(compilers)}): apt-get install gcc"
    return ""


def build_host(preset: str, build_dir: Path) -> dict[str, Path]:
    """Configure and build a preset into ``build_dir``; returns the path of each program.

    A second call builds only what changed. Raises BuildError.
    """
    problem = why_not(preset)
    if problem:
        raise BuildError(problem)
    generator = ["-G", "Ninja"] if _which("ninja") and not (build_dir / "CMakeCache.txt").exists() else []
    _run(["cmake", "--preset", preset, "-B", str(build_dir), *generator])
    _run(["cmake", "--build", str(build_dir), "--parallel", str(os.cpu_count() or 1)])
    return {tool: build_dir / tool for tool in TOOLS[preset]}


def _path() -> str:
    """Where programs are looked for: also beside this Python, which may run without its environment's being on PATH."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


def _which(program: str) -> str | None:
    return shutil.which(program, path=_path())


def _run(command: list[str]) -> None:
    environment = {**os.environ, "PATH": _path()}
    done = subprocess.run(
        command, cwd=SOURCE, env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
        raise BuildError(f"`{' '.join(command)}` failed with status {done.returncode}:\n{tail}")


def _why_no_libfuzzer() -> str:
    """Distributions package clang's run-time libraries apart, so a clang alone proves nothing: link a fuzz target."""
    if shutil.which("clang") is None:
        return "clang is not installed: apt-get install clang libclang-rt-14-dev"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "target.c"
        source.write_text("int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n){return !d && n;}\n")
        command = ["clang", "-fsanitize=fuzzer,address", str(source), "-o", str(source.with_suffix(""))]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return "this clang has no libFuzzer: apt-get install libclang-rt-dev of the same version"
    return ""
