"""libhvdc_skel.so as the linker made it, and the skel as Hexagon code: the CPU's end in this machine's process, the
DSP's in an emulated one, on the same memory. What only a phone can tell: docs/HEXAGON.md.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_runtime.build import HEXAGON_DEVICES, SKEL
from exporters.synth import write_checkpoint
from hvdc.targets import load_target, target_names
from tests.commands import compiled
from tests.device_runtime.blocks import Blocks
from tests.device_runtime.hexagon import built_for_hexagon, emulated, why_no_hexagon
from tests.device_runtime.rpc import STAND_IN
from tests.device_runtime.test_hexagon_hmx import EXPECTED, functions
from tests.device_runtime.test_npu_blocks import case, on
from tests.exporters.models import GEOMETRY
from tests.quant.models import one_thread

READER = "llvm-readelf-22"
EXPORTED = {"hvdc_open", "hvdc_close", "hvdc_skel_handle_invoke"}
UNDEFINED = {
    # the C library of the DSP's image
    "abort", "calloc", "free", "malloc", "memalign", "memchr", "memcmp", "memcpy", "memset",
    "snprintf", "strcmp", "strlen", "strncmp", "vsnprintf",
    # Qualcomm's, of the DSP's image
    "HAP_mmap", "HAP_munmap", "HAP_perf_get_time_us", "HAP_power_set",
    # its kernel, QuRT
    "qurt_futex_wait", "qurt_futex_wake", "qurt_hvx_get_units", "qurt_mem_cache_clean",
    "qurt_mutex_destroy", "qurt_mutex_init", "qurt_mutex_lock", "qurt_mutex_unlock",
    "qurt_thread_create", "qurt_thread_get_id", "qurt_thread_get_priority", "qurt_thread_join",
}  # fmt: skip
WEAK = {
    f"compute_resource_{name}"
    for name in (
        "acquire", "attr_get_vtcm_ptr_v2", "attr_init", "attr_set_hmx_param", "attr_set_vtcm_param_v2", "hmx_lock",
        "hmx_unlock", "query_VTCM", "release",
    )
}  # fmt: skip
"""Of the DSP's image too; the library loads without them, and says what is missing."""

PAGE_BYTES = 4096
GRID = (1, 5, 8)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_for_hexagon(tmp_path_factory)


def read_elf(library: Path, *what: str) -> str:
    if shutil.which(READER) is None:
        pytest.skip(f"libhvdc_skel.so is not looked at: there is no {READER}: apt-get install llvm-22")
    return subprocess.run([READER, *what, str(library)], capture_output=True, text=True, check=True).stdout


def test_the_phone_of_every_target_has_a_skel() -> None:
    assert {load_target(name).hexagon_arch for name in target_names()} <= set(HEXAGON_DEVICES)


@pytest.mark.parametrize("arch", HEXAGON_DEVICES)
def test_the_skel_shows_and_needs_what_is_written_here(build: Path, arch: str) -> None:
    """Another undefined symbol would keep a phone from loading it, which nothing here would notice."""
    exported: set[str] = set()
    undefined: set[str] = set()
    weak: set[str] = set()
    for line in read_elf(build / f"hexagon-{arch}" / SKEL, "--dyn-syms").splitlines():
        words = line.split()
        if len(words) != 8 or words[0] == "Num:" or words[4] == "LOCAL":
            continue
        kind = exported if words[6] != "UND" else weak if words[4] == "WEAK" else undefined
        kind.add(words[7])
    assert exported == EXPORTED
    assert undefined == UNDEFINED
    assert weak == WEAK


@pytest.mark.parametrize("arch", HEXAGON_DEVICES)
def test_the_skel_is_a_library_for_its_architecture(build: Path, arch: str) -> None:
    library = build / f"hexagon-{arch}" / SKEL
    head, dynamic = read_elf(library, "-h"), read_elf(library, "-d")
    for words in (r"ELF32", r"little endian", r"DYN", r"Qualcomm Hexagon"):
        assert re.search(words, head), words
    assert re.search(r"Flags:\s+0x([0-9a-f]+)", head)[1] == arch.removeprefix("v")  # type: ignore[index]
    assert f"[{SKEL}]" in dynamic
    assert "NEEDED" not in dynamic
    assert "TEXTREL" not in dynamic


