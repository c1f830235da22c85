"""`hvdc runtime build --target android-arm64`, as far as it goes without an NDK.

The NDK here is a stand-in: its toolchain file writes down what it was told and takes this machine's compilers, so that
the whole command is executed, and no program is one for a phone. A real NDK was never at hand.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from device_runtime.build import why_not
from hvdc.pipeline.runtime_kept import PROGRAMS
from tests.commands import hvdc

REVISION = "27.9.12345"
TOOLCHAIN = """
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(ANDROID TRUE)
foreach(language C CXX)
  set(CMAKE_${language}_FLAGS_RELEASE "-O0" CACHE STRING "nothing is computed with these programs")
endforeach()
if(DEFINED ANDROID_ABI)
  file(WRITE "${CMAKE_CURRENT_LIST_DIR}/told" "${ANDROID_ABI} ${ANDROID_PLATFORM} ${ANDROID_STL} ${CMAKE_BUILD_TYPE}")
endif()
"""
"""CMake reads it again where it tries a compiler, without the preset's variables."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HVDC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("ANDROID_NDK_ROOT", raising=False)
    monkeypatch.setenv("ANDROID_NDK_ROOT", "")  # so that what --ndk sets is undone
    return tmp_path / "cache"


@pytest.fixture
def ndk(tmp_path: Path) -> Path:
    root = tmp_path / "an ndk"
    (root / "build" / "cmake").mkdir(parents=True)
    (root / "build" / "cmake" / "android.toolchain.cmake").write_text(TOOLCHAIN)
    (root / "source.properties").write_text(f"Pkg.Desc = Android NDK\nPkg.Revision = {REVISION}\n")
    return root


@pytest.fixture
def artifact(tiny_artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_artifact, tmp_path / "a.hvdc"))


@pytest.mark.parametrize("target", ["android-arm64", "android"])
def test_without_an_ndk_it_says_what_where_from_and_which_variable(target: str) -> None:
    done = hvdc("runtime", "build", "--target", target, "--json")
    assert done.status == 1
    found = done.json()["error"]["found"]
    assert "there is no Android NDK" in found
    for word in ("https://developer.android.com/ndk/downloads", "ANDROID_NDK_ROOT", "--ndk"):
        assert word in found


def test_a_folder_that_is_no_ndk_is_named(tmp_path: Path) -> None:
    done = hvdc("runtime", "build", "--target", "android-arm64", "--ndk", tmp_path, "--json")
    assert done.status == 1
    missing = tmp_path / "build" / "cmake" / "android.toolchain.cmake"
    assert done.json()["error"]["found"].endswith(f"is {tmp_path}, which is no Android NDK: there is no {missing}")


def test_an_ndk_has_no_effect_on_another_target(ndk: Path) -> None:
    done = hvdc("runtime", "build", "--target", "host", "--ndk", ndk)
    assert done.status == 2
    assert "--ndk has no effect on host" in done.err


def test_its_programs_go_into_an_artifact(
    ndk: Path, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := why_not("host"):
        pytest.skip(f"the command is not executed with a stand-in for an NDK: {reason}")
    done = hvdc("runtime", "build", "--target", "android-arm64", "--ndk", ndk, "--into", artifact, "--json")
    assert done.status == 0, done.err
    facts = done.json()
    assert (facts["target"], facts["compiler"]) == ("android-arm64", f"Android NDK {REVISION}")
    told = (ndk / "build" / "cmake" / "told").read_text().split()
    assert told == ["arm64-v8a", "android-30", "c++_static", "Release"]

    programs = {f"android-arm64-{name}" for name in PROGRAMS}
    assert {path.name for path in (artifact / "runtime").iterdir()} == programs | {
        "runtime.json",
        "sources.tar",
        "answer.bin",
    }
    listed = (artifact / "runtime" / "runtime.json").read_text("utf-8")
    (build,) = json.loads(listed)["builds"]
    assert (build["target"], build["machine"]) == ("android-arm64", "aarch64")
    assert build["compiler"] == f"Android NDK {REVISION}"
    assert {program["name"] for program in build["programs"]} == programs
    assert str(tmp_path) not in listed, "where the NDK lies is nobody's business"
    runner = artifact / "runtime" / "android-arm64-hvdc_runner"
    said = subprocess.run([runner, "--help"], capture_output=True, text=True, check=True).stdout
    assert said.startswith("usage: hvdc_runner"), "the stand-in's compiler is this machine's"
    assert b"libnativewindow.so" in runner.read_bytes(), "Android's memory"
    assert hvdc("validate", artifact).status == 0

    monkeypatch.setenv("ANDROID_NDK_ROOT", str(ndk))  # the same by the variable
    assert not hvdc("runtime", "build", "--target", "android-arm64", "--json").json()["built"]
