"""Data flows one way: who may import whom, read from the source text."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("exporters", "quant", "layouts", "device_runtime")
OURS = {"hvdc", *LIBRARIES}

MAY_IMPORT = {
    "layouts": {"layouts"},
    "exporters": {"exporters"},
    "quant": {"quant"},
    "device_runtime": {"device_runtime"},
    "hvdc/artifact": {"hvdc.artifact", "hvdc.errors", "hvdc.config", "layouts"},
    "hvdc/targets": {"hvdc.targets", "hvdc.errors"},
    "hvdc/plan": {
        "hvdc.plan",
        "hvdc.artifact",
        "hvdc.targets",
        "hvdc.config",
        "hvdc.errors",
        "hvdc.figures",
        "hvdc.files",
    },
    "hvdc/deploy": {"hvdc.deploy", "hvdc.artifact", "hvdc.targets", "hvdc.errors", "hvdc.progress"},
    "hvdc/pipeline": {
        "hvdc.pipeline",
        "hvdc.artifact",
        "hvdc.config",
        "hvdc.deploy",
        "hvdc.errors",
        "hvdc.figures",
        "hvdc.files",
        "hvdc.plan",
        "hvdc.progress",
        "hvdc.targets",
        *LIBRARIES,
    },
    "hvdc/measure": {
        "hvdc.measure",
        "hvdc.artifact",
        "hvdc.deploy",
        "hvdc.errors",
        "hvdc.files",
        "hvdc.pipeline",
        "hvdc.plan",
        "hvdc.progress",
        "hvdc.targets",
    },
    "hvdc/doctor": {
        "hvdc.doctor",
        "hvdc.deploy",
        "hvdc.errors",
        "hvdc.files",
        "hvdc.measure",
        "hvdc.pipeline",
        "device_runtime",
        "exporters",
    },
    "hvdc/cli": {"hvdc"},
    "hvdc/__init__.py": set(),
    "hvdc/__main__.py": {"hvdc.cli"},
    "hvdc/config.py": {"hvdc.errors", "hvdc.targets"},
    "hvdc/errors.py": set(),
    "hvdc/figures.py": {"hvdc.errors", "hvdc.files"},
    "hvdc/files.py": {"hvdc.errors"},
    "hvdc/progress.py": set(),
}
"""Room, a folder or a module -> the modules of this project that it may import (with all below them)."""

NUMPY_ONLY = {"numpy"}


def modules(room: str) -> list[Path]:
    return [ROOT / room] if room.endswith(".py") else sorted((ROOT / room).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Full names of imported modules; what is imported from `hvdc` itself counts as a submodule if it is one."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{a.name}" if node.module == "hvdc" else str(node.module) for a in node.names}
    return found


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    assert modules(room), f"{room} is empty"
    for path in modules(room):
        for name in imports(path):
            if name.split(".")[0] not in OURS or name == "hvdc.__version__":
                continue
            allowed = any(name == prefix or name.startswith(f"{prefix}.") for prefix in MAY_IMPORT[room])
            assert allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_layouts_needs_numpy_only() -> None:
    for path in modules("layouts"):
        outside = {name.split(".")[0] for name in imports(path)} - {"layouts"} - set(sys.stdlib_module_names)
        assert outside <= NUMPY_ONLY, path


def test_every_module_is_in_a_room_with_rules() -> None:
    packages = {p.parent.relative_to(ROOT).as_posix() for p in (ROOT / "hvdc").glob("*/__init__.py")}
    alone = {p.relative_to(ROOT).as_posix() for p in (ROOT / "hvdc").glob("*.py")}
    assert packages | alone <= set(MAY_IMPORT)


def test_modules_are_one_idea() -> None:
    """Above 400 lines a module is asked to be split, one of tests too; generated files are not modules."""
    rooms = (*OURS, "tests", "benchmarks", "examples", "tools")
    sizes = {p: len(p.read_text("utf-8").splitlines()) for room in rooms for p in modules(room)}
    assert {str(p.relative_to(ROOT)): n for p, n in sizes.items() if n > 400} == {}
