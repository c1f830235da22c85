"""The DSP's end called by several threads at once, under ThreadSanitizer: its sessions, and the unit's turns.

FastRPC gives each thread of a client a thread on the DSP. Here all of them are threads of this machine, the skel is the
one in the stand-in of FastRPC's library, and the matrix unit is its model.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from device_runtime.build import SOURCE
from tests.device_runtime.builds import built, shared_folder
from tests.device_runtime.rpc import STAND_IN
from tests.device_runtime.test_qurt_pool import HERE, STRICT

FOLDERS = ("core/include", "host/include", "npu/include", "npu/rpc/include", "npu/rpc/src", "platform/include")
LIBRARIES = ("npu/rpc/libhvdc_npu_dsp.a", "npu/libhvdc_npu.a", "host/libhvdc_host.a", "platform/libhvdc_platform.a",
             "libhvdc_core.a")  # fmt: skip


@pytest.fixture(scope="module")
def callers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program, and the stand-in that it is to load."""
    if shutil.which("cc") is None:
        pytest.skip("the callers are not compiled: there is no C compiler: apt-get install gcc")
    tools = ["hvdc_dsp", "hvdc_stand_in", "hvdc_selftest"]
    build = built(tmp_path_factory, request.param, "callers of the DSP are not watched", tools)["hvdc_dsp"].parent
    output = shared_folder(tmp_path_factory, "callers") / f"{os.getpid()}-{request.param}"
    includes = [word for folder in FOLDERS for word in ("-I", str(SOURCE / folder))]
    version = next(line for line in (build / "CMakeCache.txt").read_text().splitlines() if "PROJECT_VERSION:" in line)
    sanitizer = {"host-tsan": "thread", "host-asan": "address,undefined"}[request.param]
    command = ["cc", *STRICT, f'-DHVDC_RUNTIME_VERSION="{version.partition("=")[2]}"', *includes]
    command += [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-pthread", str(HERE / "skel_callers.c")]
    command += ["-Wl,--start-group", *(str(build / name) for name in LIBRARIES), "-Wl,--end-group", "-lm", "-ldl"]
    subprocess.run([*command, "-o", str(output)], check=True)
    return output, build / STAND_IN


@pytest.mark.parametrize(
    ("callers", "engines", "mappers", "shared"),
    [
        ("host-tsan", 2, 0, 0), ("host-tsan", 0, 3, 0), ("host-tsan", 0, 0, 4), ("host-tsan", 2, 2, 2),
        ("host-asan", 2, 2, 2),
    ],
    ids=["engines", "sessions", "one session", "all of it", "all of it, its memory"], indirect=["callers"],
)  # fmt: skip
def test_calls_of_several_threads(
    callers: tuple[Path, Path], ragged_artifact: Path, engines: int, mappers: int, shared: int
) -> None:
    """Sanitizers see races, and what was given back twice or never; every engine computes the same bits."""
    program, stand_in = callers
    rounds = 1
    done = subprocess.run(
        [program, stand_in, ragged_artifact, *map(str, (engines, mappers, shared, rounds))],
        env={**os.environ, "HVDC_STAND_IN_UNIT": "1"}, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("this compiler's ThreadSanitizer does not know the addresses of this kernel")
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stderr == ""
    assert done.stdout.split() == [str(engines * rounds), str(mappers * 24 * rounds), str(shared * 96 * rounds)]
