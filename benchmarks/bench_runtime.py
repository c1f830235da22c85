"""``make bench-runtime``: what executes an artifact, on this machine, as ratios within one run; no figure fails it.

Writes the section "Running" of docs/BENCHMARKS.md. Needs an OpenCL device (PoCL), 5 GB of disk, 6 GB of memory, and a
machine that does nothing else: about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.npu_block import npu_block_lines
from benchmarks.report import lines_table, say, write_section
from benchmarks.runtime_gpu import block_line, gemm_lines
from benchmarks.runtime_streams import example_stream, memory, overlap_of_the_paper, real_streams
from device_runtime.build import build_host

DEMO = Path("build/demo/moving_shapes.hvdc")
PROMPTS = Path("examples/moving_shapes/model/prompts.safetensors")
PARTS = ("gpu", "npu", "streams", "memory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("build/bench/runtime"), help="where artifacts and programs go")
    parser.add_argument("--example", type=Path, default=DEMO, help="the artifact that `make demo` made")
    parser.add_argument("--only", choices=PARTS, help="print one part, and write nothing down")
    arguments = parser.parse_args()
    folder: Path = arguments.dir.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if not arguments.example.exists():
        raise SystemExit(f"{arguments.example} is not there: run `make demo` first")
    say("building the runtime")
    programs = build_host("host", folder / "programs")
    threads = len(os.sched_getaffinity(0))
    lines = []
    parts = PARTS if arguments.only is None else (arguments.only,)
    if "gpu" in parts:
        lines += gemm_lines(programs["hvdc_gpu_check"], folder / "kernels")
        lines.append(block_line(programs["hvdc_gpu_check"], folder / "kernels"))
    if "npu" in parts:
        lines += npu_block_lines(programs["hvdc_blocks"], folder, threads)
    if "streams" in parts:
        stream = example_stream(arguments.example, PROMPTS, folder / "example")
        lines.append(overlap_of_the_paper(programs))
        lines += real_streams(programs, arguments.example, stream, folder)
    if "memory" in parts:
        lines += memory(programs, folder)
    table = lines_table(lines)
    print(table)
    if arguments.only is None:
        libraries = ("hvdc", "numpy", "torch")
        write_section(Path("docs/BENCHMARKS.md"), "Running", "make bench-runtime", table, libraries)


if __name__ == "__main__":
    main()
