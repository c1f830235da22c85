"""What commands say about an artifact's activation scales."""

from __future__ import annotations

from typing import Any

from hvdc.artifact import records
from hvdc.artifact.calibration import Calibration
from hvdc.artifact.reader import Artifact
from hvdc.cli.output import print_json, table
from hvdc.errors import UsageError

UNCALIBRATED = (
    "uncalibrated: runs on the NPU (FP16 activations) but not on the GPU, which needs a scale for each GEMM input"
)
CALIBRATE = "compile with --prompts or --calibration"


def activations_line(c: Calibration | None) -> str:
    """One line for people, about the calibration that a manifest names."""
    if c is None:
        return f"{UNCALIBRATED}; {CALIBRATE}"
    size = f"{c.video.frames} × {c.video.width}×{c.video.height}"
    other = ", not the artifact's size" if c.other_geometry else ""
    smoothing = ""
    if c.smoothing is not None:
        smoothing = f"; smoothed with strength {c.smoothing.strength:g} at {', '.join(c.smoothing.sites)}"
    return (
        f"{_mode(c)} scales of {many(len(c.inputs), 'GEMM input')}, from {many(c.prompts, 'prompt')} × "
        f"{many(len(c.seeds), 'seed')} at {size}{other}, in {c.dtype}{smoothing}"
    )


def activations_facts(c: Calibration | None) -> dict[str, Any]:
    """The line of `activations_line`, and what it says of the engines, as JSON."""
    return {"calibrated": c is not None, "text": activations_line(c)}


def show_scales(artifact: Artifact, *, as_json: bool) -> None:
    """Smallest and largest scale over the blocks, for each GEMM input and step. Raises UsageError if uncalibrated."""
    held = artifact.manifest.calibration
    if held is None:
        raise UsageError("the artifact has no activation scales", where=str(artifact.path), fix=CALIBRATE)
    scales = artifact.tensor(records.ACTIVATION_SCALES_NAME)
    low, high = scales.min(axis=1), scales.max(axis=1)  # [steps, inputs]
    ranges = [
        [
            (float(low[step, column]), float(high[step, column])) if s.expert in item.experts else None
            for step, s in enumerate(artifact.manifest.steps)
        ]
        for column, item in enumerate(held.inputs)
    ]
    if as_json:
        rows = [item.model_dump(mode="json") | {"min_max": r} for item, r in zip(held.inputs, ranges, strict=True)]
        print_json(rows)
        return
    cells = [
        (item.name, item.per, *("–" if r is None else f"{r[0]:.3g} … {r[1]:.3g}" for r in spans))
        for item, spans in zip(held.inputs, ranges, strict=True)
    ]
    steps = [f">step {i}" for i in range(len(artifact.manifest.steps))]
    table("Activation scales, smallest … largest over the blocks", ("input", "per", *steps), cells)


def _mode(c: Calibration) -> str:
    return c.mode if c.percentile is None else f"{c.mode} {c.percentile:g}"


def many(count: int, thing: str, things: str = "") -> str:
    """``1 seed``, ``2 seeds``."""
    return f"{count} {thing if count == 1 else things or thing + 's'}"
