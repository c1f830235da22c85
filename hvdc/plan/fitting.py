"""Whether a table of rates was measured on what an artifact holds, and what a plan needs to know of the artifact."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hvdc.plan.rates import RateTable, require_fitting

if TYPE_CHECKING:  # it needs NumPy, and plans without an artifact don't
    from hvdc.artifact.manifest import Manifest
    from hvdc.plan.gemms import BlockSizes


@dataclass(frozen=True)
class Model:
    """``semantic_steps`` is κ: the steps before the expert switch, all where there is one expert."""

    semantic_steps: int
    is_calibrated: bool


def model_of(manifest: Manifest) -> Model:
    """What the manifest says."""
    experts = [step.expert for step in manifest.steps]
    semantic_steps = experts.index("detail") if "detail" in experts else len(experts)
    return Model(semantic_steps, manifest.calibration is not None)


def fit_to_manifest(table: RateTable, manifest: Manifest) -> Model:
    """What the manifest says. Raises UsageError where the table was measured on another model, clip length or
    schedule."""
    model = model_of(manifest)
    require_fitting(
        table,
        frames=manifest.video.frames,
        tokens=manifest.video.tokens,
        steps=len(manifest.steps),
        layers=manifest.geometry.layers,
        semantic_steps=model.semantic_steps,
    )
    return model


def fit_to_artifact(table: RateTable, path: Path) -> Model:
    """`fit_to_manifest` of the artifact at ``path``. Raises ArtifactError too."""
    from hvdc.artifact.reader import open_artifact

    with open_artifact(path) as artifact:
        return fit_to_manifest(table, artifact.manifest)


def sizes_fitting(table: RateTable, path: Path) -> BlockSizes:
    """Of a block of the artifact at ``path``. Raises as `fit_to_artifact`."""
    from hvdc.artifact.reader import open_artifact
    from hvdc.plan.gemms import BlockSizes

    with open_artifact(path) as artifact:
        fit_to_manifest(table, artifact.manifest)
        return BlockSizes.of(artifact.manifest)
