"""`hvdc runtime build`: the programs, once."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from pathlib import Path

import pytest

from hvdc.errors import HvdcError
from hvdc.pipeline import runtime_build
from hvdc.pipeline.runtime_build import copy_programs, find_runtime, kept_runtime
from hvdc.pipeline.runtime_kept import DESCRIPTION_NAME, PROGRAMS, RUNNER, Runtime
from hvdc.progress import Silent
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
def test_other_sources_or_another_compiler_are_another_runtime(
    fake: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "one.c"
    source.write_text("int one;\n")
    monkeypatch.setattr(runtime_build, "SOURCE", tmp_path)
    monkeypatch.setattr(runtime_build, "sources_sha256", lambda: hashlib.sha256(source.read_bytes()).hexdigest())

    def find(version: str, target: str = "host") -> Path:
        monkeypatch.setattr(runtime_build, "compiler", lambda target: version)
        return find_runtime(target, Silent(), lambda text: None).runner

    first = find("cc 1")
    assert find("cc 1") == first
    assert find("cc 2") != first
    assert find("cc 1", "host-asan") != first
    source.write_text("int two;\n")
    assert find("cc 1") != first
    assert fake == ["host", "host", "host-asan", "host"]
    assert first.read_text() == RUNNER


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Builds that take no time: the targets that were built so far."""
    built: list[str] = []

    def build(target: str, place: Path, programs: tuple[str, ...], seen: object) -> dict[str, Path]:
        place.mkdir()
        built.append(target)
        for name in programs:
            (place / name).write_text(name)
        return {name: place / name for name in programs}

    monkeypatch.setattr(runtime_build, "build_host", build)
    monkeypatch.setattr(runtime_build, "why_not", lambda target: "")
    monkeypatch.setattr(runtime_build, "compiler", lambda target: "cc 1")
    return built


def found(target: str = "host") -> Runtime:
    return find_runtime(target, Silent(), lambda text: None)


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("damage", ["changed", "gone", "no description", "another program"])
def test_a_cached_program_that_is_not_what_was_built_is_built_again(damage: str, fake: list[str]) -> None:
    runtime = found()
    assert not found().built
    if damage == "changed":
        runtime.runner.write_text("something else")
    elif damage == "gone":
        runtime.runner.unlink()
    elif damage == "no description":
        (runtime.folder / DESCRIPTION_NAME).unlink()
    else:
        described = json.loads((runtime.folder / DESCRIPTION_NAME).read_text())
        described["sha256"]["../x"] = ""
        (runtime.folder / DESCRIPTION_NAME).write_text(json.dumps(described))
    assert kept_runtime("host") is None
    again = found()
    assert (again.built, again.folder) == (True, runtime.folder)
    assert again.runner.read_text() == RUNNER
    assert fake == ["host", "host"]


@pytest.mark.usefixtures("empty_cache", "fake")
def test_a_program_that_changes_meanwhile_is_not_copied(tmp_path: Path) -> None:
    runtime = found()
    runtime.runner.write_text("something else")
    with pytest.raises(HvdcError, match="not what was built"):
        copy_programs(runtime, tmp_path / "bin")
    assert not (tmp_path / "bin" / RUNNER).exists()


@pytest.mark.usefixtures("empty_cache", "fake")
def test_copies_can_be_executed(tmp_path: Path) -> None:
    copy_programs(found(), tmp_path / "bin")
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "bin").iterdir()} == {0o755}


@pytest.mark.usefixtures("empty_cache", "fake")
def test_programs_say_which_machine_they_are_for() -> None:
    assert found().machine == platform.machine()
    assert found("android-arm64").machine == found("aarch64-linux").machine == "aarch64"


@pytest.mark.usefixtures("empty_cache")
def test_without_a_compiler_what_another_one_has_built_will_do(
    fake: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = found()
    found("host-asan")
    monkeypatch.setattr(runtime_build, "compiler", lambda target: "")
    monkeypatch.setattr(runtime_build, "why_not", lambda target: "there is no C compiler")
    said: list[str] = []
    taken = find_runtime("host", Silent(), said.append)
    assert (taken.folder, taken.compiler, taken.built) == (first.folder, "cc 1", False)
    assert "cannot be built here (there is no C compiler): one of the same sources is taken, built with cc 1" in said[0]
    assert kept_runtime("host") == taken
    monkeypatch.setattr(runtime_build, "sources_sha256", lambda: "of others")
    assert kept_runtime("host") is None
    with pytest.raises(HvdcError, match="cannot be built here"):
        found()
    assert fake == ["host", "host-asan"]
