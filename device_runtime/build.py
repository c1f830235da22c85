"""Locate the device runtime's sources and build them for this machine with CMake."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from device_runtime.sources import SOURCE as SOURCE

INCLUDE = SOURCE / "core" / "include"

_SHOWN_LINES = 40
"""Of what a failed command wrote, as many are shown: the last ones."""

NDK = "ANDROID_NDK_ROOT"
"""The variable that names the folder of an Android NDK; the preset android-arm64 reads it."""

NDK_FROM = "https://developer.android.com/ndk/downloads"
NDK_TOOLCHAIN = Path("build", "cmake", "android.toolchain.cmake")

PROGRAMS = (
    "hvdc_bench",
    "hvdc_blocks",
    "hvdc_check",
    "hvdc_cut",
    "hvdc_decoder_check",
    "hvdc_dsp",
    "hvdc_dump",
    "hvdc_gpu_check",
    "hvdc_kernels",
    "hvdc_platform_check",
    "hvdc_probe",
    "hvdc_runner",
    "hvdc_selftest",
    "hvdc_stream_check",
    "hvdc_vtcm",
)
"""What every preset builds."""

HEXAGON_EMULATED = ("v68", "v73", "v75", "v79", "v81")
"""Architectures whose programs an emulator executes; see npu/hexagon/CMakeLists.txt."""

HEXAGON_DEVICES = ("v73", "v75", "v79", "v81")
"""Architectures that are built for phones: libhvdc_skel.so, and of their matrix unit hexagon-<arch>/libhvdc_hmx.a."""

SKEL = "libhvdc_skel.so"
"""What a phone's DSP loads; see npu/rpc."""

SKELS = tuple(f"{arch}-{SKEL}" for arch in HEXAGON_DEVICES)
"""Names under which the preset ``hexagon`` gives the libraries of all architectures."""

_OUTPUTS = {f"{arch}-{SKEL}": (f"hvdc_skel_{arch}", f"hexagon-{arch}/{SKEL}") for arch in HEXAGON_DEVICES}
"""Name of an output -> CMake's target of it, its path in a build, where they differ from the name."""

