"""`hvdc doctor`: facts about the machine, and other distributions that own our package names."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hvdc.doctor.here import foreign_owners, foreign_places
from hvdc.doctor.private import without_names
from tests.commands import ROOT, environment, hvdc


@pytest.fixture(autouse=True)
def _own_adb_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """No report of these tests sees a phone of this machine: tests/doctor has those."""
    monkeypatch.setattr("hvdc.doctor.phones.probes", lambda server: [])
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(free.getsockname()[1]))


def test_this_machine_can_compile() -> None:
    done = hvdc("doctor", "--json")
    checks = {check["name"]: check for check in done.json()["checks"]}
    assert done.status == 0, [c for c in checks.values() if c["status"] == "error"]
    assert {"python", "numpy", "torch", "cc", "cmake", "memory", "disk"} <= set(checks)
    for name in ("hvdc", "exporters", "quant", "layouts", "device_runtime"):
        assert checks[f"package {name}"]["status"] == "ok"
    for check in checks.values():
        assert set(check) == {"name", "status", "found", "needed_for", "fix"}
        if check["status"] != "ok":
            assert check["needed_for"]
            assert check["fix"]


def test_plain_text_names_each_fact() -> None:
    lines = hvdc("doctor").out.splitlines()
    assert lines[0].startswith("ok       hvdc")
    assert lines[1].startswith("ok       system")
    assert lines[2].startswith("ok       python")
    assert any(line.split()[1] == "numpy" for line in lines if line.startswith("ok"))


def test_a_missing_program_says_what_it_is_needed_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = hvdc("doctor")
    assert done.status == 0, "compiling needs no compiler"
    assert "missing  cc " in done.out
    assert "needed for building the device runtime" in done.out
    assert "apt-get install" in done.out


def distribution(site: Path, name: str, files: list[str]) -> None:
    """A distribution as pip leaves it: files, and a RECORD of them."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in [*files, f"{info.name}/RECORD"]))
    for file in files:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text("")


def test_a_foreign_owner_of_a_name_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert foreign_owners() == {}
    distribution(tmp_path, "quant-tools", ["quant/__init__.py", "quant_tools/__init__.py"])
    distribution(tmp_path, "one-module", ["layouts.py"])
    distribution(tmp_path, "harmless", ["quantum/__init__.py", "harmless/layouts/__init__.py"])
    monkeypatch.syspath_prepend(str(tmp_path))
    assert foreign_owners() == {"quant": ["quant-tools"], "layouts": ["one-module"]}
    done = hvdc("doctor")
    assert done.status == 1
    assert "also installed by quant-tools" in done.out or "instead of ours" in done.out


def test_a_folder_that_hides_ours_is_found(tmp_path: Path) -> None:
    """PYTHONPATH or a working directory with a `quant` of its own, which no package manager knows of."""
    (tmp_path / "quant").mkdir()
    (tmp_path / "quant" / "__init__.py").write_text("")
    code = "import sys; from hvdc.cli.main import run; sys.exit(run(['doctor']))"
    env = environment(PYTHONPATH=f"{tmp_path}:{ROOT}")
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    found = without_names(str(tmp_path / "quant" / "__init__.py"))
    assert f"Python finds {found} instead of ours" in done.stdout
    assert foreign_places() == {}


def test_broken_metadata_of_others_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty-1.0.dist-info").mkdir()
    (tmp_path / "half-1.0.dist-info").mkdir()
    (tmp_path / "half-1.0.dist-info" / "METADATA").write_bytes(b"\xff\xfe\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert hvdc("doctor", "--json").json()["checks"]


def test_qualcomms_libraries_are_there_or_it_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from exporters.qnn.available import Problem, why_not

    checks = {check["name"]: check for check in hvdc("doctor", "--json").json()["checks"]}
    assert (checks["qnn"]["status"] == "ok") is not bool(why_not())
    missing = Problem("the package onnxruntime-qnn is not installed", "no such package", "pip install it")
    monkeypatch.setattr("exporters.qnn.available.problems", lambda: [missing])
    done = hvdc("doctor", "--json")
    check = next(check for check in done.json()["checks"] if check["name"] == "qnn")
    assert done.status == 0, "only the decoder needs them"
    assert check["status"] == "missing"
    assert "the package onnxruntime-qnn is not installed" in check["found"]
    assert (check["needed_for"], check["fix"]) == ("compiling and emulating the decoder", "pip install 'hvdc[qnn]'")
