"""The DSP's pool of threads, whose code is executed here on a stand-in of QuRT's threads and futexes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from device_runtime.build import SOURCE
from tests.locks import shared_folder

HERE = Path(__file__).resolve().parent
STRICT = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wshadow", "-pedantic"]
FOLDERS = ("core/include", "host/include", "npu/rpc/src", "npu/hexagon/src")


@pytest.fixture(scope="module", params=["thread", "address,undefined"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("the DSP's pool of threads is not executed: there is no C compiler: apt-get install gcc")
    output = shared_folder(tmp_path_factory, "qurt") / f"{os.getpid()}-{request.param.replace(',', '-')}"
    sources = [HERE / "qurt_pool.c", SOURCE / "npu/hexagon/src/pool_qurt.c", SOURCE / "core/src/failure.c"]
    includes = [word for folder in FOLDERS for word in ("-I", str(SOURCE / folder))]
    flags = [f"-fsanitize={request.param}", "-fno-sanitize-recover=all", "-pthread"]
    subprocess.run(["cc", *STRICT, *flags, *includes, *map(str, sources), "-o", str(output)], check=True)
    return output


@pytest.mark.parametrize("threads", [0, 1, 2, 6, 16])
def test_every_index_is_worked_on_once(program: Path, threads: int) -> None:
    """0: one for each vector context. Sanitizers see races, and memory that is not given back."""
    done = subprocess.run(
        [program, str(threads), "300"], capture_output=True, text=True, check=False, timeout=60
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")


def test_too_many_are_refused(program: Path) -> None:
    done = subprocess.run([program, "257"], capture_output=True, text=True, check=False)
    assert done.stdout == "257 threads are more than the limit of 256\n"
    done = subprocess.run([program, "40"], capture_output=True, text=True, check=False)
    assert done.stdout == "thread 34 of 40 cannot be started on the DSP; ask for fewer threads\n"