TOOLS = {
    "host": PROGRAMS,
    "host-asan": PROGRAMS,
    "host-tsan": PROGRAMS,
    "aarch64-linux": PROGRAMS,
    "android-arm64": PROGRAMS,
    "fuzz": (*PROGRAMS, "fuzz_index"),
    "hexagon": (
        *(
            f"hexagon-{arch}/{program}"
            for arch in HEXAGON_EMULATED
            for program in ("hvdc_kernels", "hvdc_dsp", "hvdc_selftest_dsp")
        ),
        *(f"hexagon-{arch}/{SKEL}" for arch in HEXAGON_DEVICES),
    ),
}
"""Preset of ``CMakePresets.json`` -> the programs that it builds, and libraries that travel with an artifact."""


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
    if preset == "aarch64-linux":
        missing = [name for name in ("gcc", "g++") if _which(f"aarch64-linux-gnu-{name}") is None]
        return (
            f"aarch64-linux-gnu-{missing[0]} is not installed: apt-get install g++-aarch64-linux-gnu" if missing else ""
        )
    if preset == "hexagon" and os.environ.get("HEXAGON_SDK_ROOT"):
        tools = Path(os.environ["HEXAGON_SDK_ROOT"]) / "tools" / "HEXAGON_Tools"
        return "" if any(tools.glob("*/Tools/bin")) else f"HEXAGON_SDK_ROOT has no compiler below {tools}"
    if preset == "hexagon":
        packages = {"clang-22": "clang-22", "clang++-22": "clang-22", "ld.lld-22": "lld-22"}
        missing = [program for program in packages if _which(program) is None]
        return f"{missing[0]} is not installed: apt-get install clang-22 lld-22" if missing else ""
    if preset == "android-arm64":
        return _why_no_ndk()
    compilers = [os.environ["CC"].split()[0]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    if not any(_which(compiler) for compiler in compilers):
        return f"there is no C compiler ({', '.join(compilers)}): apt-get install gcc"
    compilers = [os.environ["CXX"].split()[0]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    if not any(_which(compiler) for compiler in compilers):
        return f"there is no C++ compiler ({', '.join(compilers)}): apt-get install g++"
    return ""


def build_host(
    preset: str, build_dir: Path, programs: Sequence[str] = (), seen: Callable[[str], None] | None = None
) -> dict[str, Path]:
    """Configure and build a preset, or some of its programs, into ``build_dir``; returns the path of each program.

    A second call builds only what changed. ``seen`` gets each line that CMake and the compiler write. Raises
    BuildError.
    """
    problem = why_not(preset)
    if problem:
        raise BuildError(problem)
    generator = ["-G", "Ninja"] if _which("ninja") and not (build_dir / "CMakeCache.txt").exists() else []
    _run(["cmake", "--preset", preset, "-B", str(build_dir), *generator], seen)
    targets = ["--target", *(_OUTPUTS.get(name, (name, ""))[0] for name in programs)] if programs else []
    _run(["cmake", "--build", str(build_dir), "--parallel", str(os.cpu_count() or 1), *targets], seen)
    return {tool: build_dir / _OUTPUTS.get(tool, ("", tool))[1] for tool in programs or TOOLS[preset]}


def compiler(preset: str) -> str:
    """Which compiler a preset is built with: the first line of what ``--version`` says, or an NDK's revision.

    ``""`` if it says nothing.
    """
    named = {"aarch64-linux": "aarch64-linux-gnu-gcc", "fuzz": "clang", "hexagon": "clang-22"}.get(preset)
    named = named or os.environ.get("CC") or "cc"
    if preset == "hexagon" and os.environ.get("HEXAGON_SDK_ROOT"):
        return os.environ["HEXAGON_SDK_ROOT"]
    if preset == "android-arm64":
        return _ndk_text()
    command = [*named.split(), "--version"]
    try:
        done = subprocess.run(
            command, env={**os.environ, "PATH": _path()}, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError:
        return ""
    return (done.stdout.splitlines() or [""])[0]


def _why_no_ndk() -> str:
    root = os.environ.get(NDK, "")
    if not root:
        return (
            f"there is no Android NDK: unpack one ({NDK_FROM}) and set {NDK}, or give --ndk, to its folder, "
            "the one that holds source.properties"
        )
    toolchain = Path(root).absolute() / NDK_TOOLCHAIN
    return "" if toolchain.is_file() else f"{NDK} is {root}, which is no Android NDK: there is no {toolchain}"


def _ndk_text() -> str:
    """``Android NDK 27.2.12479018``, by its own ``source.properties``: where it lies is nobody's business."""
    try:
        lines = (Path(os.environ.get(NDK, "")) / "source.properties").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    facts = dict(line.split("=", 1) for line in lines if "=" in line)
    return next((f"Android NDK {facts[key].strip()}" for key in facts if key.strip() == "Pkg.Revision"), "Android NDK")


def _path() -> str:
    """Where programs are looked for: also beside this Python, which may run without its environment's being on PATH."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


def _which(program: str) -> str | None:
    return shutil.which(program, path=_path())


def _run(command: list[str], seen: Callable[[str], None] | None) -> None:
    environment = {**os.environ, "PATH": _path()}
    with subprocess.Popen(
        command, cwd=SOURCE, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    ) as process:  # fmt: skip
        try:
            lines: deque[str] = deque(maxlen=_SHOWN_LINES)
            for line in process.stdout or ():
                lines.append(line.rstrip("\n"))
                if seen is not None:
                    seen(lines[-1])
        except BaseException:
            process.terminate()  # CMake ends its compilers
            raise
    if process.returncode != 0:
        tail = "\n".join(lines)
        raise BuildError(f"`{' '.join(command)}` failed with status {process.returncode}:\n{tail}")


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
