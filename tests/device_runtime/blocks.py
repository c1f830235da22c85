"""Running parts of a trajectory with the C runtime, and the same parts with the oracle."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hvdc.artifact.reader import open_artifact
from hvdc.pipeline.sources import ArtifactSource
from quant.paths.weights import Weights

EXPERTS = ("semantic", "detail")


@dataclass(frozen=True)
class Blocks:
    """``hvdc_blocks`` on an artifact; see device_runtime/npu/tools/hvdc_blocks.c. Tensors go by files in ``folder``."""

    program: Path
    artifact: Path
    folder: Path
    options: tuple[object, ...] = ("--threads", 2)
    environment: Mapping[str, str] = field(default_factory=dict)

    def put(self, name: str, values: Tensor) -> Path:
        """A file of FP32 values."""
        path = self.folder / name
        values.detach().float().contiguous().numpy().tofile(path)
        return path

    def get(self, name: str, *shape: int) -> Tensor:
        return torch.tensor(np.fromfile(self.folder / name, np.float32)).reshape(*shape)

    def run(self, *actions: object) -> str:
        """What the program says on its standard output. A sanitizer's report, or any other failure, is an error."""
        done = self.ask(*actions)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *actions: object) -> str:
        """The sentence with which it refuses."""
        done = self.ask(*actions)
        assert done.returncode == 1, done.stderr
        assert done.stderr.startswith("hvdc_blocks: ")
        assert "Sanitizer" not in done.stderr
        return done.stderr

    def ask(self, *actions: object) -> subprocess.CompletedProcess[str]:
        command = [str(self.program), str(self.artifact), *map(str, (*self.options, *actions))]
        environment = {**os.environ, **self.environment}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def weights_of(artifact: Path) -> Weights:
    """What the oracle computes with: the very bytes of the artifact."""
    return Weights(ArtifactSource(open_artifact(artifact)))


def distance(found: Tensor, due: Tensor) -> float:
    """‖found − due‖ / ‖due‖."""
    return float((found - due).double().norm() / due.double().norm())
