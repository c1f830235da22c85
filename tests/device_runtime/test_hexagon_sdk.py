"""The route for people who have Qualcomm's Hexagon SDK: which compiler is called, and with what.

No SDK is at hand. A folder with the names of one holds a compiler that answers CMake's questions by clang-22, and
writes down how it was called for the runtime's own sources: what the real one makes of them is not known.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from device_runtime.build import HEXAGON_DEVICES, SKEL, SKELS, BuildError, build_host, compiler, why_not

pytestmark = pytest.mark.skipif(
    shutil.which("clang-22") is None, reason="there is no clang-22: apt-get install clang-22"
)

COMPILER = """#!/bin/sh
case "$*" in
*skel_v* | *unit_v* | *hvdc_device.dir*) ;;
*) exec clang-22 --target=hexagon-unknown-elf "$@" ;;
esac
echo "$*" >> '{calls}'
while [ "$1" != -o ]; do shift; done
: > "$2"
"""


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With two versions of the tools, of which the newer one is taken."""
    folder = tmp_path / "sdk"
    for version in ("8.7.06", "19.0.04"):
        tools = folder / "tools" / "HEXAGON_Tools" / version / "Tools" / "bin"
        tools.mkdir(parents=True)
        for name in ("hexagon-clang", "hexagon-clang++"):
            (tools / name).write_text(COMPILER.format(calls=tmp_path / version))
            (tools / name).chmod(0o755)
    monkeypatch.setenv("HEXAGON_SDK_ROOT", str(folder))
    return folder


def test_the_newest_compiler_of_the_sdk_builds_the_libraries(sdk: Path, tmp_path: Path) -> None:
    """With mnemonics of the matrix unit and its own C library, and linked by itself; nothing for the emulator, whose
    programs need our own C library."""
    assert compiler("hexagon") == "Hexagon SDK tools 19.0.04"
    build = tmp_path / "build"
    build_host("hexagon", build, (f"v79-{SKEL}",))
    assert not (tmp_path / "8.7.06").exists()
    calls = [line.split() for line in (tmp_path / "19.0.04").read_text().splitlines()]
    compiled, linked = ([words for words in calls if ("-c" in words) == one] for one in (True, False))
    for words in compiled:
        shared = "/hvdc_device.dir/" in words[words.index("-o") + 1]  # nothing of an architecture is in it
        assert f"-m{HEXAGON_DEVICES[0] if shared else 'v79'}" in words
        assert {"-mhmx", "-mhvx", "-mhvx-length=128B", "-G0", "-Werror", "-ffp-contract=off"} <= set(words)
        assert not {"-ffreestanding", "-fno-builtin"} & set(words)
        assert not any("libc" in word for word in words)
    sources = {Path(words[words.index("-c") + 1]).name for words in compiled}
    assert {"skel.c", "session.c", "unit_words.c", "pool_qurt.c", "dsp_device.c"} <= sources
    (words,) = linked
    assert {"-shared", "-mv79", "-Wl,-soname=libhvdc_skel.so", "-Wl,-Bsymbolic"} <= set(words)
    assert sum(word.endswith(".obj") for word in words) == len(sources)
    command = ["cmake", "--build", str(build), "--target", "help"]
    targets = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert all(f"hvdc_skel_{arch}" in targets for arch in HEXAGON_DEVICES)
    assert "hvdc_kernels" not in targets


def test_a_folder_that_is_no_sdk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXAGON_SDK_ROOT", str(tmp_path))
    said = f"HEXAGON_SDK_ROOT has no compiler below {tmp_path / 'tools' / 'HEXAGON_Tools'}"
    assert why_not("hexagon") == said
    with pytest.raises(BuildError, match="HEXAGON_SDK_ROOT has no compiler"):
        build_host("hexagon", tmp_path / "build", SKELS)
    assert compiler("hexagon") == ""
