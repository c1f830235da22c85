"""``make bench-hexagon``: what the NPU's kernels cost on Hexagon, counted, and a roofline of one block.

Writes the section "Hexagon, counted" of docs/BENCHMARKS.md. Nothing is timed and nothing runs on a phone: packets are
counted in the device build's code, and divided by rates that others measured or that are assumed.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from benchmarks.hexagon_code import DISASSEMBLER
from benchmarks.hexagon_kernels import Counted, count
from benchmarks.npu_roofline import PAPER_BLOCK_S, Call, Packets, Rates, Stage, block, rates
from benchmarks.report import Line, lines_table, say, write_section
from device_runtime.build import build_host
from exporters.model import DCM_WAN21_1_3B
from hvdc.targets import load_target

TOKENS = 20_280
ARCH = "v79"
WIDEN_GOAL = 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("build/bench/hexagon"), help="where programs are built")
    parser.add_argument("--output", type=Path, default=Path("docs/BENCHMARKS.md"), help="the document to write into")
    parser.add_argument("--clock-ghz", type=float, default=1.0, help="of the vector unit, which nobody publishes")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="M of the roofline")
    arguments = parser.parse_args()
    folder: Path = arguments.dir.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    say("building for Hexagon")
    build_host("hexagon", folder / "hexagon")
    plans = build_host("host", folder / "host", ("hvdc_vtcm",))["hvdc_vtcm"]
    counted = count(device_objects(folder / "hexagon", ARCH), ARCH)
    at = rates(arguments.clock_ghz)
    text = report(counted, at, arguments.tokens, plans)
    print(text)
    write_section(arguments.output, "Hexagon, counted", "make bench-hexagon", text, ("hvdc", "numpy"))


def device_objects(build: Path, arch: str) -> list[Path]:
    """The vector unit's kernels in a build folder, as a device has them."""
    return sorted(build.rglob(f"hvdc_skel_{arch}.dir/src/hvx_*.obj"))


def report(counted: list[Counted], at: Rates, tokens: int, plans: Path) -> str:
    compiler = subprocess.run(["clang-22", "--version"], capture_output=True, text=True, check=True).stdout
    head = (
        f"Counted in the code of {compiler.splitlines()[0]} for {ARCH.upper()} ({DISASSEMBLER}); nothing was timed and "
        "nothing ran on a phone. A packet is what a hardware thread starts at once, at most one a cycle; waits for "
        "memory and for results come on top. 'Bound': what loads and stores (one of each a packet) and the two "
        "multipliers need."
    )
    sources = "\n".join(
        f"- {what}: {rate.source}"
        for what, rate in (
            ("matrix unit", at.multiply_adds),
            ("memory", at.memory_bytes),
            ("vector contexts", at.contexts),
            ("their clock", at.clock_hz),
        )
    )
    return "\n\n".join(
        [head, kernel_table(counted, at), lines_table(goals(counted, at)), "Rates of the roofline:", sources]
        + [
            f"One block of the {'detail' if adapter else 'semantic'} expert, M = {tokens:,}:\n\n"
            + roofline_table(block(DCM_WAN21_1_3B, tokens, adapter, Packets(counted)), at, plans)
            for adapter in (False, True)
        ]
        + [notes(counted, at)]
    )


