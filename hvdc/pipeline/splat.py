"""A structurally complete artifact with constant weights, in seconds: for CI that has no model.

It is the compiler's own path over tensors that are constants: weights and factors one value, gains 1, everything else 0
(time embedders too, so that the modulation tables are 0).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from exporters import model
from exporters.checkpoint import Checkpoint
from exporters.model import Geometry
from exporters.report import Report
from exporters.tensor import Float32Array, Tensor
from hvdc.config import CompileConfig
from hvdc.pipeline.build import Built, build
from hvdc.pipeline.prepare import Request, decide
from hvdc.pipeline.workspace import check_output
from hvdc.progress import Progress

ORIGIN = "constants"


def build_splat(
    output: Path, geometry: Geometry, config: CompileConfig, value: float, *, jobs: int, force: bool, progress: Progress
) -> Built:
    """Write an artifact whose weights are all ``value``. Raises as `prepare` and `build` do."""
    check_output(output, force=force, resume=False)
    request = Request(None, output, config=config, jobs=jobs, force=force)
    return build(decide(request, splat_checkpoint(geometry, value)), progress)


def splat_checkpoint(geometry: Geometry, value: float) -> Checkpoint:
    """A checkpoint of constants that occupies no memory."""
    tensors = {
        name: Tensor(name, shape, "F32", ORIGIN, partial(_constant, shape, _fill(name, value)))
        for name, shape in model.canonical_tensors(geometry).items()
    }
    report = Report("diffusers", ORIGIN, {"F32": len(tensors)}, (), dict.fromkeys(geometry.experts, ORIGIN))
    return Checkpoint(Path(ORIGIN), geometry, tensors, report)


def _fill(name: str, value: float) -> float:
    if name.endswith((".bias", "scale_shift_table")) or ".time_" in name:
        return 0.0
    is_gain = ".norm" in name
    return 1.0 if is_gain else value


def _constant(shape: tuple[int, ...], value: float, start: int, stop: int) -> Float32Array:
    return np.full((stop - start, *shape[1:]), value, np.float32)
