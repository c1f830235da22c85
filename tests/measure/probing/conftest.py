"""`hvdc probe` with a program that answers what a test says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hvdc.measure.probe import PROGRAM
from tests.commands import Result, hvdc
from tests.measure.programs import stand_in


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a probe leaves for the next one is each test's own."""
    monkeypatch.setenv("HVDC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "phone.toml"


@pytest.fixture
def probe(tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """``probe(answer, *options)``: `hvdc probe --host` whose program answers so."""

    def run(answer: str, *options: object, status: int = 0, said: tuple[str, ...] = (), write: bool = True) -> Result:
        runtime = stand_in(tmp_path / "runtime", answer, status, said, PROGRAM)
        monkeypatch.setattr("hvdc.measure.probe_run.find_runtime", lambda target, progress, say: runtime)
        done = hvdc("probe", "--host", *(("-o", output) if write else ()), *options)
        assert "Traceback" not in done.err
        return done

    return run


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """``phone(program)``: the runtime for Android has this `hvdc_probe`."""

    def make(program: bytes) -> None:
        runtime = stand_in(tmp_path / "android", "", 0, (), PROGRAM)
        (runtime.folder / PROGRAM).write_bytes(program)
        monkeypatch.setattr("hvdc.measure.probe_run.find_runtime", lambda target, progress, say: runtime)
        monkeypatch.setattr("hvdc.measure.probe_run.kept_runtime", lambda target: None)

    return make
