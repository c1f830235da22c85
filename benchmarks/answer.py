"""The stored answer at full width: what it costs, how far right engines are off it, and how far wrong ones.

    python -m benchmarks.answer [--dir build/bench]

A synthetic model of two blocks is calibrated on a small clip and compiled; the answer of it is then computed again with
one thing wrong, and one unit of FP16 in its input. Minutes; 1.5 GB of memory. Prints lines; nothing is written down.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import say
from device_runtime.build import build_host
from exporters.prompts import write_prompts
from hvdc.artifact.answer import Grid, Question
from hvdc.artifact.answer_records import AnswerEngine
from hvdc.artifact.reader import Artifact, open_artifact
from hvdc.artifact.runtime import read_answer
from hvdc.pipeline.answer import LIMITS, computed, grid_of, questions_of, relative
from hvdc.pipeline.sources import ArtifactSource
from quant.gemms import LINEARS

TEXT = (512, 4096)
DRAWS = 25
Codes = Callable[[np.ndarray], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"), help="where model and artifact go")
    arguments = parser.parse_args()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    artifact = _artifact(arguments.dir)
    with open_artifact(artifact) as opened:
        due = _cost(opened, artifact)
        _runtime(arguments.dir, artifact)
        _one_unit(opened, due)
        _wrong_weights(opened, due)


def _hvdc(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "hvdc", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def _artifact(folder: Path) -> Path:
    checkpoint, prompts, artifact = (folder / f"answer.{name}" for name in ("safetensors", "prompts", "hvdc"))
    if not artifact.exists():
        say(f"compiling {artifact}")
        _hvdc("synth", "checkpoint", "--preset", "dcm-wan2.1-1.3b", "--layers", 2, "-o", checkpoint, "--force", "-q")
        embeds = (0.1 * np.random.default_rng(0).standard_normal(TEXT)).astype(np.float32)
        prompts.unlink(missing_ok=True)
        write_prompts(prompts, ["a prompt"], [embeds])
        clip = ("--frames", 5, "--height", 64, "--width", 64, "--set", "timesteps=[1000,900]")
        _hvdc("compile", checkpoint, "--prompts", prompts, *clip, "-o", artifact, "-q")
    return artifact


def _cost(opened: Artifact, artifact: Path) -> dict[Question, np.ndarray]:
    grid, due = grid_of(opened), {}
    for question in questions_of(opened):
        begun_s = time.perf_counter()
        due[question] = computed(opened, grid, question)
        print(f"{_name(question)}: {time.perf_counter() - begun_s:.2f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MiB; answer.bin {len(read_answer(artifact) or b''):,} bytes")
    return due


def _runtime(folder: Path, artifact: Path) -> None:
    """The runtime's engines here; the GPU's on whatever OpenCL device there is."""
    bench = build_host("host", folder / "runtime")["hvdc_bench"]
    for sums in ("fast", "exact"):
        given = (bench, artifact, "--answer", "--npu-sums", sums, "--json")
        done = subprocess.run([*map(str, given)], capture_output=True, text=True, check=False)
        rows = json.loads(done.stdout)["answers"] if done.stdout else []
        for row in rows:
            print(f"runtime, {row['engine']} {row['expert']}, {sums} sums of the NPU: {row['different']} of "
                  f"{row['values']} values differ, by {row['relative']:.2e}")  # fmt: skip
        if not rows:
            print(f"runtime: {done.stderr.strip()}")


def _one_unit(opened: Artifact, due: dict[Question, np.ndarray]) -> None:
    rng, grid = np.random.default_rng(0), grid_of(opened)
    for engine in AnswerEngine:
        shares = []
        for question in (q for q in due if q.engine == engine):
            for _ in range(DRAWS):
                place = (int(rng.integers(grid.tokens)), int(rng.integers(grid.width)))
                other = _Nudged(**_fields(question), place=place)
                shares.append(relative(computed(opened, grid, other), due[question], question.hidden(grid)))
        print(f"{engine.name}, one unit of FP16 in the input, {len(shares)} draws: median {np.median(shares):.1e}, "
              f"largest {max(shares):.1e}")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Nudged(Question):
    """With one number of the hidden state larger by a unit of FP16."""

    place: tuple[int, int] = (0, 0)

    def hidden(self, grid: Grid) -> np.ndarray:
        x = super().hidden(grid).copy()
        x[self.place] = np.nextafter(np.float16(x[self.place]), np.float16(9))
        return x


def _fields(question: Question) -> dict[str, Any]:
    return {each.name: getattr(question, each.name) for each in dataclasses.fields(question)}


def _exchange(codes: np.ndarray) -> None:
    codes[[5, 6]] = codes[[6, 5]]


def _lose_a_page(codes: np.ndarray) -> None:
    codes[:32, :128] = 0


def _wrong_weights(opened: Artifact, due: dict[Question, np.ndarray]) -> None:
    grid, quantized = grid_of(opened), ArtifactSource.quantized
    for what, edit in (("two rows exchanged", _exchange), ("a page of 4096 bytes zero", _lose_a_page)):
        least = dict.fromkeys(AnswerEngine, 9.0)
        for linear in LINEARS:

            def edited(
                self: ArtifactSource, name: str, linear: str = linear, edit: Codes = edit
            ) -> tuple[object, object]:
                codes, scales = quantized(self, name)
                if name.endswith(f"{linear}.weight"):
                    codes = codes.copy()
                    edit(codes)
                return codes, scales

            ArtifactSource.quantized = edited  # type: ignore[assignment, method-assign]
            try:
                for engine in AnswerEngine:
                    shares = [
                        relative(computed(opened, grid, q), due[q], q.hidden(grid)) for q in due if q.engine == engine
                    ]
                    least[engine] = min(least[engine], max(shares))
                    print(f"{engine.name}, {what} in {linear}: " + ", ".join(f"{share:.1e}" for share in shares))
            finally:
                ArtifactSource.quantized = quantized  # type: ignore[method-assign]
        for engine, share in least.items():
            print(
                f"{engine.name}, {what}: the larger of both blocks is at least {share:.1e}; limit {LIMITS[engine]:.0e}"
            )


def _name(question: Question) -> str:
    return f"{question.engine.name}, step {question.step}, block {question.block}"


if __name__ == "__main__":
    main()
