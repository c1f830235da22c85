"""The matrix unit in Hexagon programs: as a model in those that an emulator executes, to the bit what it is on this
machine (test_hmx_staged.py); as instructions in what phones get. No emulator has these, so that their words and places
are all that is looked at.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from device_runtime.build import HEXAGON_DEVICES, HEXAGON_EMULATED
from tests.device_runtime.hexagon import built_for_hexagon, emulated, why_no_hexagon
from tests.device_runtime.kernels import Array, Kernels, padded, rng, tiled, weight
from tests.device_runtime.test_hexagon_instructions import DISASSEMBLER

V79_KIB, LEAST_KIB = 8192, 28


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_for_hexagon(tmp_path_factory)


# --- the model, executed ---------------------------------------------------------------------------------------------

Both = tuple[Kernels, Kernels]


@pytest.fixture(scope="module", params=[(arch, V79_KIB) for arch in HEXAGON_EMULATED] + [("v79", LEAST_KIB)], ids=str)
def both(build: Path, programs: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Both]:
    """Emulated, and on this machine."""
    if reason := why_no_hexagon():
        pytest.skip(reason)
    arch, kib = request.param
    command = emulated(build, arch, "hvdc_kernels")
    with (
        Kernels(command, threads=2, sums="exact", vtcm_kib=kib) as hexagon,
        Kernels(programs["hvdc_kernels"], threads=2, sums="exact", vtcm_kib=kib) as host,
    ):
        yield hexagon, host


def ask(both: Both, name: str, *sizes: int, arrays: tuple[Array, ...], dtype: npt.DTypeLike = np.float16) -> Array:
    found, due = (kernels.ask(name, *sizes, arrays=arrays, dtype=dtype) for kernels in both)
    word = np.dtype(f"u{found.itemsize}")
    nan = np.isnan(found) & np.isnan(due)
    np.testing.assert_array_equal(np.where(nan, 0, found.view(word)), np.where(nan, 0, due.view(word)))
    return found


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (24, 33, 31), (40, 33, 200)])
def test_products_and_sums(both: Both, m: int, n: int, k: int) -> None:
    r = rng(m, n, k)
    arrays = tuple(r.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    found = ask(both, "multiply", m, n, k, arrays=arrays)
    assert np.isfinite(found).all()
    ask(both, "sums", m, n, k, arrays=arrays, dtype=np.float32)


def test_products_of_any_bits(both: Both) -> None:
    arrays = tuple(rng(3, n).integers(0, 0x10000, (n, 40)).astype(np.uint16).view(np.float16) for n in (40, 33))
    ask(both, "multiply", 40, 33, 40, arrays=arrays)


def test_a_linear_as_long_as_the_models(both: Both) -> None:
    """K = 1536, of one tile of rows and one of columns."""
    r = rng(1)
    x, bias = r.standard_normal((24, 1536)).astype(np.float16), padded(r.standard_normal(32).astype(np.float32))
    ask(both, "linear", 24, 32, 1536, 0, arrays=(x, *tiled(*weight(r, 32, 1536)), bias))


def test_a_linear_and_its_adapter(both: Both) -> None:
    r = rng(2)
    x, bias = r.standard_normal((40, 70)).astype(np.float16), padded(r.standard_normal(40).astype(np.float32))
    arrays = (x, *tiled(*weight(r, 40, 70)), bias, *tiled(*weight(r, 8, 70)), *tiled(*weight(r, 40, 8)))
    ask(both, "linear", 40, 40, 70, 8, arrays=arrays)


@pytest.mark.parametrize(("m", "keys", "heads", "dim"), [(24, 8, 2, 32), (8, 520, 1, 128)])
def test_attention(both: Both, m: int, keys: int, heads: int, dim: int) -> None:
    r, width = rng(m, keys), heads * dim
    arrays = tuple(r.standard_normal((rows, width)).astype(np.float16) for rows in (m, keys, keys))
    ask(both, "attention", m, keys, heads, dim, arrays=arrays)


@pytest.mark.parametrize("arch", ["v73", "v79"])
def test_more_transfers_than_there_are_descriptors(build: Path, programs: dict[str, Path], arch: str) -> None:
    """K is cut into 35 pieces, and each piece of both operands is fetched: 280 transfers and their results."""
    if reason := why_no_hexagon():
        pytest.skip(reason)
    arrays = tuple(rng(4, i).standard_normal((64, 1100)).astype(np.float16) for i in range(2))
    with (
        Kernels(emulated(build, arch, "hvdc_kernels"), sums="exact", vtcm_kib=LEAST_KIB) as hexagon,
        Kernels(programs["hvdc_kernels"], sums="exact", vtcm_kib=LEAST_KIB) as host,
    ):
        ask((hexagon, host), "multiply", 64, 64, 1100, arrays=arrays)


# --- the instructions, looked at -------------------------------------------------------------------------------------


def word(pattern: str, s: int = 0, t: int = 0, end: bool = True) -> int:
    """An instruction from its pattern in target/hexagon/imported/hmx/encode_ext.def of qualcomm/qemu: s and t are
    numbers of registers, P says whether the packet ends here."""
    fields = {"s": f"{s:05b}", "t": f"{t:05b}", "P": "11" if end else "01", "-": "0" * 16}
    at = dict.fromkeys(fields, 0)
    bits = ""
    for character in pattern:
        if character in fields:
            bits += fields[character][at[character]]
            at[character] += 1
        else:
            bits += character
    return int(bits, 2)


ROWS = word("10010010000sssssPP0ttttt11100010", 0, 1, end=False)
"""activation.hf = mxmem(r0,r1):deep"""
WEIGHTS = word("10010010000sssssPP1ttttt11101111", 2, 3)
"""weight.hf = mxmem(r2,r3)"""
CLEAR = word("10100110111-----PP0-------010011")
"""mxclracc.hf"""
SCALE = word("10010010000sssssPP--001111111110")
"""bias = mxmem2(r0)"""
STORE = word("10100110111sssssPP1ttttt--000100", 0, 1)
"""mxmem(r0,r1):after.hf = acc"""
STORE_AND_KEEP = word("10100110111sssssPP1ttttt--001100", 0, 1)
"""mxmem(r0,r1):after:retain.hf = acc"""

EXPECTED = {
    "hvdc_unit_clear": [CLEAR],
    "hvdc_unit_accumulate": [ROWS, WEIGHTS],
    "hvdc_unit_scale": [SCALE],
    "hvdc_unit_store": [STORE],
    "hvdc_unit_store_and_keep": [STORE_AND_KEEP],
}

Code = list[tuple[int, str]]
"""Words and what they mean, in their order."""

LINE = re.compile(r"^\s+[0-9a-f]+:\s+(?:[0-9a-f]{2}[ \t]){4}\s*([0-9a-f]{8})\s*(.*)$")


def functions(file: Path, arch: str) -> dict[str, Code]:
    if shutil.which(DISASSEMBLER) is None:
        pytest.skip(f"there is no {DISASSEMBLER}: apt-get install llvm-22")
    features = "+hvx,+hvx-length128b,+hvx-ieee-fp"
    command = [DISASSEMBLER, "-d", f"--mcpu=hexagon{arch}", f"--mattr={features}", str(file)]
    found: dict[str, Code] = {}
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        if begin := re.match(r"^[0-9a-f]+ <(\w+)>:$", line):
            found[begin[1]] = code = []
        elif match := LINE.match(line):
            code.append((int(match[1], 16), match[2]))
    return found


def ends_packet(instruction: int) -> bool:
    """Bits 15:14 are 11 at a packet's end, or 00 of two instructions in one word."""
    return instruction >> 14 & 3 in (0, 3)


