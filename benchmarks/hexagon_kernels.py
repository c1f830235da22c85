"""What the vector unit's kernels cost on Hexagon, counted in the device build's code: packets of each inner loop.

A kernel is one or more passes, each an innermost loop of a function (device_runtime/npu/hexagon/src/hvx_*.c). A pass is
found among its function's loops by what it computes: how many slots of the two multipliers one step of it takes, and
how many vectors it stores. A compiler may have unrolled it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.hexagon_code import Loop, functions, loops


@dataclass(frozen=True)
class Pass:
    """One step of a loop: so many ``elements``, which it needs ``loads`` and ``stores`` of whole vectors for at least.

    ``multiplier_slots``: of the two that a packet has; the products, sums, and conversions to and from FP16 that the
    source asks for. ``columns``: it moves a whole tile, and its loop is the longest of its function.
    """

    kernel: str
    what: str
    function: str
    elements: int
    loads: int
    stores: int
    multiplier_slots: int

    @property
    def load_store_packets(self) -> int:
        """A packet has room for one load and one store."""
        return max(self.loads, self.stores)


PASSES = (
    Pass("widen", "128 codes to FP16", "hvx_widen", 128, 1, 2, 10),
    Pass("narrow", "64 FP32 to FP16", "hvx_narrow", 64, 2, 1, 1),
    Pass("layer_norm", "sum", "hvx_layer_norm", 32, 1, 0, 7),
    Pass("layer_norm", "sum of squares", "hvx_layer_norm", 32, 1, 0, 38),
    Pass("layer_norm", "factor and addend", "hvx_layer_norm", 32, 3, 1, 6),
    Pass("layer_norm", "narrowing", "hvx_layer_norm", 64, 2, 1, 1),
    Pass("rms_norm", "sum of squares", "hvx_rms_norm", 64, 1, 2, 20),
    Pass("rms_norm", "gain", "hvx_rms_norm", 32, 2, 1, 4),
    Pass("rms_norm", "RoPE", "hvx_rms_norm", 32, 2, 1, 5),
    Pass("rms_norm", "narrowing", "hvx_rms_norm", 64, 2, 1, 1),
    Pass("add_bias", "two rows of a tile", "hvx_add_bias", 64, 1, 2, 4),
    Pass("add_bias_gelu", "two rows of a tile", "hvx_add_bias_gelu", 64, 1, 1, 224),
    Pass("add", "a row of a tile", "hvx_add", 32, 2, 1, 6),
    Pass("residual", "gated", "hvx_residual", 64, 5, 2, 8),
    Pass("residual", "without a gate", "hvx_residual", 64, 3, 2, 4),
    Pass("weigh", "largest score", "hvx_weigh", 64, 1, 0, 2),
    Pass("weigh", "exponentials and their sum", "hvx_weigh", 64, 1, 1, 65),
    Pass("carry", "sums of values", "hvx_carry", 32, 2, 1, 3),
    Pass("divide", "by the sum of weights", "hvx_divide", 32, 1, 1, 53),
    Pass("pack_rows", "two rows to a tile", "hvx_pack_rows", 64, 2, 1, 0),
    Pass("pack_columns", "a tile, turned", "hvx_pack_columns", 1024, 32, 16, 0),
)


@dataclass(frozen=True)
class Counted:
    """A pass as it was compiled: figures of one step."""

    of: Pass
    packets: float
    vector_instructions: float
    hardware_loop: bool

    @property
    def per_element(self) -> float:
        return self.packets / self.of.elements

    @property
    def over_load_store(self) -> float:
        """Its packets in parts of those that its loads and stores need."""
        return self.packets / self.of.load_store_packets

    @property
    def bound_packets(self) -> float:
        """No order of its instructions takes fewer: loads, stores, both multipliers, four vector pipes."""
        return max(self.of.load_store_packets, self.of.multiplier_slots / 2)


class LoopError(Exception):
    """The compiler made a loop that is not recognised; the text lists what there is."""


def count(objects: list[Path], arch: str) -> list[Counted]:
    """Every pass, from the objects of one architecture."""
    found = {name: loops(packets) for path in objects for name, packets in functions(path, arch).items()}
    return [_counted(of, found.get(of.function, [])) for of in PASSES]


def _counted(of: Pass, among: list[Loop]) -> Counted:
    if of.kernel == "pack_columns":  # 16 vectors taken apart and put together: two loops, the second unrolled
        inner = [loop for loop in among if loop.stores]
        packets = sum(len(loop.packets) * (16 if loop.stores < 16 else 1) for loop in inner)
        if len(inner) != 2:
            raise LoopError(_why(of, among))
        return Counted(of, packets, sum(loop.vector_instructions for loop in inner), False)
    fits = [(loop, times) for loop in among if (times := _times(of, loop)) > 0]
    if not fits:
        raise LoopError(_why(of, among))
    loop, times = min(fits, key=lambda fit: len(fit[0].packets) / fit[1])
    return Counted(of, len(loop.packets) / times, loop.vector_instructions / times, loop.hardware)


def _times(of: Pass, loop: Loop) -> int:
    """How many steps of the pass one turn of the loop is; 0 if it is another pass."""
    if of.multiplier_slots == 0:
        return int(loop.multiplier_slots == 0 and loop.stores > 0 and loop.loads >= of.loads)
    times, rest = divmod(loop.multiplier_slots, of.multiplier_slots)
    if rest or times == 0 or loop.loads < of.loads * times:
        return 0
    return times if (loop.stores == 0) == (of.stores == 0) and loop.stores >= of.stores * times else 0


def _why(of: Pass, among: list[Loop]) -> str:
    seen = ", ".join(
        f"{len(x.packets)} packets with {x.loads} loads, {x.stores} stores, {x.multiplier_slots} multiplier slots"
        for x in among
    )
    return f"{of.function} has no loop for '{of.what}' ({of.multiplier_slots} multiplier slots); it has: {seen}"
