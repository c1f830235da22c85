"""Help, exit statuses, errors: what is wrong, where, what was expected and found, what to do; no traceback unasked."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdc.cli.main import VERBS
from hvdc.cli.output import table
from tests.commands import SMALL_VIDEO, command_line, environment, hvdc, process

COMMANDS = [[verb] for verb in VERBS] + [["synth", "checkpoint"], ["synth", "artifact"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_verb_explains_itself(command: list[str], flag: str) -> None:
    done = hvdc(*command, flag)
    assert done.status == 0
    assert done.out.startswith(f"Usage: hvdc {' '.join(command)}")
    assert done.err == ""
    options = re.findall(r"^  (-[^\s,]+).*?(?:\s{2,}(\S.*))?$", done.out, re.M)
    assert options


def test_help_names_every_verb_and_exit_status() -> None:
    text = hvdc("--help").out
    for verb, line in VERBS.items():
        assert f"{verb} " in text
        assert line in text
    for status in ("0 ok", "1 failure", "2 usage", "3 bad checkpoint", "4 bad artifact", "5", "130 interrupted"):
        assert status in " ".join(text.split())


def test_no_arguments_show_the_help() -> None:
    done = process()
    assert done.status in (0, 2)
    assert "compile" in done.out + done.err
    assert "Traceback" not in done.err


def test_version() -> None:
    done = hvdc("--version")
    assert done.status == 0
    assert re.fullmatch(r"hvdc, version \d+\.\d+\.\d+\S*\n", done.out)


def bad_checkpoint(folder: Path) -> list[object]:
    (folder / "page.safetensors").write_text("<!DOCTYPE html><html><body>Not found</body></html>")
    return ["compile", folder / "page.safetensors", "-o", folder / "a.hvdc"]


def no_checkpoint(folder: Path) -> list[object]:
    return ["compile", folder / "nowhere.safetensors", "-o", folder / "a.hvdc"]


def no_output(folder: Path) -> list[object]:
    return ["compile", folder / "x.safetensors"]


def no_artifact(folder: Path) -> list[object]:
    return ["validate", folder / "nowhere.hvdc"]


def damaged_artifact(folder: Path) -> list[object]:
    (folder / "b.hvdc" / "index.bin").write_bytes(b"not an index")
    return ["inspect", folder / "b.hvdc"]


def other_thing(folder: Path) -> list[object]:
    return ["diff", folder / "b.hvdc", folder]


def unknown_setting(folder: Path) -> list[object]:
    return ["compile", folder / "m.safetensors", "--dry-run", "--set", "frame=17"]


def bad_setting(folder: Path) -> list[object]:
    return ["compile", folder / "m.safetensors", "--dry-run", "--set", "frames"]


def bad_frames(folder: Path) -> list[object]:
    return ["compile", folder / "m.safetensors", "--dry-run", "--frames", 48]


def bad_height(folder: Path) -> list[object]:
    return ["compile", folder / "m.safetensors", "--dry-run", "--height", 481]


def unknown_option(folder: Path) -> list[object]:
    return ["compile", folder / "m.safetensors", "--fast"]


def unknown_verb(folder: Path) -> list[object]:
    return ["optimize"]


def bad_number(folder: Path) -> list[object]:
    return ["compile", folder / "m.safetensors", "--jobs", "many"]


def no_tensor(folder: Path) -> list[object]:
    return ["inspect", folder / "b.hvdc", "--tile", "blocks.9.x", 0, 0]


def no_match(folder: Path) -> list[object]:
    return ["inspect", folder / "b.hvdc", "--tensors", "nothing*"]


CASES: dict[Callable[[Path], list[object]], tuple[int, str]] = {
    bad_checkpoint: (3, "HTML|web page"),
    no_checkpoint: (3, "nowhere.safetensors"),
    no_output: (2, "-o NAME.hvdc"),
    no_artifact: (4, "no such artifact"),
    damaged_artifact: (4, "index.bin"),
    other_thing: (4, "not an artifact"),
    unknown_setting: (2, "no setting 'frame'"),
    bad_setting: (2, "key=value"),
    bad_frames: (2, "4 n \\+ 1"),
    bad_height: (2, "multiple of 16"),
    unknown_option: (2, "No such option"),
    unknown_verb: (2, "No such command"),
    bad_number: (2, "--jobs"),
    no_tensor: (2, "no tensor"),
    no_match: (2, "no tensor matches"),
}


@pytest.fixture
def folder(tiny_checkpoint: Path, ragged_artifact: Path, tmp_path: Path) -> Path:
    shutil.copytree(ragged_artifact, tmp_path / "b.hvdc")
    (tmp_path / "m.safetensors").symlink_to(tiny_checkpoint)
    return tmp_path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_an_error_is_a_message_with_the_documented_status(case: Callable[[Path], list[object]], folder: Path) -> None:
    status, says = CASES[case]
    done = hvdc(*case(folder))
    assert done.status == status, done.err
    assert re.search(says, done.err + done.out), done.err
    assert "Traceback" not in done.err
    assert "unexpected" not in done.err


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_with_json_the_error_is_json_too(case: Callable[[Path], list[object]], folder: Path) -> None:
    status, says = CASES[case]
    done = hvdc(*case(folder), "--json")
    facts = done.json()
    assert done.status == status
    if "findings" in facts:  # `validate` reports what it found, and that is its result
        assert not facts["ok"]
        return
    assert facts["error"]["exit_status"] == status
    assert facts["error"]["what"]
    assert set(facts["error"]) <= {"what", "where", "expected", "found", "fix", "exit_status"}
    assert re.search(says, json.dumps(facts, ensure_ascii=False)), facts


def test_the_fields_of_an_error_are_lines(folder: Path) -> None:
    lines = hvdc(*bad_frames(folder)).err.splitlines()
    assert lines[0].startswith("error: the number of frames")
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["where", "expected", "found", "fix"]
    assert "use 45 or 49" in lines[-1]


def test_only_v_shows_the_traceback(folder: Path) -> None:
    done = hvdc("-v", *bad_checkpoint(folder))
    assert done.status == 3
    assert "Traceback" in done.err
    assert hvdc("--verbose", *bad_frames(folder)).err.count("Traceback") >= 1


def test_a_reader_that_goes_away_is_no_error_to_see(tiny_artifact: Path) -> None:
    """`hvdc … | head -1`: no traceback, and no message about a pipe."""
    for arguments in (
        ["inspect", tiny_artifact, "--tensors", "*", "--json"],
        ["inspect", tiny_artifact, "--tensors", "*"],
    ):
        child = subprocess.Popen(
            command_line(*arguments), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.read(10)
        child.stdout.close()
        said = child.stderr.read().decode()
        child.stderr.close()
        assert child.wait(30) in (0, 1)
        assert said == ""


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_standard_output_that_is_full_is_said(more: list[str], tiny_artifact: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command_line("inspect", tiny_artifact, *more), env=environment(), stdout=full, stderr=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_streams_are_no_failure(tiny_artifact: Path) -> None:
    """As under cron: `hvdc validate … >&-`."""
    for close in (">&-", "2>&-", ">&- 2>&-"):
        line = f'"$@" {close}'
        done = subprocess.run(
            ["/bin/sh", "-c", line, "sh", *command_line("validate", tiny_artifact, "--deep")], env=environment(),
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_a_terminal_without_unicode_gets_question_marks(tiny_artifact: Path, tiny_checkpoint: Path) -> None:
    env = environment(LC_ALL="C", PYTHONIOENCODING="ascii")
    done = process("inspect", tiny_artifact, env=env)
    assert done.status == 0, done.err
    assert "64 ? 64" in done.out
    assert process("compile", tiny_checkpoint, "--dry-run", env=env).status == 0


def test_help_is_quick_to_load() -> None:
    """`hvdc --help` imports neither torch nor numpy, nor any verb."""
    code = (
        "import sys; from hvdc.cli.main import run; run(['--help'])\n"
        "print([m for m in ('torch', 'numpy', 'rich', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_verb_needs_torch_to_say_what_it_does() -> None:
    """Nor to say that an artifact is not there: PyTorch takes seconds."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from hvdc.cli.main import VERBS, run\n"
        "failed = [verb for verb in VERBS if run([verb, '--help'])]\n"
        "print(failed, int(run(['run', '--device', 'auto', '--prompts', 'p', '-o', 'o', 'nowhere.hvdc'])))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] 4", done.stderr