@pytest.fixture(scope="module", params=HEXAGON_DEVICES)
def device(build: Path, request: pytest.FixtureRequest) -> dict[str, Code]:
    return functions(build / f"hexagon-{request.param}" / "libhvdc_hmx.a", request.param)


def test_words_are_those_that_others_execute() -> None:
    """As facts about the unit have them, apart from the patterns."""
    due = (0x920041E2, 0x9202E3EF, 0xA6E0C013, 0x9200C3FE, 0xA6E0E104, 0xA6E0E10C)
    assert due == (ROWS, WEIGHTS, CLEAR, SCALE, STORE, STORE_AND_KEEP)


def test_the_units_instructions_are_where_they_should_be(device: dict[str, Code]) -> None:
    """Each once, in its function, in a packet of its own; and nothing else that the disassembler does not know."""
    unknown = {name: [w for w, text in code if "<unknown>" in text] for name, code in device.items()}
    assert {name: words for name, words in unknown.items() if words} == EXPECTED
    for name, words in EXPECTED.items():
        code = [w for w, _ in device[name]]
        at = code.index(words[0])
        assert code[at : at + len(words)] == words
        assert at == 0 or ends_packet(code[at - 1]), f"{name}: the packet before goes on"
        assert [ends_packet(w) for w in words] == [False] * (len(words) - 1) + [True]


