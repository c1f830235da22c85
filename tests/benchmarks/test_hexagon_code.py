"""Packets and loops read from a disassembly, and passes of kernels recognised among them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.hexagon_code import DISASSEMBLER, Loop, Packet, loops, parse
from benchmarks.hexagon_cost import device_objects
from benchmarks.hexagon_kernels import PASSES, LoopError, Pass, _counted, count
from tests.device_runtime.hexagon import built_for_hexagon

LISTING = """
x.o:\tfile format elf32-hexagon

Disassembly of section .text:

00000000 <outer>:
       0: { \tr2 = asl(r2,#0x3) }
       4: { \tloop0(0x10,r4)
       8:   \tv0 = vmemu(r1+#0x0) }
      10: { \tv3:2.h = vsxt(v1.b)
      14:   \tv1.cur = vmem(r0+#-0x2) }
      18: { \tv1.sf = vmpy(v1.sf,v0.sf)
      1c:   \tv8.sf = v2.w; \tnop }
      20: { \tv1.hf = vcvt(v2.sf,v1.sf)
      24:   \tr0 = add(r0,#0x80)
      28:   \tvmem(r1++#0x1) = v1.new }  :endloop0
      2c: { \tp0 = cmp.gtu(r3,r2); \tif (p0.new) jump:t 0x4 <outer+0x4> }
      30: { \tjumpr r31 }

00000034 <other>:
      34: { \tjumpr r31 }
"""


def test_packets_of_a_function() -> None:
    found = parse(LISTING)
    assert list(found) == ["outer", "other"]
    assert [len(packet.instructions) for packet in found["outer"]] == [1, 2, 2, 2, 3, 2, 1]
    assert found["outer"][4] == Packet(
        0x20, ("v1.hf = vcvt(v2.sf,v1.sf)", "r0 = add(r0,#0x80)", "vmem(r1++#0x1) = v1.new"), "0"
    )


def test_innermost_loops_alone() -> None:
    """The outer one, which ends with a jump, has a hardware loop inside."""
    (loop,) = loops(parse(LISTING)["outer"])
    assert loop.hardware
    assert len(loop.packets) == 3
    assert (loop.loads, loop.stores, loop.vector_instructions) == (1, 1, 6)
    assert loop.multiplier_slots == 3  # a product takes both, a conversion one
    assert loops(parse(LISTING)["other"]) == []


def test_an_unrolled_loop_is_several_steps() -> None:
    (loop,) = loops(parse(LISTING)["outer"])
    twice = Loop(loop.packets * 2, True)
    of = Pass("k", "what", "outer", 32, 1, 1, 3)
    assert _counted(of, [loop]).packets == 3
    assert _counted(of, [twice]).packets == 3
    with pytest.raises(LoopError, match=r"no loop for 'what' .*; it has: 3 packets with 1 loads"):
        _counted(Pass("k", "what", "outer", 32, 1, 1, 4), [loop])


no_disassembler = pytest.mark.skipif(
    shutil.which(DISASSEMBLER) is None, reason=f"there is no {DISASSEMBLER}: apt-get install llvm-22"
)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return device_objects(built_for_hexagon(tmp_path_factory), "v79")


@no_disassembler
def test_every_pass_of_the_device_s_kernels_is_found(objects: list[Path]) -> None:
    counted = count(objects, "v79")
    assert [c.of for c in counted] == list(PASSES)
    for c in counted:
        assert c.packets >= c.bound_packets * 0.99, c.of


@no_disassembler
def test_widening_is_a_hardware_loop_near_what_its_multipliers_need(objects: list[Path]) -> None:
    (widen,) = (c for c in count(objects, "v79") if c.of.kernel == "widen")
    assert widen.hardware_loop
    assert widen.packets <= 1.3 * widen.bound_packets
