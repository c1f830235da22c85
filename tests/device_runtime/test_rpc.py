"""The NPU engine behind FastRPC: stub, marshalling and skel, with a stand-in of FastRPC's library between them.

In one process, and in two; the other process may be an emulated DSP, which `test_hexagon_rpc.py` sees to.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from device_runtime.build import HEXAGON_DEVICES
from tests.device_runtime.blocks import Blocks
from tests.device_runtime.rpc import STAND_IN
from tests.device_runtime.test_npu_blocks import Case, case, on

GRID = (1, 5, 8)
SPLIT = "in two processes"


@pytest.fixture(scope="module")
def stand_in(programs: dict[str, Path]) -> Path:
    return programs["hvdc_dsp"].parent / STAND_IN


@pytest.fixture
def dsp(programs: dict[str, Path], stand_in: Path, ragged_artifact: Path, tmp_path: Path) -> Blocks:
    """In one process."""
    return on(programs, ragged_artifact, tmp_path, GRID, "--threads", 2, "--dsp", stand_in)


def with_fault(blocks: Blocks, fault: str) -> Blocks:
    return replace(blocks, environment={**blocks.environment, "HVDC_STAND_IN_FAULT": fault})


def in_two(blocks: Blocks) -> Blocks:
    program = blocks.program.with_name("hvdc_dsp")
    return replace(blocks, environment={**blocks.environment, "HVDC_STAND_IN_DSP": str(program)})


def both_experts(c: Case, blocks: Blocks) -> tuple[object, ...]:
    return (*c.texts(blocks), "hidden", blocks.put("h", c.hidden), "run", 0, 0, 2, "run", 5, 0, 2)


@pytest.mark.parametrize("place", ["in one process", SPLIT])
@pytest.mark.parametrize("weights", ["mapped", "copied"])
@pytest.mark.parametrize("model", ["tiny_artifact", "ragged_artifact"])
def test_blocks_are_those_of_the_engine_to_the_bit(
    programs: dict[str, Path], stand_in: Path, request: pytest.FixtureRequest, tmp_path: Path,
    model: str, weights: str, place: str,
) -> None:  # fmt: skip
    artifact = request.getfixturevalue(model)
    c, found = case(artifact, GRID), []
    for options in ((), ("--dsp", stand_in)):
        blocks = on(programs, artifact, tmp_path, GRID, "--threads", 2, "--weights", weights, *options)
        blocks = in_two(blocks) if place == SPLIT else blocks
        blocks.run(*both_experts(c, blocks), "save", "hidden", tmp_path / "y")
        found.append((tmp_path / "y").read_bytes())
    assert found[0] == found[1]


def test_a_split_between_engines_changes_nothing(dsp: Blocks, programs: dict[str, Path], ragged_artifact: Path) -> None:
    """Block ranges, and a hidden state that goes from one engine to the other."""
    c, folder = case(ragged_artifact, GRID), dsp.folder
    portable = on(programs, ragged_artifact, folder, GRID)
    start = (*c.texts(dsp), "hidden", dsp.put("h", c.hidden))
    portable.run(*start, "run", 0, 0, 2, "save", "hidden", folder / "whole")
    portable.run(*start, "run", 0, 0, 1, "save", "hidden", folder / "half")
    dsp.run(*c.texts(dsp), "hidden", folder / "half", "run", 0, 1, 1, "save", "hidden", folder / "resumed")
    assert (folder / "whole").read_bytes() == (folder / "resumed").read_bytes()


def test_a_new_prompt_replaces_the_one_before(dsp: Blocks, ragged_artifact: Path) -> None:
    c = case(ragged_artifact, GRID)
    other = dsp.put("other", torch.randn_like(c.text["semantic"]))
    start, save = ("hidden", dsp.put("h", c.hidden)), ("run", 0, 0, 1, "save", "hidden", dsp.folder / "y")

    def ran(*text: object) -> bytes:
        dsp.run(*text, *start, *save)
        return (dsp.folder / "y").read_bytes()

    plain = ran(*c.texts(dsp))
    assert ran("projected", 0, other) != plain
    assert ran("projected", 0, other, *c.texts(dsp)) == plain


def test_memory_counts_both_ends(dsp: Blocks, programs: dict[str, Path], ragged_artifact: Path) -> None:
    """The engine's on the DSP, without RoPE's rotations, which were given, and what this end shares with it."""
    c = case(ragged_artifact, GRID)
    portable = on(programs, ragged_artifact, dsp.folder, GRID)
    here, there = (int(blocks.run(*c.texts(blocks), "memory").split()[1]) for blocks in (portable, dsp))
    files = [p for folder in ("regions", "adapters", "schedule") for p in (ragged_artifact / folder).iterdir()]
    assert there - here == sum(p.stat().st_size for p in files)


def test_stages_are_timed_on_the_dsp(dsp: Blocks, ragged_artifact: Path) -> None:
    c = case(ragged_artifact, GRID)
    said = dsp.run(*c.texts(dsp), "hidden", dsp.put("h", c.hidden), "time", 2, 0, 0, 1)
    assert said.count("self-attention") == 2


@pytest.mark.parametrize("place", ["in one process", SPLIT])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("offline", ("does not grant an unsigned process: it is offline (0x72)", "restart the phone")),
        ("no-domain", ("no compute DSP (domain cdsp)", "--npu portable")),
        ("unsigned", ("this process may not use the DSP (0x15)", "unsigned")),
        ("stacks", ("does not give its threads larger stacks: it has no such method (0x14)", "from one build")),
        ("no-skel", ("does not load the NPU executor: it finds no skel of ours (0x80000445)", "DSP_LIBRARY_PATH")),
        ("version", ("libhvdc_skel.so is of runtime 0.1.0", "hvdc runtime build --target hexagon")),
        ("abi", ("does not answer to hello: the skel is of another version of the interface", "from one build")),
        ("map", ("FastRPC does not take descriptor", "room", "(0x65)")),
    ],
)
def test_what_is_wrong_with_a_dsp_is_said(dsp: Blocks, fault: str, words: tuple[str, ...], place: str) -> None:
    blocks = with_fault(in_two(dsp) if place == SPLIT else dsp, fault)
    said = blocks.refused("memory")
    assert all(word in said for word in words), said
    assert "stand-in:" not in said, "mappings were left"


@pytest.mark.parametrize("arch", [arch.removeprefix("v") for arch in HEXAGON_DEVICES])
def test_a_dsp_gets_the_skel_of_its_architecture(dsp: Blocks, arch: str) -> None:
    """The stand-in has no other, and an architecture's number is the low byte of what FastRPC says."""
    replace(dsp, environment={**dsp.environment, "HVDC_STAND_IN_ARCH": arch}).run("memory")


