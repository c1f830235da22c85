"""`hvdc run` in a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.commands import Result, hvdc
from tests.device_runtime.runs import why_no_gpu

needs_gpu = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")
EXECUTIONS = 12
"""Blocks of a video of the fixture ``runnable_artifact``."""


def run(artifact: Path, embeds: Path, output: Path, *more: object) -> Result:
    done = hvdc("run", artifact, "--prompts", embeds, "-o", output, *more)
    assert "Traceback" not in done.err
    assert "unexpected" not in done.err
    return done


def ran(artifact: Path, embeds: Path, output: Path, *more: object) -> Any:
    """The facts of a run that succeeds."""
    done = run(artifact, embeds, output, *more, "--json")
    assert done.status == 0, done.err
    return done.json()


def refused(done: Result, output: Path, words: str, status: int = 2) -> None:
    assert done.status == status, done.err
    assert words in done.err
    assert not output.exists()
