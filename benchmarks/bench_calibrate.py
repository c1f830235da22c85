"""``make bench-calibrate``: calibration and the GPU's arithmetic at full size, on a CUDA GPU.

A synthetic checkpoint of the 1.3B model, 49 frames at 832 × 480 (M = 20,280), one prompt, six steps: the float forward
with and without statistics, the INT8 reference of the phone's GPU, and with two GPUs the scaling of `torchrun`.
Weights are on the device before a clock starts. Writes the section "Calibrating" of docs/BENCHMARKS.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.nn.attention import sdpa_kernel

from benchmarks.report import Line, lines_table, say, write_section
from exporters.checkpoint import Checkpoint, open_checkpoint
from exporters.model import DCM_WAN21_1_3B, TINY, Geometry
from exporters.prompts import write_prompts
from exporters.schedule import make_schedule
from exporters.synth import write_checkpoint
from hvdc.pipeline.ranks import join
from hvdc.pipeline.sources import CheckpointSource
from quant.calibration.modes import activation_scales
from quant.calibration.statistics import Statistics
from quant.calibration.watch import run_watched
from quant.gemms import LINEARS
from quant.paths.fp32 import SDPA, FloatArithmetic
from quant.paths.host import initial_noise
from quant.paths.trajectory import NumericPath, State, Trajectory, gpu
from quant.paths.weights import Weights

LATENT = (13, 60, 104)
REPEATS = 3
PROMPTS_PER_GPU = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"), help="where the checkpoint goes")
    parser.add_argument("--layers", type=int, default=DCM_WAN21_1_3B.layers, help="a smaller model, to try things")
    parser.add_argument("--profile", action="store_true", help="also print where the GPU's time goes")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    if not torch.cuda.is_available():
        sys.exit("bench-calibrate needs a CUDA GPU")
    geometry = replace(DCM_WAN21_1_3B, layers=arguments.layers)
    path = arguments.dir / f"calibrate-{geometry.layers}.safetensors"
    if arguments.worker:
        return _worker(path)
    if not path.exists():
        say(f"writing {path}")
        write_checkpoint(path, geometry, dtype="bf16", seed=0)
    with open_checkpoint(path) as checkpoint:
        lines = _lines(checkpoint, geometry, profile=arguments.profile)
    if torch.cuda.device_count() > 1:
        lines += [_equal_bits(arguments.dir), _scaling(arguments)]
    name = f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    text = f"{name}\n\n{lines_table(lines)}"
    print(text)
    write_section(Path("docs/BENCHMARKS.md"), "Calibrating", "make bench-calibrate", text, ("hvdc", "numpy", "torch"))
    return None


def _timed(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def _lines(checkpoint: Checkpoint, geometry: Geometry, *, profile: bool) -> list[Line]:
    steps = make_schedule()
    say("loading the weights")
    weights = Weights(CheckpointSource(checkpoint, steps), "cuda")
    embeds = torch.randn((geometry.text_tokens, geometry.text_width), generator=torch.Generator().manual_seed(0))
    noise = initial_noise(0, geometry.in_channels, LATENT)

    def plain() -> torch.Tensor:
        path = NumericPath("bf16", FloatArithmetic(weights, torch.bfloat16))
        return Trajectory(path, embeds, LATENT).generate(noise)

    def watched() -> Statistics:
        return run_watched(weights, embeds, noise, torch.bfloat16)[0]

    say("warming up")
    plain()
    seen = watched()
    torch.cuda.reset_peak_memory_stats()
    without_s, with_s = [], []
    for _ in range(REPEATS):
        without_s.append(_timed(plain))
        with_s.append(_timed(watched))
        say(f"forward {without_s[-1]:.2f} s, with statistics {with_s[-1]:.2f} s")
    peak = torch.cuda.max_memory_allocated() / 2**30
    if profile:
        _profile(watched)
    floor_s = min(_timed(lambda: _floor(geometry)) for _ in range(REPEATS))
    forward_s, calibrate_s = statistics.median(without_s), statistics.median(with_s)
    share = calibrate_s / forward_s - 1.0
    say("the GPU's arithmetic")
    scales = activation_scales(seen, weights.steps, "per-step")
    trajectory = Trajectory(gpu(weights, scales), embeds, LATENT)
    for position in (0, geometry.layers * 3):  # loads, compiles: one block of each expert
        trajectory.run(State(position, trajectory.start(noise).latent), 1)
    for name in (f"blocks.{b}.{linear}.weight" for b in range(geometry.layers) for linear in LINEARS):
        weights.codes(name)
    trajectory = Trajectory(gpu(weights, scales), embeds, LATENT)
    if profile:
        _profile(lambda: trajectory.run(State(0, trajectory.start(noise).latent), 2))
    int8_s = _timed(lambda: trajectory.generate(noise))
    return [
        Line(
            "one prompt, six steps, bf16, statistics on",
            f"{calibrate_s:.2f} s",
            "≤ 2.3 s on one H200",
            calibrate_s <= 2.3,
            f"median of {REPEATS}; {calibrate_s / floor_s:.2f} × the {floor_s:.2f} s of its GEMMs and attention alone",
        ),
        Line(
            "cost of the statistics",
            f"{100 * share:.0f} %",
            "≤ 15 %",
            share <= 0.15,
            f"the same forward without them takes {forward_s:.2f} s",
        ),
        Line("peak memory on the GPU", f"{peak:.2f} GiB", "none", True, "largest amount allocated in those runs"),
        Line(
            "INT8 reference of the phone's GPU ÷ bf16 forward",
            f"{int8_s / forward_s:.1f}",
            "≤ 10",
            int8_s / forward_s <= 10,
            f"one video in {int8_s:.1f} s, integers exact",
        ),
    ]


def _profile(work: Callable[[], object]) -> None:
    """Where the GPU's time goes, kernel by kernel."""
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profiler:
        work()
        torch.cuda.synchronize()
    table = profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=22, max_name_column_width=70)
    keep = ("Self CUDA %", "Self CUDA", "# of Calls")
    say(f"{' '.join(keep)}\n{table}")