def kernel_table(counted: list[Counted], at: Rates) -> str:
    rows = [
        "| kernel | a step | packets | per element | vector instructions a packet | multiplier slots a packet, of 2 "
        "| load/store bound | packets ÷ it | bound | packets ÷ it | elements/s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for c in counted:
        rows.append(
            f"| {c.of.kernel} | {c.of.what} ({c.of.elements}) | {c.packets:.4g} | {c.per_element:.3f} "
            f"| {c.vector_instructions / c.packets:.2f} | {c.of.multiplier_slots / c.packets:.2f} "
            f"| {c.of.load_store_packets} | {c.over_load_store:.2f} | {c.bound_packets:.4g} "
            f"| {c.packets / c.bound_packets:.2f} | {at.packets / c.per_element / 1e9:.2f} G |"
        )
    return "\n".join(rows)


def widening(counted: list[Counted]) -> Counted:
    return next(c for c in counted if c.of.kernel == "widen")


def goals(counted: list[Counted], at: Rates) -> list[Line]:
    widen = widening(counted)
    shape = DCM_WAN21_1_3B
    codes = 6 * shape.width**2 + 2 * shape.width * shape.ffn_width
    vector_s, memory_s = codes * widen.per_element / at.packets, 3 * codes / at.memory_bytes.value
    return [
        Line(
            "widening ÷ its load/store bound",
            f"{widen.over_load_store:.2f}",
            f"≤ {WIDEN_GOAL}",
            widen.over_load_store <= WIDEN_GOAL,
            f"{widen.packets:g} packets of 128 codes, two stores; its multipliers alone need {widen.bound_packets:g}",
        ),
        Line(
            "widening all weights of a block ÷ the paper's block",
            f"{max(vector_s, memory_s) / PAPER_BLOCK_S:.2%}",
            "none",
            True,
            f"{vector_s * 1e3:.2f} ms of packets, {memory_s * 1e3:.2f} ms of memory",
        ),
    ]


def roofline_table(stages: list[Stage], at: Rates, plans: Path) -> str:
    fetched = fetched_tiles(stages, plans)
    rows = [
        "| stage | multiply-adds | least bytes | moved without a cache | through VTCM | vector packets "
        "| matrix, s | memory, s | vector, s | bound by |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    total: dict[str, float] = {}
    best = alone = moved_s = 0.0
    for stage in stages:
        seconds, moved = stage.seconds(at), stage.moved_bytes(fetched.__getitem__)
        best, alone = best + max(seconds.values()), alone + sum(seconds.values())
        moved_s += moved / at.memory_bytes.value
        for unit, value in seconds.items():
            total[unit] = total.get(unit, 0.0) + value
        rows.append(
            f"| {stage.name} | {stage.multiply_adds / 1e9:,.0f} G | {stage.least_bytes / 1e6:,.0f} MB "
            f"| {moved / 1e9:,.2f} GB | {stage.vtcm_bytes / 1e9:,.1f} GB | {stage.packets / 1e6:,.0f} M "
            f"| {seconds['matrix']:.4f} | {seconds['memory']:.4f} | {seconds['vector']:.4f} "
            f"| {max(seconds, key=lambda unit: seconds[unit])} |"
        )
    rows.append(
        f"| all | {sum(s.multiply_adds for s in stages) / 1e9:,.0f} G "
        f"| {sum(s.least_bytes for s in stages) / 1e6:,.0f} MB "
        f"| {moved_s * at.memory_bytes.value / 1e9:,.2f} GB | {sum(s.vtcm_bytes for s in stages) / 1e9:,.1f} GB "
        f"| {sum(s.packets for s in stages) / 1e6:,.0f} M | {total['matrix']:.4f} | {total['memory']:.4f} "
        f"| {total['vector']:.4f} | |"
    )
    return "\n".join(rows) + (
        f"\n\nAt least **{best:.2f} s** if the units of a stage work at the same time, {alone:.2f} s if they take "
        f"turns; {moved_s:.2f} s if all that is moved came from DRAM. The paper's NPU took {PAPER_BLOCK_S} s: "
        f"{PAPER_BLOCK_S / best:.1f} × the first, {PAPER_BLOCK_S / alone:.1f} × the second."
    )


def fetched_tiles(stages: list[Stage], plans: Path) -> dict[Call, int]:
    """What the plan of VTCM fetches for each call, by the program that has it from the executor's own source."""
    calls = sorted({call for stage in stages for call, _ in stage.calls})
    budget = int(load_target("sm8750").vtcm_bytes.value)
    asked = "".join(f"{budget} {' '.join(map(str, call))}\n" for call in calls)
    answer = subprocess.run([plans, "plans"], input=asked, capture_output=True, text=True, check=True).stdout
    return {call: int(line.split()[-1]) for call, line in zip(calls, answer.splitlines(), strict=True)}


def notes(counted: list[Counted], at: Rates) -> str:
    widen = widening(counted)
    times = at.packets / widen.packets * (3 * widen.of.elements) / at.memory_bytes.value
    return f"""Why widening is not nearer to its loads and stores. `fp16(fp32(q · s))` takes 128 FP32 products, of
which a packet makes 32 with both multipliers: 4 packets; narrowing them takes a fifth. The rest, one load, two stores,
four conversions and six instructions that part the codes, fits beside these, so that {widen.bound_packets:g} is the
floor of this way; the compiler reaches {widen.packets:g}. Ways that were weighed and not taken:

- products of FP16 numbers (`vdmpy`, 32 sums of two in half a packet): a scale of 24 bits is a sum of two FP16 numbers
  in about three of four cases, so that every column of tiles would need a search for pairs with the right 255 products,
  or the slow way; scales leave FP16's range, which costs two more instructions; 16 slots of vector pipes are left,
  4 packets;
- products that are rounded once to FP16 (`vmpy` of halves): 2.5 packets, other numbers;
- the scale as the matrix unit's column scale, or as a diagonal that it multiplies: the vector unit would only widen,
  within its bound; other numbers too (rounded after the sum, or once instead of twice);
- codes as indices of a table (`vgather`): a table for each column of tiles is 16 KiB of VTCM, and no rate of a gather
  is known.

By packets the contexts widen {times:.1f} times as fast as memory delivers and takes, so that their number decides
nothing for a block.

What bounds a block is the softmax: its exponentials are FP32 polynomials of degree 7, since an exponential in FP16 is
right to no more than 3 digits. Fewer packets there would count; anywhere else they hardly do.

What the roofline leaves out: waits of threads for each other and for the matrix unit's lock, FastRPC, results of the
matrix unit that become FP32 (`halves.c`), caches. Its memory column takes every input and output once; what is moved
without a cache is what DMA fetches to VTCM by its plan, results, and what vector kernels load and store. The paper's
text prints no time of a block; its 677 s of a period, without 267 s of decoding, are 3.18 s for each of 129 blocks."""


if __name__ == "__main__":
    main()
