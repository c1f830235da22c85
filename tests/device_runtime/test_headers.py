"""The public headers: tile macros against `layouts`, use from other languages, and what accessors promise."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from device_runtime.build import INCLUDE
from layouts.grid import pack
from layouts.order import HMX_FP16_2, HMX_INT8_K4
from tests.artifacts import make_artifact
from tests.malformed.registry import BASE, REGION

HERE = Path(__file__).resolve().parent
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-I", str(INCLUDE)]
SANITIZE = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
TILE = (31 * np.arange(32)[:, None] + 7 * np.arange(32)[None, :]) % 251
"""``W[n, k]``, as in tiles.c."""


def program(source: Path, output: Path, *more: str) -> Path:
    """Compile and link a C file with sanitizers."""
    command = ["cc", "-std=c11", "-D_POSIX_C_SOURCE=200809L", *SANITIZE, *STRICT, str(source), *more, "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler: apt-get install gcc")
    binary = program(HERE / "tiles.c", tmp_path_factory.mktemp("tiles") / "tiles")
    return subprocess.run([str(binary)], capture_output=True, check=True).stdout


def test_the_macros_pack_an_asymmetric_tile_as_layouts_does(tiles: bytes) -> None:
    int8, fp16 = tiles[:1024], tiles[1024:]
    assert int8 == pack(HMX_INT8_K4, TILE.astype(np.uint8)).tobytes()
    assert fp16 == pack(HMX_FP16_2, TILE.astype("<u2")).tobytes()


def test_the_golden_tile_has_the_bytes_of_the_formula(tiles: bytes) -> None:
    """Byte of (k, n): 128·(k/4) + 4·n + (k mod 4). Halfword: 64·(k/2) + 2·n + (k mod 2). Written out, for strangers."""
    assert tiles[:12].hex(" ") == "00 07 0e 15 1f 26 2d 34 3e 45 4c 53"
    assert tiles[128:136].hex(" ") == "1c 23 2a 31 3b 42 49 50"
    halves = np.frombuffer(tiles[1024:], "<u2")
    assert halves[:6].tolist() == [0, 7, 31, 38, 62, 69]
    assert halves[64:68].tolist() == [14, 21, 45, 52]
    for k, n in ((0, 0), (1, 0), (0, 1), (5, 3), (31, 31), (4, 30)):
        assert tiles[128 * (k // 4) + 4 * n + k % 4] == TILE[n, k]
        assert halves[64 * (k // 2) + 2 * n + k % 2] == TILE[n, k]


@pytest.mark.parametrize(
    ("compiler", "language", "header"),
    [
        ("cc", ["-x", "c", "-std=c11"], "hvdc/artifact.h"),
        ("c++", ["-x", "c++", "-std=c++17"], "hvdc/artifact.h"),
        ("clang", ["-x", "cl", "-cl-std=CL2.0", "-Xclang", "-finclude-default-header"], "hvdc/tiles.h"),
    ],
    ids=["C", "C++", "OpenCL C"],
)
def test_headers_stand_alone(compiler: str, language: list[str], header: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    source = tmp_path / "source"
    source.write_text(f'#include "{header}"\n#include "{header}"\n')
    command = [compiler, *language, *STRICT, "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_accessors_answer_impossible_questions(programs: dict[str, Path], tmp_path: Path) -> None:
    library = programs["hvdc_dump"].parent / "libhvdc_core.a"
    binary = program(HERE / "accessors.c", tmp_path / "accessors", str(library))
    good, bad = make_artifact(tmp_path / "good.hvdc", BASE), make_artifact(tmp_path / "bad.hvdc", BASE)
    (bad / REGION).write_bytes(bytes(4096))
    done = subprocess.run([str(binary), str(good), str(bad)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
