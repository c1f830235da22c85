"""Killed anywhere, a build leaves no output, and goes on to the same bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.commands import ROOT, environment, tree


def test_kill_9_anywhere_then_resume(ragged_checkpoint: Path, ragged_artifact: Path, tmp_path: Path) -> None:
    """Before every call that changes the file system, and at random times. Byte-identical to an uninterrupted build."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.killed", str(ragged_checkpoint), str(tmp_path), "3"],
        env=environment(), cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rounds = json.loads(done.stdout)
    killed = [r for r in rounds if r["killed"]]
    assert len(killed) > 30, "the build was hardly ever killed, so this proves nothing"
    assert all(r["status"] == 0 for r in rounds), [r for r in rounds if r["status"]]
    assert sum(not r["published"] for r in killed) > 20
    expected = tree(ragged_artifact)
    artifacts = sorted(tmp_path.glob("*.hvdc"))
    assert len(artifacts) == len(rounds)
    for artifact in artifacts:
        assert tree(artifact) == expected, rounds[int(artifact.stem) - 1]