def _floor(g: Geometry) -> None:
    """The GEMMs and attention of all block executions, on tensors that lie ready."""
    m = LATENT[0] * LATENT[1] * LATENT[2] // g.patch_volume

    def ready(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device="cuda")

    x, up = ready(m, g.width), ready(m, g.ffn_width)
    square, wide = ready(g.width, g.width), ready(g.ffn_width, g.width)
    q, text = ready(1, g.heads, m, g.head_dim), ready(1, g.heads, g.text_tokens, g.head_dim)
    for _ in range(6 * g.layers):
        for _ in range(6):  # q, k, v, out; cross-attention's q, out
            F.linear(x, square)
        with sdpa_kernel(SDPA, set_priority=True):
            F.scaled_dot_product_attention(q, q, q)
            F.scaled_dot_product_attention(q, text, text)
        F.linear(x, wide)
        F.linear(up, wide.t())


def _torchrun(processes: int, *arguments: str) -> str:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def _scaling(arguments: argparse.Namespace) -> Line:
    """Prompts per minute of two processes against one, weights loaded."""
    more = [
        "-m",
        "benchmarks.bench_calibrate",
        "--worker",
        "--dir",
        str(arguments.dir),
        "--layers",
        str(arguments.layers),
    ]
    rate = {}
    for processes in (1, 2):
        say(f"{processes} processes")
        out = _torchrun(processes, *more)
        rate[processes] = float(out.split("prompts per minute:")[1].split()[0])
    ratio = rate[2] / rate[1]
    how = f"{rate[2]:.1f} against {rate[1]:.1f} prompts a minute, {PROMPTS_PER_GPU} for each GPU, reduction included"
    return Line("two GPUs ÷ one", f"{ratio:.2f}", "≥ 1.8", ratio >= 1.8, how)


def _worker(path: Path) -> None:
    """One process of `_scaling`."""
    ranks = join("cuda")
    with open_checkpoint(path) as checkpoint:
        weights = Weights(CheckpointSource(checkpoint, make_schedule()), ranks.device)
        g = checkpoint.geometry
        embeds = torch.randn((g.text_tokens, g.text_width), generator=torch.Generator().manual_seed(0))
        noise = initial_noise(ranks.rank, g.in_channels, LATENT)

        def one() -> Statistics:
            return run_watched(weights, embeds, noise, torch.bfloat16)[0]

        merged = one()
        ranks.reduce(merged)
        ranks.gather(0)  # all ranks begin together
        begin = time.perf_counter()
        for _ in range(PROMPTS_PER_GPU):
            merged = merged.merged(one())
        ranks.reduce(merged)
        duration_s = time.perf_counter() - begin
        if ranks.is_first:
            print(f"prompts per minute: {60 * PROMPTS_PER_GPU * ranks.world / duration_s:.3f}")
    ranks.leave()


def _equal_bits(directory: Path) -> Line:
    """`hvdc calibrate` on one and on two GPUs, a small model, FP32: the same bytes."""
    say("one and two GPUs, the same bytes")
    small = directory / "calibrate-small.safetensors"
    if not small.exists():
        write_checkpoint(small, TINY, dtype="bf16", seed=0)
    prompts = directory / "calibrate-prompts.safetensors"
    rng = torch.Generator().manual_seed(0)
    shape = (TINY.text_tokens, TINY.text_width)
    write_prompts(
        prompts, ["a", "b", "c"], [torch.randn(shape, generator=rng).numpy() for _ in range(3)], overwrite=True
    )
    found = []
    for processes in (1, 2):
        out = directory / f"calibrate-{processes}.out.safetensors"
        _torchrun(
            processes, "-m", "hvdc", "calibrate", str(small), "--prompts", str(prompts), "-o", str(out), "--force",
            "--set", "text_tokens=16", "--frames", "17", "--height", "128", "--width", "128", "--device", "cuda", "-q",
        )  # fmt: skip
        found.append(out.read_bytes())
    same = found[0] == found[1]
    how = "`hvdc calibrate` of a small model, FP32, under torchrun"
    return Line("one and two GPUs write", "the same bytes" if same else "other bytes", "the same bytes", same, how)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "8")
    main()
