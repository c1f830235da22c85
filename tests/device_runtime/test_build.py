"""Building the C sources, and fuzzing them for a moment."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from device_runtime.build import SOURCE, TOOLS, BuildError, build_host, compiler, why_not
from hvdc.artifact.manifest import INDEX_NAME
from tests.malformed.make import CORPUS

FUZZ_SECONDS = 5


def test_every_preset_of_the_build_is_one_of_cmake() -> None:
    presets = json.loads((SOURCE / "CMakePresets.json").read_text("utf-8"))
    assert {p["name"] for p in presets["configurePresets"]} == set(TOOLS)


def put_program(folder: Path, name: str) -> None:
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def beside_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the running Python, empty as PATH is."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    return tmp_path / "bin"


@pytest.mark.usefixtures("beside_python")
def test_a_missing_cmake_is_said(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="cmake is not installed: apt-get install cmake"):
        build_host("host", tmp_path)


def test_tools_beside_python_are_found_without_path(beside_python: Path) -> None:
    """pip installs cmake and ninja there; ``.venv/bin/python -m pytest`` doesn't put it on PATH."""
    put_program(beside_python, "cmake")
    assert "neither make nor ninja is installed" in why_not("host")
    put_program(beside_python, "ninja")
    assert "there is no C compiler" in why_not("host")


def test_a_missing_compiler_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "there is no C compiler (no-such-compiler)" in why_not("host")


def test_a_missing_compiler_for_cpp_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "there is no C++ compiler (no-such-compiler)" in why_not("host")


@pytest.mark.usefixtures("beside_python")
def test_a_missing_compiler_for_hexagon_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cmake", "ninja"):
        put_program(tmp_path, name)
    monkeypatch.delenv("HEXAGON_SDK_ROOT", raising=False)
    assert why_not("hexagon") == "clang-22 is not installed: apt-get install clang-22 lld-22"
    for name in ("clang-22", "clang++-22"):
        put_program(tmp_path, name)
    assert why_not("hexagon") == "ld.lld-22 is not installed: apt-get install clang-22 lld-22"
    put_program(tmp_path, "ld.lld-22")
    assert why_not("hexagon") == ""


@pytest.mark.usefixtures("beside_python")
def test_a_hexagon_sdk_takes_the_compilers_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cmake", "ninja"):
        put_program(tmp_path, name)
    monkeypatch.setenv("HEXAGON_SDK_ROOT", str(tmp_path / "sdk"))
    assert "HEXAGON_SDK_ROOT has no compiler below" in why_not("hexagon")
    (tmp_path / "sdk" / "tools" / "HEXAGON_Tools" / "8.8" / "Tools" / "bin").mkdir(parents=True)
    assert why_not("hexagon") == ""
    assert compiler("hexagon") == "Hexagon SDK tools 8.8"


def test_an_unknown_preset_is_said(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="presets are host, host-asan, host-tsan, aarch64-linux, android-arm64, fuzz"):
        build_host("phone", tmp_path)


def test_the_fuzzer_finds_nothing_in_a_moment(tmp_path: Path) -> None:
    reason = why_not("fuzz")
    if reason:
        pytest.skip(f"the index parser is not fuzzed: {reason}")
    fuzzer = build_host("fuzz", tmp_path / "build", ("fuzz_index",))["fuzz_index"]
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    for index in CORPUS.glob(f"*/{INDEX_NAME}"):
        if index.is_file():
            shutil.copy(index, seeds / index.parent.name)
    own_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024  # a child's peak begins with its parent's
    limits = [f"-max_total_time={FUZZ_SECONDS}", "-max_len=8192", "-timeout=5", f"-rss_limit_mb={1024 + own_mb}"]
    done = subprocess.run(
        [str(fuzzer), *limits, f"-artifact_prefix={tmp_path}/", str(seeds)],
        capture_output=True, text=True, errors="replace", check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
