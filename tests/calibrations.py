"""A tiny model, prompts for it, and calibrations of both: a trajectory takes a tenth of a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from exporters.prompts import write_prompts
from hvdc.pipeline.calibration_parts import Parts
from tests.commands import Result, hvdc, partial
from tests.exporters.models import GEOMETRY, Values, values, write

SHAPE = replace(GEOMETRY, text_tokens=6)
CLIP = ("--frames", 5, "--height", 32, "--width", 32)
SETTINGS = (*CLIP, "--lora-alpha", 8, "--set", "text_tokens=6")
SHORT = (*SETTINGS, "--set", "timesteps=[1000,900]")
"""One step of each expert."""
ONE_STEP = (*SETTINGS, "--set", "timesteps=[900]")
"""The detail expert's: for what does not depend on the computation."""

Run = Callable[..., Result]
T = TypeVar("T")


def write_model(path: Path, edit: Callable[[Values], object] | None = None, seed: int = 0) -> Path:
    """A checkpoint of random values, changed by ``edit``."""
    model = values(SHAPE, seed)
    if edit is not None:
        edit(model)
    return write(path, model)


def write_embeds(path: Path, count: int = 3, seed: int = 0, scale: float = 1.0) -> Path:
    """Random embeddings of ``count`` prompts."""
    rng = np.random.default_rng(seed)
    rows = [
        (scale * rng.standard_normal((SHAPE.text_tokens, SHAPE.text_width))).astype(np.float32) for _ in range(count)
    ]
    write_prompts(path, [f"prompt {i} of {seed}" for i in range(count)], rows)
    return path


def run_calibrate(checkpoint: Path, prompts: Path, output: Path, *more: object, settings: Any = SETTINGS) -> Result:
    """``hvdc calibrate`` in this process; whatever it says is meant for people."""
    done = hvdc("calibrate", checkpoint, "--prompts", prompts, "-o", output, *settings, *more)
    assert "Traceback" not in done.err
    assert "unexpected" not in done.err
    return done


def run_compile(checkpoint: Path, output: Path, *more: object, settings: Any = SETTINGS) -> Result:
    """``hvdc compile`` in this process; whatever it says is meant for people."""
    done = hvdc("compile", checkpoint, "-o", output, *settings, *more)
    assert "Traceback" not in done.err
    assert "unexpected" not in done.err
    return done


def assert_refused(done: Result, status: int, words: str, output: Path) -> None:
    """Refused with a word and a way out, and nothing is left."""
    assert done.status == status, done.err
    assert words in done.err
    assert "fix:" in done.err
    assert not output.exists()
    assert not partial(output).exists()


def calibrated(checkpoint: Path, prompts: Path, output: Path, *more: object, settings: Any = SETTINGS) -> Path:
    """`run_calibrate`, which must succeed; returns ``output``."""
    done = run_calibrate(checkpoint, prompts, output, *more, settings=settings)
    assert done.status == 0, done.err
    assert not partial(output).exists()
    return output


def stopped_after(finished: int, command: Callable[[], Result]) -> Result:
    """Interrupt a command when ``finished`` trajectories are kept."""
    keep, left = Parts.keep, [finished]

    def counted(self: Parts, *arguments: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        keep(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parts, "keep", counted)
        done = command()
    assert done.status == 130, done.err
    return done


def trajectories_run(command: Callable[[], T]) -> tuple[T, int]:
    """What a command gives, and how many trajectories it ran and kept."""
    keep, count = Parts.keep, [0]

    def counted(self: Parts, *arguments: Any) -> None:
        count[0] += 1
        keep(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parts, "keep", counted)
        return command(), count[0]