@pytest.mark.parametrize("arch", HEXAGON_DEVICES)
def test_segments_of_the_skel_start_and_end_on_pages_of_their_own(build: Path, arch: str) -> None:
    """So that each has its own protection; none is writable and executable, nor the stack."""
    pages: set[int] = set()
    for line in read_elf(build / f"hexagon-{arch}" / SKEL, "-l", "-W").splitlines():
        words = line.split()
        if words[:1] == ["GNU_STACK"]:
            assert "E" not in words[6:-1]
        if words[:1] != ["LOAD"]:
            continue
        offset, address, memory_bytes, alignment = (int(words[i], 16) for i in (1, 2, 5, -1))
        flags = words[6:-1]
        assert alignment == PAGE_BYTES
        assert offset % PAGE_BYTES == address % PAGE_BYTES
        assert not {"W", "E"} <= set("".join(flags))
        own = set(range(address // PAGE_BYTES, -(-(address + memory_bytes) // PAGE_BYTES)))
        assert not own & pages
        pages |= own
    assert pages


@pytest.mark.parametrize("arch", HEXAGON_DEVICES)
def test_the_skel_holds_a_devices_units(build: Path, arch: str) -> None:
    """The matrix unit's words where `test_hexagon_hmx.py` expects them, and vectors of floats; nothing portable."""
    code = functions(build / f"hexagon-{arch}" / SKEL, arch)
    unknown = {name: [w for w, text in lines if "<unknown>" in text and w != 0] for name, lines in code.items()}
    assert {name: words for name, words in unknown.items() if words} == EXPECTED
    assert any(re.search(r"\bv\d+\.sf\b", text) for _, text in code["hvx_layer_norm"])
    assert [name for name in code if "portable" in name or "exact" in name] == []


@pytest.fixture(scope="module")
def small_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that an emulator is done with in seconds."""
    folder = tmp_path_factory.mktemp("small")
    geometry = replace(GEOMETRY, width=64, ffn_width=80, rank=5, text_width=40)
    checkpoint = write_checkpoint(folder / "small.safetensors", geometry, layout="dcm", dtype="f32").path
    return compiled(checkpoint, folder / "small.hvdc", "--set", "text_tokens=24")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def on_dsp(programs: dict[str, Path], artifact: Path, folder: Path, *command: str) -> Blocks:
    """Blocks behind a stand-in of FastRPC, whose DSP is a command."""
    library = programs["hvdc_dsp"].parent / STAND_IN
    blocks = on(programs, artifact, folder, GRID, "--threads", 1, "--dsp", library)
    return replace(blocks, environment={"HVDC_STAND_IN_DSP": " ".join(command)})


def on_emulated_dsp(
    build: Path, programs: dict[str, Path], artifact: Path, folder: Path, arch: str, *options: str
) -> Blocks:
    if reason := why_no_hexagon():
        pytest.skip(reason)
    return on_dsp(programs, artifact, folder, *emulated(build, arch, "hvdc_dsp"), *options)


def test_a_trajectory_crosses_to_an_emulated_dsp_and_back(
    build: Path, programs: dict[str, Path], small_artifact: Path, tmp_path: Path
) -> None:
    """Both experts' blocks, a range of them from its start and from a hidden state that another engine left."""
    c = case(small_artifact, GRID)
    found: list[list[bytes]] = []
    portable = on(programs, small_artifact, tmp_path, GRID)
    for blocks in (portable, on_emulated_dsp(build, programs, small_artifact, tmp_path, "v79")):
        semantic = ("run", 0, 0, 1, "save", "hidden", tmp_path / "first")
        detail = ("run", 5, 0, 2, "save", "hidden", tmp_path / "both")
        resumed = ("hidden", tmp_path / "handed-over", "run", 5, 1, 1, "save", "hidden", tmp_path / "resumed")
        if not found:
            portable.run(*c.texts(blocks), "hidden", blocks.put("h", c.hidden), "run", 5, 0, 1, "save", "hidden",
                         tmp_path / "handed-over")  # fmt: skip
        blocks.run(*c.texts(blocks), "hidden", blocks.put("h", c.hidden), *semantic, *detail, *resumed)
        found.append([(tmp_path / name).read_bytes() for name in ("first", "both", "resumed")])
    assert found[0] == found[1]
    assert len(set(found[0])) == 3


def test_blocks_by_hexagon_code_with_the_model_of_the_matrix_unit(
    build: Path, programs: dict[str, Path], small_artifact: Path, tmp_path: Path
) -> None:
    """As on a phone: the session opens the unit, operands go through VTCM, sums come in two parts. To the bit what the
    same model gives on this machine; and close to exact sums, which are rounded to the other side now and then."""
    c, found = case(small_artifact, GRID), []
    unit = on_dsp(programs, small_artifact, tmp_path, str(programs["hvdc_dsp"]), "--unit")
    exact = on(programs, small_artifact, tmp_path, GRID, "--npu-sums", "exact")
    for blocks in (on_emulated_dsp(build, programs, small_artifact, tmp_path, "v79", "--unit"), unit, exact):
        hidden = blocks.put("h", c.hidden)
        blocks.run(*c.texts(blocks), "hidden", hidden, "run", 0, 0, 1, "save", "hidden", tmp_path / "semantic")
        blocks.run(*c.texts(blocks), "hidden", hidden, "run", 5, 0, 2, "save", "hidden", tmp_path / "detail")
        found.append([(tmp_path / name).read_bytes() for name in ("semantic", "detail")])
    assert found[0] == found[1]
    for mine, due in zip(found[1], found[2], strict=True):
        x, y = (np.frombuffer(values, np.float32).astype(np.float64) for values in (mine, due))
        assert np.linalg.norm(x - y) <= 1e-4 * np.linalg.norm(y), "FP32 sums are farther away"


def test_an_emulated_dsp_that_dies_is_told(
    build: Path, programs: dict[str, Path], small_artifact: Path, tmp_path: Path
) -> None:
    blocks = on_emulated_dsp(build, programs, small_artifact, tmp_path, "v73")
    dying = replace(blocks, environment={**blocks.environment, "HVDC_STAND_IN_FAULT": "lost:4"})
    said = dying.refused("memory")
    assert "the connection was reset: its process died, or the DSP restarted" in said
    assert "stand-in:" not in said


def test_both_ends_have_one_interface(build: Path, programs: dict[str, Path]) -> None:
    """Of a 32-bit machine and of a 64-bit one."""
    if reason := why_no_hexagon():
        pytest.skip(reason)
    commands = ([str(programs["hvdc_dsp"])], *(emulated(build, arch, "hvdc_dsp") for arch in ("v73", "v79")))
    said = {subprocess.run([*command, "--interface"], capture_output=True, check=True).stdout for command in commands}
    assert len(said) == 1
