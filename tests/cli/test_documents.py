"""docs/CLI.md names every command, option, setting and exit status."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from exporters.schedule import DCM_BOUNDARY, DCM_TIMESTEPS
from hvdc.cli.main import VERBS, cli
from hvdc.config import CompileConfig, load_config
from hvdc.errors import Exit

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "CLI.md").read_text("utf-8")


def commands() -> list[tuple[str, click.Command]]:
    """``(verb, command)``, subcommands included."""
    context = click.Context(cli)
    found: list[tuple[str, click.Command]] = []
    for verb in VERBS:
        command = cli.get_command(context, verb)
        assert command is not None
        if isinstance(command, click.Group):
            inner = [command.get_command(context, name) for name in command.list_commands(context)]
            found += [(verb, c) for c in inner if c is not None]
        else:
            found.append((verb, command))
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_has_a_section_with_its_options(verb: str) -> None:
    section = TEXT.split(f"## `hvdc {verb}", 1)[1].split("\n## ", 1)[0]
    for name, command in commands():
        if name == verb:
            options = [max(p.opts, key=len) for p in command.params if isinstance(p, click.Option)]
            assert [option for option in options if not re.search(rf"(?<![\w-]){option}\b", section)] == []


def test_every_setting_is_named() -> None:
    assert [key for key in CompileConfig.model_fields if f"`{key}`" not in TEXT] == []


def test_every_exit_status_is_named() -> None:
    assert [status for status in Exit if f"\n| {int(status)} |" not in TEXT] == []


def test_every_variable_and_every_folder_of_the_cache_is_named() -> None:
    sources = [p for room in ("hvdc", "exporters", "device_runtime") for p in (ROOT / room).rglob("*.py")]
    code = "\n".join(p.read_text("utf-8") for p in sources if p.parent.name != "artifact")  # which writes C's macros
    variables = set(re.findall(r'"((?:HVDC|ANDROID|HEXAGON|ADB)_[A-Z_]+)"', code))
    assert {"HVDC_CACHE_DIR", "HVDC_BUILD_SKEL", "ANDROID_SERIAL"} <= variables, "the search finds them"
    folders = set(re.findall(r'cache_folder\("([a-z]+)"\)', code))
    assert "runtimes" in folders, "the search finds them"
    section = TEXT.split("\n## Environment and cache", 1)[1].split("\n## ", 1)[0]
    assert [name for name in sorted(variables) if f"`{name}`" not in section] == []
    assert [name for name in sorted(folders) if f"`{name}/`" not in section] == []


def test_the_example_configuration_is_valid_and_names_every_setting() -> None:
    path = ROOT / "examples" / "compile.toml"
    assert load_config(path, (), {}) == load_config(None, (), {}).model_copy(
        update={"timesteps": DCM_TIMESTEPS, "expert_boundary": DCM_BOUNDARY}
    )
    text = path.read_text("utf-8")
    assert [key for key in CompileConfig.model_fields if not re.search(rf"^(# )?{key} = ", text, re.MULTILINE)] == []
