"""Synthetic checkpoints from presets, with progress: `exporters.synth` as a command uses it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporters.errors import CheckpointError
from exporters.model import PRESETS, Geometry
from exporters.names import LAYOUTS
from exporters.synth import Written, write_checkpoint
from hvdc.errors import HvdcError, UsageError
from hvdc.progress import Progress

__all__ = ["DTYPES", "LAYOUTS", "PRESETS", "preset_geometry", "write_synthetic"]

DTYPES = ("f32", "f16", "bf16")


def preset_geometry(preset: str, layers: int | None) -> Geometry:
    """The geometry of a preset, perhaps with another number of blocks."""
    return PRESETS[preset] if layers is None else replace(PRESETS[preset], layers=layers)


def write_synthetic(
    output: Path, geometry: Geometry, *, layout: Any, dtype: Any, seed: int, force: bool, progress: Progress
) -> Written:
    """Write a checkpoint of random values.

    Raises UsageError for a place that will not do, HvdcError if writing fails.
    """
    _check_destination(output, force=force)
    last = [-1]

    def report(done: int, total: int) -> None:
        if last[0] < 0:
            progress.start("writing", total, 10)
            last[0] = 0
        tenths = range(10 * last[0] // total, 10 * done // total)
        progress.advance(done - last[0])
        last[0] = done
        for tenth in tenths:
            progress.item_done(f"{10 * (tenth + 1)} %")

    try:
        return write_checkpoint(
            output, geometry, layout=layout, dtype=dtype, seed=seed, overwrite=force, progress=report
        )  # fmt: skip
    except CheckpointError as error:  # no checkpoint is bad: this one could not be written
        raise HvdcError(
            error.what, where=error.where, expected=error.expected, found=error.found, fix=error.fix
        ) from error
    finally:
        if last[0] >= 0:
            progress.finish()


def _check_destination(path: Path, *, force: bool) -> None:
    if not path.parent.is_dir():
        fix = f"mkdir -p {shlex.quote(str(path.parent))}"
        raise UsageError("the output's directory does not exist", where=str(path.parent), fix=fix)
    if path.exists() and not path.is_file():
        raise UsageError("the output is there and is not a file", where=str(path), fix="choose another -o")
    if path.exists() and not force:
        raise UsageError("the output exists", where=str(path), fix="choose another -o, or --force to replace it")