def test_a_packets_ranges_are_in_its_registers(device: dict[str, Code]) -> None:
    """r3:2 = combine(range, weights) right before the packet, and r1, which has the range: 2048 n − 1."""
    texts = [text for _, text in device["hvdc_unit_accumulate"]]
    packet = next(i for i, (w, _) in enumerate(device["hvdc_unit_accumulate"]) if w == ROWS)
    assert re.search(r"r3:2 = combine\(r1,r\d+\)", texts[packet - 1])
    before = " ".join(texts[:packet])
    assert re.search(r"asl\(r\d+,#0xb\)", before)
    assert re.search(r"r1 = add\(r\d+,#-0x1\)", before)


def test_dma_instructions(device: dict[str, Code]) -> None:
    """Memory has a descriptor before the engine begins it, or goes on to it."""
    for name, instruction in (("start", r"dmstart\(r\d+\)"), ("link", r"dmlink\(r\d+,r\d+\)")):
        texts = [text for _, text in device[f"dma_engine_{name}"]]
        at = [
            next(i for i, text in enumerate(texts) if re.search(p, text)) for p in (r"release\(r\d+\):at", instruction)
        ]
        assert at == sorted(at)
    assert any(re.search(r"r\d+ = dmpoll", text) for _, text in device["dma_engine_poll"])


@pytest.mark.parametrize("arch", HEXAGON_EMULATED)
def test_emulated_programs_have_none_of_them(build: Path, arch: str) -> None:
    words = {w for expected in EXPECTED.values() for w in expected}
    program = functions(build / f"hexagon-{arch}" / "hvdc_kernels", arch)
    assert set(EXPECTED) <= set(program)
    assert all(program[name] for name in EXPECTED)
    for name, code in program.items():
        assert not [hex(w) for w, _ in code if w in words], name
        assert not [text for _, text in code if re.search(r"\bdm(?:start|link|poll|wait)\b", text)], name


KNOWN_UNDEFINED = {
    "_GLOBAL_OFFSET_TABLE_", "__hexagon_udivsi3", "__hexagon_umodsi3", "abort", "hvdc_fail",
    "qurt_mutex_destroy", "qurt_mutex_init", "qurt_mutex_lock", "qurt_mutex_unlock",
}  # fmt: skip


@pytest.mark.parametrize("arch", HEXAGON_DEVICES)
def test_what_a_dsp_has_to_give_it(build: Path, arch: str) -> None:
    if shutil.which("llvm-nm-22") is None:
        pytest.skip("there is no llvm-nm-22: apt-get install llvm-22")
    command = ["llvm-nm-22", str(build / f"hexagon-{arch}" / "libhvdc_hmx.a")]
    lines = [
        line.split() for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    ]
    defined = {line[2] for line in lines if len(line) == 3}
    assert {line[1] for line in lines if len(line) == 2 and line[0] == "U"} - defined <= KNOWN_UNDEFINED
    assert {"hvdc_hmx_for", "hvdc_hmx_staged_open", "hvdc_hmx_staged_close"} <= defined
