"""What several tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def runtime_cache(runtimes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's cache is the one that all tests build the runtime into."""
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder that is not there yet."""
    return tmp_path / "out"
