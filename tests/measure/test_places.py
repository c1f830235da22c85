"""Programs that are watched: every line once, and an end to those that have none."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdc.measure.places import KEPT_BYTES, Ended, HostPlace, ProgramError, watched
from hvdc.pipeline.runtime_kept import Runtime


def shell(text: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", text], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


def test_both_outputs_and_the_status() -> None:
    taken: list[str] = []

    def seen(line: str) -> bool:
        taken.append(line)
        return line.startswith("take")

    ended = watched(shell("echo out; echo take 1 >&2; echo rest >&2; printf torn >&2; exit 3"), "x", seen)
    assert ended == Ended(3, b"out\n", ("rest", "torn"))
    assert taken == ["take 1", "rest", "torn"]


def test_lines_of_standard_output_as_they_come() -> None:
    lines: list[str] = []
    ended = watched(shell("printf 'a\\nb\\r\\nhalf'"), "x", lambda line: False, lines.append)
    assert lines == ["a", "b", "half"]
    assert ended.out == b""


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\x00"), max_size=20), max_size=5))
def test_no_line_is_lost(said: list[str]) -> None:
    process = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    process.stdin.write("".join(f"{line}\n" for line in said).encode())
    process.stdin.close()
    process.stdin = None
    lines: list[str] = []
    watched(process, "cat", lambda line: False, lines.append)
    assert lines == said


def test_silence_has_a_limit() -> None:
    process, start = shell("echo first >&2; sleep 60"), time.monotonic()
    with pytest.raises(ProgramError, match="says nothing") as caught:
        watched(process, "x", lambda line: False, silence_s=0.3)
    assert time.monotonic() - start < 10
    assert caught.value.log == ("first",)
    assert process.poll() is not None, "it does not outlive the call"


@pytest.mark.parametrize("to", ["1", "2"])
def test_an_endless_line_has_a_limit(to: str) -> None:
    process = shell(f"head -c {3 * KEPT_BYTES} /dev/zero >&{to}")
    with pytest.raises(ProgramError, match="talks without end"):
        watched(process, "x", lambda line: False)
    assert process.poll() is not None


def test_a_reader_that_has_enough_ends_the_program() -> None:
    process = shell("echo one; sleep 60")

    def stop(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched(process, "x", lambda line: False, stop)
    assert process.poll() is not None


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    place = HostPlace(Runtime("host", tmp_path, "", "", {}, built=False), None, None)
    with pytest.raises(ProgramError, match="cannot be started") as caught:
        place.run("hvdc_bench", [], lambda line: False)
    assert "hvdc runtime build" in caught.value.fix
    assert place.script("echo it works") == "it works\n"
    assert place.script("exit 3") == ""
