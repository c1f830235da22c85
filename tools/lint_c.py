"""Checks the C, C++ and OpenCL sources: clang-format and clang-tidy, in the versions that constraints-dev.txt pins.

``python tools/lint_c.py`` checks, ``--fix`` formats and checks nothing. clang-tidy sees every C and C++ file as the
preset "host" compiles it, or, if that does not, with what ``LOOSE`` says. What was clean is not looked at again as long
as neither it nor a header, a flag, the configuration or clang-tidy's version changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNTIME = ROOT / "device_runtime"
TESTS = ROOT / "tests" / "device_runtime"
FOLDERS = (RUNTIME, TESTS)
STYLE = RUNTIME / ".clang-format"
CHECKS = RUNTIME / ".clang-tidy"
BUILD = ROOT / "build" / "lint"

LOOSE = (
    "-std=c11",
    "-D_GNU_SOURCE",
    "-Wno-macro-redefined",
    "-DHVDC_ANDROID_MEMORY",
    '-DHVDC_RUNTIME_VERSION="0"',
    *(f"-I{RUNTIME / part}" for part in ("core/include", "core/src", "platform/include", "platform/src")),
    *(f"-I{RUNTIME / part}" for part in ("gpu/src", "decoder/include", "decoder/src")),
    *(f"-I{RUNTIME / part}" for part in ("host/include", "coordinator/include", "npu/include", "npu/rpc/include")),
    *(f"-I{RUNTIME / part}" for part in ("npu/rpc/src", "npu/hexagon/src")),
)
"""Of files that the host's build does not compile: Android's memory, fuzz targets, what tests compile themselves."""

HEXAGON = RUNTIME / "npu" / "hexagon"
FOR_HEXAGON = (
    "--target=hexagon-unknown-elf", "-mv79", "-mhvx", "-mhvx-length=128B", "-mhvx-ieee-fp", "-ffreestanding",
    "-std=c11", "-DHVDC_CPU_LEVEL=generic", '-DHVDC_RUNTIME_VERSION="0"', f"-I{HEXAGON / 'libc' / 'include'}",
    *(f"-I{RUNTIME / part}" for part in ("core/include", "core/src", "host/include", "npu/include", "npu/src")),
    *(f"-I{RUNTIME / part}" for part in ("npu/rpc/src", "npu/hexagon/src")),
)  # fmt: skip
"""Of the DSP's own files, as the device's build has them."""

IN_LIBC = (
    "-bugprone-reserved-identifier,-cert-dcl37-c,-cert-dcl51-cpp,-concurrency-mt-unsafe,"
    "-clang-analyzer-optin.portability.UnixAPI"
)
"""Not asked of the C library for programs under emulation: it defines such names, for one thread."""

IN_TESTS = "-bugprone-unchecked-string-to-number-conversion,-cert-err33-c,-cert-err34-c,-concurrency-mt-unsafe"
"""Not asked of what only tests compile: it has one thread, reads what a test wrote, and prints for a test, which
notices what is missing."""


def tool(name: str) -> str:
    """A program of this Python's environment, so that its version is the pinned one; fails with the remedy."""
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        sys.exit(f"lint_c: there is no {name} beside {sys.executable}: pip install -c constraints-dev.txt '.[dev]'")
    return path


def sources(*suffixes: str) -> list[Path]:
    return sorted(path for folder in FOLDERS for path in folder.rglob("*") if path.suffix in suffixes)


def format_all(fix: bool) -> bool:
    """Whether every file is formatted, or has been."""
    how = ["-i"] if fix else ["--dry-run", "--Werror"]
    files = [str(path) for path in sources(".c", ".h", ".cpp", ".cl")]
    return subprocess.run([tool("clang-format"), f"--style=file:{STYLE}", *how, *files], check=False).returncode == 0


def configured() -> dict[Path, list[str]]:
    """Commands of the host's build, by source."""
    command = ["cmake", "--preset", "host", "-B", str(BUILD), "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        command, cwd=RUNTIME, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"lint_c: `{' '.join(command)}` failed:\n{done.stdout}{done.stderr}")
    commands: dict[Path, list[str]] = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text("utf-8")):
        commands.setdefault(Path(entry["file"]), []).append(entry["command"])
    return commands


def digest(parts: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()


def tidy_all() -> bool:
    """Whether clang-tidy finds nothing in any file; what it finds is printed, file by file."""
    program = tool("clang-tidy")
    version = subprocess.run([program, "--version"], capture_output=True, check=True).stdout
    everywhere = digest([version, CHECKS.read_bytes(), *(path.read_bytes() for path in sources(".h"))])
    commands = configured()
    clean = BUILD / "clean"
    clean.mkdir(parents=True, exist_ok=True)

    def look_at(path: Path) -> bool:
        flags = commands.get(path)
        other = FOR_HEXAGON if path.is_relative_to(HEXAGON) else LOOSE
        told = f"{everywhere} {path} {flags or other} {IN_TESTS} {IN_LIBC}"
        key = digest([told.encode(), path.read_bytes()])
        if (clean / key).exists():
            return True
        how = ["-p", str(BUILD), str(path)] if flags else [str(path), "--", *other]
        left_out = IN_TESTS if path.is_relative_to(TESTS) else IN_LIBC if path.is_relative_to(HEXAGON / "libc") else ""
        checks = [f"--checks={left_out}"] if left_out else []
        done = subprocess.run(
            [program, "--quiet", f"--config-file={CHECKS}", *checks, *how], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            (clean / key).touch()
        else:
            print(f"{done.stdout}{done.stderr if not done.stdout else ''}", end="", flush=True)
        return done.returncode == 0

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return all(list(pool.map(look_at, sources(".c", ".cpp"))))


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--fix", action="store_true", help="format the files instead")
    fix = parser.parse_args().fix
    formatted = format_all(fix)
    return 0 if formatted and (fix or tidy_all()) else 1


if __name__ == "__main__":
    sys.exit(main())
