"""The public headers: tile macros against `layouts`, use from other languages, and what accessors promise."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from device_runtime.build import INCLUDE, SOURCE
from hvdc.artifact.codes import Code
from layouts.c_header import tile_header
from layouts.grid import pack
from layouts.order import BY_ID, BY_NAME, HMX_FP16_2, HMX_INT8_K4, Mode, TileOrder
from tests.artifacts import edit_tensor, make_artifact
from tests.device_runtime.programs import Checker, python_deep
from tests.malformed.registry import BASE, BASES, FACTOR, REGION, put

USE = """
unsigned hvdc_use(unsigned id, unsigned row, unsigned col);
unsigned hvdc_use(unsigned id, unsigned row, unsigned col) {
    return HVDC_TILE_ORDER_OFFSET(id, row, col) / HVDC_TILE_ORDER_ROWS(id) / HVDC_TILE_ORDER_COLS(id) /
           HVDC_TILE_ORDER_ELEMENT_BYTES(id);
}
"""
"""A program that uses the macros."""

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


def test_a_tile_order_is_described_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another order than those of the format, C and Python agree once the header is generated: CONTRIBUTING.md."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler: apt-get install gcc")
    other = TileOrder(9, HMX_INT8_K4.name, 1, rows=(Mode(4, 256), Mode(4, 1)), cols=(Mode(64, 4),))
    monkeypatch.setitem(BY_ID, other.id, other)
    monkeypatch.setitem(BY_NAME, other.name, other)
    monkeypatch.setattr("tests.artifact_blobs.HMX_INT8_K4", other)
    monkeypatch.setattr("layouts.c_header.TILE_ORDERS", (other,))
    (tmp_path / "hvdc").mkdir()
    (tmp_path / "hvdc" / "tiles.h").write_text(tile_header())
    core = INCLUDE.parent / "src"
    more = ["-iquote", str(tmp_path), "-I", str(core), *map(str, sorted(core.glob("*.c"))), "-lm"]
    binary = program(SOURCE / "tools" / "hvdc_check.c", tmp_path / "hvdc_check", *more)
    with Checker(binary) as checker:
        for k, n in ((0, 0), (15, 15), (16, 15), (0, 16), (15, 16), (31, 63)):
            root = make_artifact(tmp_path / f"{k}-{n}.hvdc", BASE)
            at = k // 16 * other.elements + other.offset(k % 16, n)
            edit_tensor(root, FACTOR, lambda part, _, at=at: put(part, at, b"\x01"))
            assert checker.deep(root) is python_deep(root) is (Code.OK if n < BASE.rank else Code.DATA_PADDING)


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
    source.write_text(f'#include "{header}"\n#include "{header}"\n{USE}')
    command = [compiler, *language, *STRICT, "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_accessors_answer_impossible_questions(programs: dict[str, Path], tmp_path: Path) -> None:
    library = programs["hvdc_dump"].parent / "libhvdc_core.a"
    binary = program(HERE / "accessors.c", tmp_path / "accessors", str(library))
    good = make_artifact(tmp_path / "good.hvdc", BASES["base-decoder"])
    bad, uncalibrated = make_artifact(tmp_path / "bad.hvdc", BASE), make_artifact(tmp_path / "uncalibrated.hvdc", BASE)
    extra = make_artifact(tmp_path / "extra.hvdc", BASE)
    (bad / REGION).write_bytes(bytes(4096))
    (extra / "regions" / "extra").mkdir()
    damaged = make_artifact(tmp_path / "damaged.hvdc", BASES["base-decoder"])
    (damaged / "decoder" / "last.bin").write_bytes(bytes((damaged / "decoder" / "last.bin").stat().st_size))
    command = [str(binary), *map(str, (good, bad, extra, uncalibrated, damaged))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
