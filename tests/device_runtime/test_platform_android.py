"""Android's kinds of shared memory, emulated: libraries of ours stand in for a phone's, the sources are the phone's.

What this proves is which functions are called with which arguments, that a kind that does not work is passed over, and
that all is given back. No phone has run it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from device_runtime.build import SOURCE
from tests.artifacts import Spec, make_artifact

STAND_INS = Path(__file__).with_name("android_memory.c")
PROBE_BYTES = 65536


@pytest.fixture(scope="module")
def tool(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`hvdc_platform_check` with Android's kinds, and ``rpc`` and ``window`` beside it with a stand-in in each."""
    place = tmp_path_factory.mktemp("android")
    platform, core = SOURCE / "platform", SOURCE / "core"
    sources = [*platform.glob("src/*.c"), *platform.glob("tools/*.c")]
    folders = [platform / "include", platform / "src", platform / "tools", core / "include", core / "src"]
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wshadow", "-Wstrict-prototypes", "-pedantic"]
    sanitized = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    library = programs["hvdc_platform_check"].with_name("libhvdc_core.a")
    command = ["cc", *strict, *sanitized, "-DHVDC_ANDROID_MEMORY", *(f"-I{folder}" for folder in folders)]
    tool = place / "hvdc_platform_check"
    subprocess.run([*command, *map(str, [*sources, library]), "-ldl", "-o", str(tool)], check=True)
    for folder, name, *define in (("rpc", "libcdsprpc.so", "-DRPCMEM"), ("window", "libnativewindow.so")):
        (place / folder).mkdir()
        command = ["cc", "-std=c11", "-shared", "-fPIC", *define, str(STAND_INS), "-o", str(place / folder / name)]
        subprocess.run(command, check=True)
    return tool


def say(tool: Path, libraries: str, *arguments: str, **environment: str) -> tuple[list[str], list[str]]:
    """Lines of stdout, and those of the stand-ins."""
    path = ":".join(str(tool.with_name(folder)) for folder in libraries.split())
    done = subprocess.run(
        [tool, *arguments], env={**os.environ, "LD_LIBRARY_PATH": path, **environment},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_a_kind_that_is_not_there_says_why(tool: Path) -> None:
    lines, _ = say(tool, "", "kinds")
    assert lines == [
        "kind dma-buf heap hvdc-probe: no DMA-BUF heap gives 65536 bytes: No such file or directory",
        "kind AHardwareBuffer there is no libnativewindow.so with AHardwareBuffer",
        "kind rpcmem there is no libcdsprpc.so with rpcmem: no Hexagon heap",
        "kind memfd works",
        "chosen memfd",
    ]


@pytest.mark.parametrize(
    ("libraries", "chosen"), [("rpc", "rpcmem"), ("window", "AHardwareBuffer"), ("rpc window", "AHardwareBuffer")]
)
def test_the_first_kind_that_works_is_chosen(tool: Path, libraries: str, chosen: str) -> None:
    assert say(tool, libraries, "kinds")[0][-1] == f"chosen {chosen}"


@pytest.mark.parametrize("libraries", ["rpc", "window"])
def test_a_kind_whose_mappings_differ_is_passed_over(tool: Path, libraries: str) -> None:
    """Wrote one value, read another: what a phone without coherent caches would do."""
    lines, _ = say(tool, libraries, "kinds", BROKEN="1")
    assert lines[-1] == "chosen memfd"
    assert any("wrote " in line and " and read " in line for line in lines)


def test_the_hexagon_heap_is_asked_as_fastrpc_asks(tool: Path) -> None:
    _, calls = say(tool, "rpc", "kinds")
    assert calls == [f"rpcmem_alloc 25 1 {PROBE_BYTES}", "rpcmem_free"] * 2


def test_a_hardware_buffer_is_a_blob_for_cpu_and_gpu(tool: Path) -> None:
    _, calls = say(tool, "window", "kinds")
    usage = 3 | 3 << 4 | 1 << 24  # CPU_READ_OFTEN, CPU_WRITE_OFTEN, GPU_DATA_BUFFER
    one = [f"allocate {PROBE_BYTES} 1 1 0x21 {usage:#x}", "lock 0x33 -1 0", "unlock 1 0", "release"]
    assert calls == one * 2


@pytest.mark.parametrize(("libraries", "kind"), [("rpc", "rpcmem"), ("window", "AHardwareBuffer")])
def test_weights_are_loaded_into_it_and_given_back(tool: Path, tmp_path: Path, libraries: str, kind: str) -> None:
    """There are no seals: the mapping is read-only, the descriptor is not."""
    artifact = make_artifact(tmp_path / "a.hvdc", Spec(calibrated=True))
    (line,), calls = say(tool, libraries, "load", str(artifact))
    assert line.split(" ")[2:4] == ["same", "writable"]
    assert line.endswith(kind)
    made = sum(call.startswith(("rpcmem_alloc", "allocate")) for call in calls)
    assert made == 1 + 3, "the probe, two regions, one adapter"
    assert sum(call in ("rpcmem_free", "release") for call in calls) == made
