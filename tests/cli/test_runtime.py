"""`hvdc runtime build`: the programs, once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hvdc.pipeline import runtime_build
from hvdc.pipeline.progress import Silent
from hvdc.pipeline.runtime_build import PROGRAMS, RUNNER, find_runtime
from tests.commands import hvdc


def test_it_is_built_once_and_works(runtimes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))
    first = hvdc("runtime", "build", "--json")
    assert first.status == 0, first.err
    again = hvdc("runtime", "build", "--json", "-o", tmp_path / "bin").json()
    assert (again["target"], again["built"]) == ("host", False)
    assert set(again["programs"]) == set(PROGRAMS)
    assert sorted(path.name for path in (tmp_path / "bin").iterdir()) == sorted(PROGRAMS)
    done = subprocess.run([again["programs"][RUNNER], "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: hvdc_runner ARTIFACT STREAM")
    folders = [path.name for path in (runtimes / "runtimes").iterdir() if path.suffix != ".lock"]
    assert folders == [Path(first.json()["folder"]).name]
    said = hvdc("runtime", "build")
    assert "hvdc_runner" in said.out
    assert "built before, of the same sources" in said.out


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HVDC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "runtimes"


@pytest.mark.usefixtures("empty_cache")
def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_build, "why_not", lambda target: "cmake is not installed: apt-get install cmake")
    done = hvdc("runtime", "build", "--target", "aarch64-linux", "--json")
    assert done.status == 1
    assert done.json()["error"]["found"] == "cmake is not installed: apt-get install cmake"
    monkeypatch.undo()


def test_a_build_that_fails_shows_the_compilers_words(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "odd-compiler"
    compiler.write_text("#!/bin/sh\necho it is not in the mood >&2\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    if runtime_build.why_not("host"):
        pytest.skip(runtime_build.why_not("host"))
    done = hvdc("-v", "runtime", "build")
    assert done.status == 1
    assert "the device runtime does not build" in done.err
    assert "it is not in the mood" in done.err
    assert [path.name for path in empty_cache.iterdir() if path.suffix != ".lock"] == []


@pytest.mark.usefixtures("empty_cache")
def test_other_sources_or_another_compiler_are_another_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "one.c"
    source.write_text("int one;\n")
    monkeypatch.setattr(runtime_build, "SOURCE", tmp_path)
    monkeypatch.setattr(runtime_build, "source_files", lambda: [source])
    monkeypatch.setattr(runtime_build, "why_not", lambda target: "")
    built = []

    def build(target: str, place: Path, programs: tuple[str, ...], seen: object) -> dict[str, Path]:
        place.mkdir()
        built.append(target)
        for name in programs:
            (place / name).write_text(name)
        return {name: place / name for name in programs}

    monkeypatch.setattr(runtime_build, "build_host", build)

    def find(version: str, target: str = "host") -> Path:
        monkeypatch.setattr(runtime_build, "compiler", lambda target: version)
        return find_runtime(target, Silent(), lambda text: None).runner

    first = find("cc 1")
    assert find("cc 1") == first
    assert find("cc 2") != first
    assert find("cc 1", "host-asan") != first
    source.write_text("int two;\n")
    assert find("cc 1") != first
    assert built == ["host", "host", "host-asan", "host"]
    assert first.read_text() == RUNNER
