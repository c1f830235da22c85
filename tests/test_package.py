"""What a person gets who installs the wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OWNED = {"hvdc", "exporters", "quant", "layouts", "device_runtime"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


def test_it_owns_exactly_its_packages_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    python = env / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    before = set(Path(site).iterdir())
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(pip, check=True)
    new = {p.name for p in set(Path(site).iterdir()) - before}
    assert {name for name in new if not name.endswith(".dist-info")} == OWNED
    scripts = [p.name for p in (env / "bin").iterdir() if "hvdc" in p.name]
    assert scripts == ["hvdc"]
    where = "import layouts, quant, sys; print(layouts.__file__)"
    done = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith(site)


def test_it_carries_what_is_not_python(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "hvdc/targets/sm8750.toml" in names
    assert "hvdc/artifact/manifest.schema.json" in names
    assert {"hvdc/plan/templates/report.html.j2", "hvdc/plan/templates/report.css"} <= names
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "device_runtime"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [path for path in tracked if path not in names] == []
    assert any(name.endswith("licenses/LICENSE") for name in names)
