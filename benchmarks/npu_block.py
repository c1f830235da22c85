"""The NPU executor's portable build: one full-width block at M = 1024 against the same block in torch fp32.

    python -m benchmarks.npu_block

Prints its lines; `npu_block_lines` gives them to a benchmark that writes docs/BENCHMARKS.md. Both run on the same
cores, in turns, so that what else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.report import Line, lines_table, say
from device_runtime.build import build_host
from exporters.model import DCM_WAN21_1_3B
from hvdc.artifact.reader import open_artifact
from hvdc.config import CompileConfig
from hvdc.pipeline.sources import ArtifactSource
from hvdc.pipeline.splat import build_splat
from hvdc.progress import Silent
from quant.paths.arithmetic import At
from quant.paths.block import run_block, text_operands
from quant.paths.host import Grid, rope_rotations
from quant.paths.trajectory import fp32
from quant.paths.weights import Weights

GRID: Grid = (4, 16, 16)
"""M = 1024."""
STEPS = {"semantic": 0, "detail": 5}
REPEATS = 5
GOAL = 0.5
SUMS = ("fast", "exact")
"""Of a GEMM: in FP32, or exact and rounded once."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"), help="where the artifact goes")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    tool = build_host("host", arguments.dir / "runtime")["hvdc_blocks"]
    print(lines_table(npu_block_lines(tool, arguments.dir, arguments.threads)))


def npu_block_lines(tool: Path, directory: Path, threads: int) -> list[Line]:
    """Ratio and shares for a block of each expert. ``tool`` is an optimised ``hvdc_blocks``."""
    artifact = directory / "one-block.hvdc"
    say(f"writing {artifact}")
    geometry = replace(DCM_WAN21_1_3B, layers=1)
    build_splat(artifact, geometry, CompileConfig(), 0.01, jobs=threads, force=True, progress=Silent())
    weights = Weights(ArtifactSource(open_artifact(artifact)))
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(GRID[0] * GRID[1] * GRID[2], geometry.width, generator=generator)
    text = torch.randn(geometry.text_tokens, geometry.width, generator=generator)
    files = {"hidden": hidden, "text": text}
    for name, values in files.items():
        values.numpy().tofile(directory / f"{name}.f32")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return [line for expert in STEPS for line in _lines(tool, artifact, directory, threads, weights, expert, files)]
    finally:
        torch.set_num_threads(before)


def _lines(
    tool: Path,
    artifact: Path,
    directory: Path,
    threads: int,
    weights: Weights,
    expert: str,
    files: dict[str, torch.Tensor],
) -> list[Line]:
    """One for each of `SUMS`."""
    say(f"a block of the {expert} expert, {REPEATS} times each")
    arithmetic, at = fp32(weights).rest, At(STEPS[expert], 0, expert)
    operands = text_operands(arithmetic, at, files["text"])
    rotations = rope_rotations(weights, GRID)
    command = [
        tool, artifact, "--threads", threads, "--grid", ",".join(map(str, GRID)), "--npu-sums", "",
        "projected", list(STEPS).index(expert), directory / "text.f32", "hidden", directory / "hidden.f32",
        "time", 2, STEPS[expert], 0, 1,
    ]  # fmt: skip
    ours: dict[str, list[float]] = {sums: [] for sums in SUMS}
    theirs, shares = [], {}
    for _ in range(REPEATS):
        begin = time.perf_counter()
        run_block(arithmetic, at, files["hidden"], operands, rotations)
        theirs.append(time.perf_counter() - begin)
        for sums in SUMS:
            words = [sums if part == "" else str(part) for part in command]
            said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            ours[sums].append(float(re.findall(r"^([0-9.]+) s$", said, re.MULTILINE)[-1]))  # the first one warms up
            found = re.findall(r"^ +([0-9.]+) % (.+)$", said, re.MULTILINE)
            shares[sums] = ", ".join(
                f"{what} {share} %" for share, what in found[len(found) // 2 :] if float(share) >= 0.5
            )
    return [_line(expert, threads, sums, ours[sums], theirs, shares[sums]) for sums in SUMS]


def _line(expert: str, threads: int, sums: str, ours: Sequence[float], theirs: Sequence[float], shares: str) -> Line:
    ratio = statistics.median(theirs) / statistics.median(ours)
    return Line(
        f"NPU executor (portable, {sums} sums), a block of the {expert} expert, M = 1024",
        f"{ratio:.2f} × torch fp32",
        f"≥ {GOAL} ×",
        ratio >= GOAL,
        f"median of {REPEATS}, {threads} thread(s): {statistics.median(ours):.2f} s against "
        f"{statistics.median(theirs):.2f} s; {shares}",
    )


if __name__ == "__main__":
    main()
