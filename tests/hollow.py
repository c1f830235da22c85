"""Artifacts of true sizes without their weights: manifest, index, and data files that take no disk.

Readers open one as any other, since opening compares sizes; what hashes its files refuses it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from exporters.model import DCM_WAN21_1_3B, Geometry
from hvdc.artifact.calibration import Clip, GemmInput
from hvdc.artifact.manifest import Manifest
from hvdc.config import CompileConfig
from hvdc.pipeline.activation_scales import ActivationScales
from hvdc.pipeline.build import make_manifest
from hvdc.pipeline.prepare import Request, decide
from hvdc.pipeline.splat import splat_checkpoint
from hvdc.pipeline.workspace import Done
from quant.gemms import gemm_inputs
from tests.artifacts import write_manifest


def full_size_manifest(frames: int = 49, geometry: Geometry = DCM_WAN21_1_3B) -> Manifest:
    """As the compiler writes it for a calibrated DCM-Wan2.1 at 832 × 480, but for the hashes, which are of nothing."""
    config = CompileConfig(frames=frames)
    inputs = tuple(
        GemmInput.model_validate({"name": i.name, "per": i.per, "experts": i.experts}) for i in gemm_inputs(geometry)
    )
    runs = [["semantic", "detail"][step > 2] in i.experts for step in range(6) for i in inputs]
    table = np.repeat(np.reshape(runs, (6, 1, len(inputs))), geometry.layers, axis=1).astype(np.float32)
    scales = ActivationScales(
        table, inputs, "per-step", statistics_sha256="5" * 64,
        prompts=1, seeds=(0,), video=Clip(frames=frames, height=480, width=832), dtype="fp32",
    )  # fmt: skip
    request = Request(None, None, config=config, activations=scales)
    prepared = decide(request, splat_checkpoint(geometry, 0.0))
    nothing = hashlib.sha256(b"").hexdigest()
    done = [Done(file.path, file.region.bytes, nothing, {}, {}) for file in prepared.plan.files]
    return make_manifest(prepared, done, nothing)


def write_hollow(root: Path, manifest: Manifest) -> Path:
    """The artifact of a manifest, with data files of its sizes that are all holes."""
    for file in manifest.files:
        path = root / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as out:
            out.truncate(file.bytes)
    write_manifest(root, manifest)
    return root
