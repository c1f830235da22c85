"""Killed anywhere, a build leaves no output, and goes on to the same bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from exporters.synth import write_checkpoint
from tests.commands import ROOT, compiled, environment, tree
from tests.conftest import RAGGED


def test_kill_9_anywhere_then_resume(tmp_path: Path) -> None:
    """Before every call that changes the file system, and at random times. Byte-identical to an uninterrupted build."""
    checkpoint = write_checkpoint(tmp_path / "model", replace(RAGGED, layers=1)).path
    expected = tree(compiled(checkpoint, tmp_path / "whole.hvdc"))
    folder = tmp_path / "killed"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.killed", str(checkpoint), str(folder), "1"],
        env=environment(), cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rounds = json.loads(done.stdout)
    killed = [r for r in rounds if r["killed"]]
    assert len(killed) > 30, "the build was hardly ever killed, so this proves nothing"
    assert all(r["status"] == 0 for r in rounds), [r for r in rounds if r["status"]]
    assert sum(not r["published"] for r in killed) > 20
    artifacts = sorted(folder.glob("*.hvdc"))
    assert len(artifacts) == len(rounds)
    for artifact in artifacts:
        assert tree(artifact) == expected, rounds[int(artifact.stem) - 1]