@pytest.mark.parametrize("arch", ["68", "69", "85"])
def test_an_architecture_without_a_skel_is_told(dsp: Blocks, arch: str) -> None:
    said = replace(dsp, environment={**dsp.environment, "HVDC_STAND_IN_ARCH": arch}).refused("memory")
    assert f"the DSP is a Hexagon v{arch}, and libhvdc_skel.so is built for v73 to v81; take --npu portable" in said


def test_a_machine_without_fastrpc_is_told(programs: dict[str, Path], ragged_artifact: Path, tmp_path: Path) -> None:
    blocks = on(programs, ragged_artifact, tmp_path, GRID, "--dsp", "libcdsprpc.so")
    said = blocks.refused("memory")
    assert "FastRPC's library libcdsprpc.so cannot be loaded" in said
    assert "--npu portable" in said


def test_another_library_is_told(programs: dict[str, Path], ragged_artifact: Path, tmp_path: Path) -> None:
    blocks = on(programs, ragged_artifact, tmp_path, GRID, "--dsp", "libm.so.6")
    assert "libm.so.6 has no function remote_handle64_open" in blocks.refused("memory")


@pytest.mark.parametrize("place", ["in one process", SPLIT])
def test_a_session_that_is_lost_in_the_middle_is_said_and_stays_lost(
    dsp: Blocks, ragged_artifact: Path, place: str
) -> None:
    """Wherever it happens, the program ends with a sentence, and with nothing mapped."""
    c = case(ragged_artifact, GRID)
    blocks = in_two(dsp) if place == SPLIT else dsp
    lost = 0
    for call in (1, 2, 3, 7, 9, 10, 13, 14, 15):
        done = with_fault(blocks, f"lost:{call}").ask(*both_experts(c, blocks), "save", "hidden", blocks.folder / "y")
        assert "Sanitizer" not in done.stderr, done.stderr
        assert "stand-in:" not in done.stderr, done.stderr
        if done.returncode == 0:
            break
        assert "the connection was reset: its process died, or the DSP restarted (0x68)" in done.stderr
        lost += 1
    assert lost > 5
