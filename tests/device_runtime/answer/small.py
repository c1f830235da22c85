"""`hvdc_bench --answer` as tests call it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hvdc.pipeline.answer import COLUMNS, FRAMES, ROWS
from tests.device_runtime.runs import REPORTS, SANITIZERS, why_no_gpu
from tests.exporters.models import Values

RIGHT, FAILED, USAGE, WRONG = 0, 1, 2, 6
TOKENS = FRAMES * ROWS * COLUMNS

needs_gpu = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")

ROW = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "engine": {"enum": ["npu", "gpu"]},
        "expert": {"enum": ["semantic", "detail"]},
        "step": {"type": "integer"},
        "block": {"type": "integer"},
        "values": {"type": "integer", "minimum": 1},
        "different": {"type": "integer", "minimum": 0},
        "max_abs": {"type": ["number", "null"]},
        "relative": {"type": ["number", "null"]},
        "decides": {"enum": ["bits", "limit"]},
        "limit": {"type": "number", "minimum": 0},
        "right": {"type": "boolean"},
    },
}
ROW["required"] = list(ROW["properties"])  # type: ignore[call-overload]


@dataclass(frozen=True)
class Answering:
    """``hvdc_bench --answer``, built with sanitizers."""

    program: Path
    kernels: Path

    def run(self, artifact: Path, *more: object) -> subprocess.CompletedProcess[str]:
        given = (self.program, artifact, "--answer", "--kernel-cache", self.kernels, *more)
        done = subprocess.run(
            [*map(str, given)], env={**os.environ, **SANITIZERS}, capture_output=True, text=True, check=False,
            timeout=120,
        )  # fmt: skip
        assert not any(report in done.stderr for report in REPORTS), done.stderr[-4000:]
        return done

    def rows(self, artifact: Path, engine: str, *more: object, status: int = RIGHT) -> list[dict[str, Any]]:
        done = self.run(artifact, "--engine", engine, "--json", *more)
        assert done.returncode == status, done.stderr
        report = json.loads(done.stdout)
        assert report["tokens"] == TOKENS
        assert report["right"] is (status == RIGHT)
        for row in report["answers"]:
            jsonschema.validate(row, ROW)
        rows: list[dict[str, Any]] = report["answers"]
        return rows


def attending(model: Values) -> None:
    """Gains of norms near 1, as a trained model's: else all scores of attention are nearly the same."""
    for name in model:
        if ".norm" in name and name.endswith("weight"):
            model[name] += 1
