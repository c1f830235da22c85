"""Whether the backend can be used, and the exact reason if not."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from exporters.qnn import available
from exporters.qnn.errors import QnnError


def libraries(folder: Path, *, without: tuple[str, ...] = ()) -> Path:
    for name in available.LIBRARIES:
        if name not in without:
            (folder / name).write_bytes(b"")
    return folder


@pytest.fixture
def good_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))


@pytest.mark.usefixtures("good_machine")
class TestAGoodMachine:
    def test_all_libraries_are_there(self, tmp_path: Path) -> None:
        assert available.why_not(libraries(tmp_path)) == ""

    @pytest.mark.parametrize("name", available.LIBRARIES)
    def test_a_missing_library_is_named_with_its_use(self, tmp_path: Path, name: str) -> None:
        """An installed package proves nothing: the libraries themselves are looked for."""
        [problem] = available.problems(libraries(tmp_path, without=(name,)))
        assert name in problem.found
        assert available.LIBRARIES[name] in problem.found
        assert "pip install --force-reinstall" in problem.fix

    def test_no_wheel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        [problem] = available.problems()
        assert problem.what == "the package onnxruntime-qnn is not installed"
        with pytest.raises(QnnError, match="onnxruntime-qnn is not installed") as caught:
            available.library_folder()
        assert "pip install" in caught.value.fix

    def test_another_version(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        package = tmp_path / available.PACKAGE
        package.mkdir()
        (libraries(package) / "__init__.py").write_text("")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(metadata, "version", {"onnxruntime-qnn": "2.6.1", "onnxruntime": "1.30.0"}.__getitem__)
        [problem] = available.problems()
        assert problem.found == "2.6.1"


@pytest.mark.parametrize(
    ("machine", "libc", "said"),
    [
        ("aarch64", ("glibc", "2.36"), "x86-64 Linux only"),
        ("x86_64", ("glibc", "2.31"), "glibc 2.35 or newer"),
        ("x86_64", ("", ""), "another C library"),
    ],
)
@pytest.mark.usefixtures("good_machine")
def test_another_machine(
    machine: str, libc: tuple[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    assert said in available.why_not(libraries(tmp_path))


def test_libraries_that_do_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "library_folder", lambda: libraries(tmp_path))
    available.toolchain.cache_clear()
    try:
        with pytest.raises(QnnError, match="do not load") as caught:
            available.toolchain()
    finally:
        available.toolchain.cache_clear()
    assert "file too short" in caught.value.found


def test_the_toolchain_says_what_it_is(backend: available.Toolchain) -> None:
    assert backend.build_id.startswith("v2.")
    assert backend.onnxruntime_qnn.startswith("2.7.")
    assert backend.backend_api.split(".")[0] == "5"


def test_nothing_is_loaded_into_the_calling_process(backend: available.Toolchain) -> None:
    code = (
        "import sys; from pathlib import Path; from exporters.qnn import available, compile, emulate\n"
        "available.toolchain()\n"
        "maps = Path('/proc/self/maps').read_text()\n"
        "print([n for n in available.LIBRARIES if n in maps], 'onnxruntime' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "[] False\n"
