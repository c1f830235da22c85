"""Commands that documents, help texts and messages show exist, and take the options that are shown with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from hvdc.cli.main import VERBS, cli
from tests.test_documents import DOCUMENTS, ROOT

SHOWN = re.compile(r"(?<![\w./-])hvdc ((?:-v )?[a-z]+(?: (?:(?!, )[^\n`|;)])*)?)")
"""What follows ``hvdc`` up to where it cannot be the same command any more."""


def leaves(verb: str) -> dict[str, click.Command]:
    """A verb's commands by their names; one that is no group has itself, as ``""``."""
    context = click.Context(cli)
    command = cli.get_command(context, verb)
    assert command is not None
    if not isinstance(command, click.Group):
        return {"": command}
    inner = {name: command.get_command(context, name) for name in command.list_commands(context)}
    return {name: c for name, c in inner.items() if c is not None}


COMMANDS = {verb: leaves(verb) for verb in VERBS}


def shown(text: str) -> Iterator[tuple[str, list[click.Command], list[str]]]:
    """Every command in a text: as it stands there, which ones it may be, and its options."""
    for found in SHOWN.finditer(text.replace("\\\n", " ")):
        words = found[1].removeprefix("-v ").split()
        if words[0] not in COMMANDS:
            continue
        of_verb = COMMANDS[words[0]]
        named = [c for name, c in of_verb.items() if name in words[1:2]] or list(of_verb.values())
        line = found[1].split("  #")[0].split(" && ")[0].split(" | ")[0]
        yield found[0], named, re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", line)


def unknown(text: str) -> list[str]:
    """Options that no command which is meant has."""
    wrong = []
    for what, commands, options in shown(text):
        known = {word for c in commands for p in c.params for word in p.opts} | {"--help"}
        wrong += [f"{option} in: {what}" for option in options if option not in known]
    return wrong


def test_the_search_finds_what_is_wrong() -> None:
    assert unknown("`hvdc run dcm.hvdc --cut 5 -o x`; hvdc plan memory dcm.hvdc --frames 17") == []
    assert unknown("hvdc run dcm.hvdc \\\n  --cuts 5 -o x") == ["--cuts in: hvdc run dcm.hvdc    --cuts 5 -o x"]
    assert unknown("`hvdc plan cut --frames 17`") == ["--frames in: hvdc plan cut --frames 17"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_in_documents_have_their_options(document: Path) -> None:
    assert unknown(document.read_text("utf-8")) == []


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_examples_whose_options_exist(verb: str) -> None:
    for name, command in COMMANDS[verb].items():
        text = command.help or ""
        assert re.search(r"^ *Examples?:\n", text, re.MULTILINE), f"{verb} {name}"
        assert unknown(text) == []


@pytest.mark.parametrize("verb", VERBS)
def test_help_describes_every_option(verb: str) -> None:
    options = [p for command in COMMANDS[verb].values() for p in command.params if isinstance(p, click.Option)]
    assert [option.opts for option in options if not option.help] == []


def test_lines_of_help_are_whole() -> None:
    """click cuts off what is too long for a line of a group's help."""
    for verb, inner in COMMANDS.items():
        for name, command in inner.items():
            assert verb == "plan" or not name or not command.get_short_help_str(60).endswith("..."), f"{verb} {name}"


@pytest.mark.parametrize("room", ["hvdc", "exporters", "quant", "device_runtime"])
def test_commands_in_messages_have_their_options(room: str) -> None:
    files = [path for end in ("py", "c", "h", "cpp", "txt") for path in (ROOT / room).rglob(f"*.{end}")]
    wrong = {path.relative_to(ROOT).as_posix(): unknown(path.read_text("utf-8")) for path in files}
    assert {path: found for path, found in wrong.items() if found} == {}