def test_compiling_a_safetensors_file_needs_no_torch(ragged_checkpoint: Path, tmp_path: Path) -> None:
    """But for the answer that devices are tried with, which is then left out, and said."""
    code = "import sys; sys.modules['torch'] = None; from hvdc.cli.main import run; sys.exit(run(sys.argv[1:]))"
    arguments = ["compile", ragged_checkpoint, "-o", tmp_path / "a.hvdc", *SMALL_VIDEO, "-q"]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], env=environment(), check=True, timeout=60,
        capture_output=True, text=True,
    )  # fmt: skip
    assert "note: no answer to try devices with was stored: PyTorch cannot be imported" in done.stdout
    assert not (tmp_path / "a.hvdc" / "runtime" / "answer.bin").exists()


def test_torch_is_not_loaded_while_weights_are_compiled(ragged_checkpoint: Path, tmp_path: Path) -> None:
    """Its memory is not added to that of the threads; at the end it computes the answer."""
    code = (
        "import sys, hvdc.pipeline.build as b; from hvdc.cli.main import run; before, seen = b.answer_for, []\n"
        "b.answer_for = lambda *a: (seen.append('torch' in sys.modules), before(*a))[1]\n"
        "status = run(sys.argv[1:]); sys.exit(status or seen != [False])"
    )
    arguments = ["compile", ragged_checkpoint, "-o", tmp_path / "a.hvdc", *SMALL_VIDEO, "-q"]
    subprocess.run([sys.executable, "-c", code, *map(str, arguments)], env=environment(), check=True, timeout=60)
    assert (tmp_path / "a.hvdc" / "runtime" / "answer.bin").exists()


def test_colons_in_what_was_given_are_no_emoji(tmp_path: Path) -> None:
    done = hvdc("inspect", tmp_path / ":smile:.hvdc")
    assert f"{tmp_path}/:smile:.hvdc" in done.err


def test_colons_in_a_table_are_no_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    table(":b: as title", ["a", ">b"], [[":smile:", "[red]1"]])
    text = capsys.readouterr().out
    assert (":b: as title" in text, ":smile:" in text, "[red]1" in text) == (True, True, True)
