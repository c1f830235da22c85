"""``make quality``: what the engines' arithmetic costs on the example model and its outlier variant, into
docs/QUALITY.md.

Calibrates with some prompts, evaluates with others; every table in the document is the output of the command above it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.report import machine, say
from exporters.prompts import read_prompts, write_prompts

MODEL = Path("examples/moving_shapes/model")
CLIP = ("--frames", "17", "--height", "128", "--width", "128")
DOCUMENT = Path("docs/QUALITY.md")
FIGURES = Path("docs/quality")
CALIBRATED, EVALUATED, DECODED = 32, 16, 8
CUTS = "6,12,18"

HEAD = """# Quality

What the arithmetic of each engine costs, measured on the [example model](../examples/moving_shapes/README.md) and on
its outlier variant. This document is written by `make quality`; each table is the output of the command above it.

**Paths.** `npu`: INT8 weights widened to FP16, FP16 GEMMs, FP32 residual stream. `gpu`: INT8 weights and activations,
FP16 residual stream. `hetero(k)`: `gpu` before block execution k of 24 (6 steps × 4 blocks), `npu` from there on.
`per-step`, `global`, `percentile`, `mse`: how activation scales follow from the calibration. `smooth s`: outliers
moved into the weights at strength s. All are references in PyTorch that compute to the bit what the kernels' integers
must be; nothing here ran on a phone.

**Figures.** SQNR of the hidden state against FP32 after the first, the worst and the last block execution, energies
summed over clips; the latent's SQNR; the median of ‖z − z_ref‖ / ‖z_ref‖; on decoded frames PSNR and SSIM against the
FP32 path's, and what share of clips shows what the prompt asks for (`all`), with the overlap of the shape (`iou`).

**Outlier variant.** The same function with other numbers: a few channels of the activations are 20 to 60 times the
median, which `examples/moving_shapes/outliers.py` builds by scaling them up where they are made and down where they
are read. In FP32 both models agree to 1e-5; all of the difference below is quantisation. Its outliers sit where
smoothing can reach them, by construction: what smoothing recovers here bounds what it can do on a model whose outliers
arose otherwise.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, default=Path("build/quality"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="commands at a time, on a share of the processors each")
    arguments = parser.parse_args()
    work: Path = arguments.dir
    work.mkdir(parents=True, exist_ok=True)
    figures = work / "figures"  # they replace the document's when everything has succeeded
    shutil.rmtree(figures, ignore_errors=True)
    _split_prompts(work)
    parts = [HEAD, f"Made on {machine(('hvdc', 'torch', 'diffusers', 'numpy'))}."]
    _run([sys.executable, "-m", "examples.moving_shapes.outliers", "--out", str(work / "outliers")])
    models = {"plain": MODEL / "transformer", "outliers": work / "outliers" / "transformer"}
    titles = {"plain": "The trained model", "outliers": "The outlier variant"}
    if arguments.jobs > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // arguments.jobs)))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        begun = {
            name: _begin(name, checkpoint, work, figures, arguments.device, pool) for name, checkpoint in models.items()
        }
        for name, commands in begun.items():
            parts.append(f"\n## {titles[name]}\n")
            parts.append(_written(name, commands, figures))
    shutil.rmtree(FIGURES, ignore_errors=True)
    shutil.copytree(figures, FIGURES)
    DOCUMENT.write_text("\n".join(parts).rstrip() + "\n", "utf-8")
    say(f"wrote {DOCUMENT}")


def _split_prompts(work: Path) -> None:
    """Prompts to calibrate with, and others to evaluate on, drawn from all."""
    with read_prompts(MODEL / "prompts.safetensors") as prompts:
        drawn = [int(i) for i in np.random.default_rng(0).permutation(len(prompts))]
        parts = {"calibration": drawn[:CALIBRATED], "evaluation": drawn[CALIBRATED : CALIBRATED + EVALUATED]}
        for name, rows in parts.items():
            texts, embeds = [prompts.texts[i] for i in rows], [prompts.embeds[i] for i in rows]
            write_prompts(work / f"{name}.safetensors", texts, embeds, overwrite=True)


Begun = list[tuple[str, list[str], "Future[str]"]]
"""Title, command, and what it will print."""


def _begin(name: str, checkpoint: Path, work: Path, figures: Path, device: str, pool: Executor) -> Begun:
    """A model's commands; what follows from its calibration begins when that is there."""
    calibration = work / f"{name}.calibration.safetensors"
    calibrate = [
        "hvdc", "calibrate", str(checkpoint), "--prompts", str(work / "calibration.safetensors"), *CLIP,
        "-o", str(calibration), "--force", "-q",
    ]  # fmt: skip
    common = [
        "hvdc", "evaluate", str(checkpoint), "--prompts", str(work / "evaluation.safetensors"), "--seeds", "7",
        "--calibration", str(calibration), *CLIP, "-q",
    ]  # fmt: skip
    modes = [x for mode in ("per-step", "global", "percentile", "mse") for x in ("--scale-mode", mode)]
    numbers = [*common, *modes, "--cut", CUTS, "--plot", str(figures / name)]
    smoothed = [*common, *(x for s in ("0.25", "0.5", "0.75") for x in ("--smooth", s)), "--cut", "6"]
    frames = [
        *common, "--cut", "6", "--smooth", "0.5", "--prompts-limit", str(DECODED), "--vae", str(MODEL / "vae"),
        "--task", "examples.moving_shapes.checker",
    ]  # fmt: skip
    more = ["--device", device] if device != "cpu" else []
    calibrated = pool.submit(_run, [*calibrate, *more])
    begun: Begun = [("Calibration", [*calibrate, *more], calibrated)]
    for title, command in (
        ("Paths and scale modes", numbers),
        ("Smoothing", smoothed),
        ("Decoded frames", frames),
    ):
        begun.append((title, [*command, *more], pool.submit(_after, calibrated, [*command, *more])))
    return begun


def _after(first: Future[str], command: list[str]) -> str:
    first.result()
    return _run(command)


def _written(name: str, commands: Begun, figures: Path) -> str:
    sections = []
    for title, command, printed in commands:
        sections.append(f"### {title}\n\n```\n$ {shlex.join(command)}\n{printed.result()}```\n")
        if title == "Paths and scale modes":
            for figure in sorted((figures / name).glob("*.png")):
                sections.append(f"![{figure.stem}]({FIGURES.name}/{name}/{figure.name})\n")
    return "\n".join(sections)


def _run(command: list[str]) -> str:
    say(shlex.join(command))
    if command[0] == "hvdc":
        command = [sys.executable, "-m", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
