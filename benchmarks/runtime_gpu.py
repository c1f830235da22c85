"""The GPU's executor on an OpenCL device: GEMMs against a peer on the same device, and where a block's time goes."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.full_size import write_artifact
from benchmarks.report import Line, say
from hvdc.artifact.reader import open_artifact
from tests.device_runtime.gpu import Gpu, gpu_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKENS = 1024
GRID = (4, 16, 16)
SHAPES = ((1536, 1536), (8960, 1536), (1536, 8960))
"""Columns and K of a block's linears: attention's, and the feed-forward pair's."""
GOAL = 0.6
REPEATS = 5


@contextmanager
def device(program: Path, folder: Path, **options: object) -> Iterator[Gpu]:
    """A running ``hvdc_gpu_check`` whose compiled kernels are kept in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=folder) as files,
        Gpu(program, Path(files), gpu_environment(folder), cache=folder, **options) as gpu,
    ):
        yield gpu


def fastest_s(run: Callable[[], object]) -> float:
    """Seconds of the fastest of some runs; one more warms up."""
    run()
    taken = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def numpy_s(columns: int, k: int) -> float:
    """float32 on the processors of this process."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((TOKENS, k), (k, columns)))
    return fastest_s(lambda: a @ b)


def gemm_lines(program: Path, folder: Path) -> list[Line]:
    """INT8 GEMMs with their epilogue, on PoCL against numpy, in turns on the same cores."""
    lines = []
    with device(program, folder) as gpu:
        chosen = gpu.ask("device", 128)
        for columns, k in SHAPES:
            say(f"GEMM {TOKENS} x {columns} x {k}")
            theirs = numpy_s(columns, k)
            ours = float(gpu.ask("time-linear", TOKENS, columns, k, REPEATS))
            gop = 2e-9 * TOKENS * columns * k
            ratio = theirs / ours
            lines.append(
                Line(
                    f"INT8 GEMM, M = {TOKENS}, N = {columns}, K = {k}", f"{ratio:.2f} × numpy float32", f"≥ {GOAL} ×",
                    ratio >= GOAL,
                    f"fastest of {REPEATS}: {gop / ours:,.0f} GOP/s against {gop / theirs:,.0f} GFLOP/s; "
                    f"{chosen.split(' / ')[-1]}, dot form {chosen.split()[0]}",
                )
            )  # fmt: skip
    return lines


def block_line(program: Path, folder: Path) -> Line:
    """One block of full width and where its seconds go, by kernel."""
    artifact = write_artifact(folder / "one-block-calibrated.hvdc", layers=1, frames=13, side=256)
    with open_artifact(artifact) as opened:
        g = opened.manifest.geometry
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((TOKENS, g.width)).astype(np.float16).astype(np.float32)
    text = rng.standard_normal((g.text_tokens, g.width)).astype(np.float32)
    say("a block of full width on the GPU's executor")
    with device(program, folder) as gpu:
        gpu.ask("open", artifact, *GRID)
        gpu.ask("text", 0, text)
        gpu.ask("time", 0, 0, 1, hidden)
        seconds = min(float(gpu.ask("time", 0, 0, 1, hidden)) for _ in range(3))
    with device(program, folder, profile=1) as gpu:
        gpu.ask("open", artifact, *GRID)
        gpu.ask("text", 0, text)
        before = _profile(gpu)
        gpu.ask("time", 0, 0, 1, hidden)
        spent = {name: s - before.get(name, 0.0) for name, s in _profile(gpu).items()}
    whole = sum(spent.values())
    shares = sorted(((s / whole, name) for name, s in spent.items()), reverse=True)
    return Line(
        f"GPU executor, a block of full width, M = {TOKENS}", f"{seconds:.2f} s", "–", True,
        ", ".join(f"{name} {share:.0%}" for share, name in shares if share >= 0.01)
        + f"; {len(os.sched_getaffinity(0))} cores",
    )  # fmt: skip


def _profile(gpu: Gpu) -> dict[str, float]:
    """Seconds by kernel so far."""
    words = gpu.ask("profile").split()
    return {name: float(s) for name, s in zip(words[::3], words[1::3], strict=True)}
