"""``make bench-opencl``: the GPU executor's kernels through a real GPU's OpenCL driver, beside torch on the same GPU.

Writes the section "OpenCL on a GPU" of docs/BENCHMARKS.md. Needs PyTorch with CUDA and NVIDIA's OpenCL driver. What a
phone's GPU does cannot be told from it: kernels are the same, what pays is not.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.bench_runtime import PROMPTS
from benchmarks.full_size import write_artifact
from benchmarks.report import lines_table, say, write_section
from benchmarks.runtime_gpu import SHAPES, device, fastest_s
from benchmarks.runtime_streams import example_stream, real_streams
from device_runtime.build import build_host

ROWS = (1024, 20_280)
CLIPS = {1024: ((4, 16, 16), 13, 256), 20_280: ((13, 30, 52), 49, 480)}
"""M -> grid of tokens, and frames and side of the artifact; the grid is what counts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("build/bench/opencl"), help="where artifacts and programs go")
    parser.add_argument("--output", type=Path, default=Path("docs/BENCHMARKS.md"), help="the document to write into")
    parser.add_argument("--example", type=Path, help="an artifact of `make demo`: a stream of it on GPU and processor")
    parser.add_argument("--device", default="NVIDIA", help="a part of the OpenCL platform's name")
    arguments = parser.parse_args()
    folder: Path = arguments.dir.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    program = build_host("host", folder / "programs", ("hvdc_gpu_check",))["hvdc_gpu_check"]
    rows, chosen = _gemms(program, folder / "kernels", arguments.device)
    rows += _blocks(program, folder, arguments.device)
    table = "\n".join(["| what | OpenCL | torch | ratio |", "|---|---|---|---|", *rows])
    if arguments.example is not None:
        programs = build_host("host", folder / "programs", ("hvdc_runner",))
        stream = example_stream(arguments.example, PROMPTS, folder / "example")
        lines = real_streams(programs, arguments.example, stream, folder, "--platform", arguments.device)
        table += "\n\n" + lines_table(lines)
    text = f"{chosen}; {torch.cuda.get_device_name()}, torch {torch.__version__}\n\n{table}"
    print(text)
    write_section(arguments.output, "OpenCL on a GPU", "make bench-opencl", text, ("hvdc", "numpy", "torch"))


def _gemms(program: Path, kernels: Path, platform: str) -> tuple[list[str], str]:
    """INT8 GEMMs with epilogue against `torch._int_mm`, which writes INT32 and scales nothing."""
    rows = []
    with device(program, kernels, platform=platform) as gpu:
        chosen = gpu.ask("device", 128)
        for m in ROWS:
            for n, k in SHAPES:
                say(f"GEMM {m} x {n} x {k}")
                ours = float(gpu.ask("time-linear", m, n, k, 10))
                theirs = _int_mm_s(m, n, k)
                tera = 2e-12 * m * n * k
                rows.append(
                    f"| INT8 GEMM {m:,} × {n} × {k} | {tera / ours:.1f} TOP/s | {tera / theirs:.0f} TOP/s (`_int_mm`) "
                    f"| {theirs / ours:.3f} |"
                )
    return rows, f"form of the dot product: {chosen.split()[0]}; {' '.join(chosen.split()[2:])}"


def _int_mm_s(m: int, n: int, k: int) -> float:
    a = torch.randint(-127, 128, (m, k), dtype=torch.int8, device="cuda")
    b = torch.randint(-127, 128, (n, k), dtype=torch.int8, device="cuda").T

    def run() -> None:
        torch._int_mm(a, b)
        torch.cuda.synchronize()

    return fastest_s(run)


def _blocks(program: Path, folder: Path, platform: str) -> list[str]:
    """A block of full width; there is no peer of its arithmetic."""
    rows = []
    for m, (grid, frames, side) in CLIPS.items():
        artifact = write_artifact(folder / f"block-{m}.hvdc", layers=1, frames=frames, side=side)
        rng = np.random.default_rng(0)
        hidden = rng.standard_normal((m, 1536)).astype(np.float16).astype(np.float32)
        text = rng.standard_normal((512, 1536)).astype(np.float32)
        for profile in (0, 1):
            options = {"profile": 1} if profile else {}
            with device(program, folder / "kernels", platform=platform, **options) as gpu:
                gpu.ask("open", artifact, *grid)
                gpu.ask("text", 0, text)
                gpu.ask("time", 0, 0, 1, hidden)
                begin = time.perf_counter()
                seconds = float(gpu.ask("time", 0, 0, 1, hidden))
                say(f"block, M = {m}: {seconds:.3f} s ({time.perf_counter() - begin:.1f} s)")
                if profile:
                    words = gpu.ask("profile").split()
                    spent = {name: float(s) for name, s in zip(words[::3], words[1::3], strict=True)}
                    whole = sum(spent.values())
                    shares = ", ".join(
                        f"{name} {s / whole:.0%}"
                        for name, s in sorted(spent.items(), key=lambda item: -item[1])
                        if s >= 0.01 * whole
                    )
                    rows[-1] = rows[-1].replace("SHARES", shares)
                else:
                    memory = int(gpu.ask("memory")) / 2**20
                    rows.append(f"| block of full width, M = {m:,} | {seconds:.3f} s, {memory:,.0f} MiB | | SHARES |")
    return rows


if __name__ == "__main__":
    main()
