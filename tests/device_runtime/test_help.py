"""Programs that travel with an artifact explain themselves, and documents show options that they have."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from hvdc.pipeline.runtime_kept import PROGRAMS
from tests.test_documents import DOCUMENTS, ROOT


def run(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_says_what_a_program_does_and_its_exit_statuses(programs: dict[str, Path], name: str) -> None:
    done = run(programs[name], "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {name}")
    assert re.search(r"exit status", done.stdout, re.IGNORECASE)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_option_that_there_is_not_is_a_usage_error(programs: dict[str, Path], name: str) -> None:
    done = run(programs[name], "--no-such-option", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr


def test_documents_show_options_that_programs_have(programs: dict[str, Path]) -> None:
    helps = {name: run(programs[name], "--help").stdout for name in PROGRAMS}
    wrong, seen = [], 0
    for document in DOCUMENTS:
        text = document.read_text("utf-8").replace("\\\n", " ")
        for shown in re.finditer(rf"\b({'|'.join(PROGRAMS)}) ([^\n`|]*)", text):
            options = re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", shown[2].split("  #")[0])
            seen += len(options)
            wrong += [
                f"{document.relative_to(ROOT)}: {shown[1]} {option}"
                for option in options
                if option != "--help" and not re.search(rf"(?<![\w-]){option}(?![\w-])", helps[shown[1]])
            ]
    assert wrong == []
    assert seen > 10, "the search finds them"
