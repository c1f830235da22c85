"""The runtime's process as `hvdc run` sees it: how it ends, and what its lines become."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import pytest

from hvdc.cli.output import Lines, shown
from hvdc.pipeline import run_lines, run_process
from hvdc.pipeline.cache import cache_folder
from hvdc.pipeline.run_process import RunnerError, Watched, run_runner
from hvdc.progress import Silent
from tests.cli.runs import EXECUTIONS
from tests.device_runtime.runs import is_running


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def watched(videos: int = 2) -> tuple[Watched, list[str], list[tuple[int, float, str]]]:
    said: list[str] = []
    cuts: list[tuple[int, float, str]] = []
    return Watched(videos, EXECUTIONS, Silent(), said.append, lambda *cut: cuts.append(cut)), said, cuts


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("kill -9 $$", 1, "it was killed by signal 9"),
        ("exit 7", 1, "it ended with status 7"),
        ("echo '{\"finished\": 1'", 1, "it ended with status 0"),
        ("echo '[]'; exit 0", 1, "it ended with status 0"),
        ("""echo '{"error": {"kind": "usage", "what": "no"}}'; exit 2""", 2, "no"),
        ("""echo '{"error": {"kind": "artifact", "what": "no"}}'; exit 4""", 4, "no"),
        ("""echo '{"error": {"kind": "device", "what": "no"}}'; exit 5""", 5, "no"),
        ("""echo '{"error": {"kind": "memory", "what": "no"}}'; exit 1""", 1, "no"),
        ("""echo '{"error": {"kind": "peer", "what": "no"}}'; exit 130""", 130, "no"),
    ],
)
def test_how_a_process_ends(text: str, status: int, words: str, tmp_path: Path) -> None:
    watch, _, _ = watched()
    path = program(tmp_path / "program", f"echo 'a driver talks' >&2\n{text}")
    with pytest.raises(RunnerError) as caught:
        run_runner(path, (), watch, Silent())
    assert caught.value.exit_status == status
    assert words in str(caught.value)
    assert caught.value.log == ("a driver talks",)


def test_a_process_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_process, "STOP_TIMEOUT_S", 0.2)
    watch, _, _ = watched()
    path = program(tmp_path / "program", f"trap '' TERM; echo $$ > {tmp_path}/pid; echo go >&2; while :; do :; done")

    def stop(line: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "take", stop)
    with pytest.raises(KeyboardInterrupt):
        run_runner(path, (), watch, Silent())
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_the_runtime_never_waits_for_who_watches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a pipe holds is written, and the program ends, while the first line is still being taken."""
    watch, _, _ = watched()
    taken: list[str] = []
    end = tmp_path / "end"
    loop = "i=0; while [ $i -lt 9000 ]; do echo 'a driver talks, and talks' >&2; i=$((i+1)); done"
    text = f"{loop}; : > {end}; echo last >&2"

    def slow(line: str) -> None:
        deadline = time.monotonic() + 30
        while not taken and not end.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert end.exists()
        taken.append(line)

    monkeypatch.setattr(watch, "take", slow)
    with pytest.raises(RunnerError):
        run_runner(program(tmp_path / "program", text), (), watch, Silent())
    assert len(taken) == 9001
    assert taken[-1] == "last"


def test_what_waits_is_bounded_and_the_last_of_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lines, "WAITING_BYTES", 1000)
    monkeypatch.setattr(run_lines, "LINE_BYTES", 100)
    reader, writer = os.pipe()
    lines = run_lines.Lines(reader)
    for i in range(200):
        os.write(writer, b"line %d\n" % i)
    os.write(writer, b"x" * 5000)
    os.write(writer, b"y\nnot ended")
    os.close(writer)
    lines.join(30)
    os.close(reader)
    found = list(lines)
    assert found[-2:] == ["x" * 100 + "…", "not ended"]
    assert found[:-2] == [f"line {i}" for i in range(lines.left_out, 200)]
    assert 0 < lines.left_out < 200
    assert sum(map(len, found)) <= 1000


def test_a_video_that_is_finished_after_an_interrupt_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished: list[int] = []
    watch, _, _ = watched()
    watch._finished = lambda held: finished.append(held["video"])
    event = """{"event": "finished", "video": 1, "position": 12, "record": {"video": 1}}"""
    take = watch.take

    def stop(line: str) -> None:
        take(line)
        if line == "go":
            raise KeyboardInterrupt

    monkeypatch.setattr(watch, "take", stop)
    (tmp_path / "event").write_text(event + "\n")
    text = f"trap 'cat {tmp_path}/event >&2; exit 130' TERM; echo go >&2; while :; do sleep 0.01; done"
    with pytest.raises(KeyboardInterrupt):
        run_runner(program(tmp_path / "program", text), (), watch, Silent())
    assert finished == [1]


def test_lines_become_progress_and_notes() -> None:
    class Counting(Silent):
        done = 0
        finished: list[str] = []  # noqa: RUF012 - one test's
        skipped = 0

        def advance(self, done: int) -> None:
            self.done += done

        def skip(self, units: int) -> None:
            self.skipped += units

        def item_done(self, label: str) -> None:
            self.finished.append(label)

    watch, said, cuts = watched(3)
    progress = Counting()
    watch._progress = progress
    for line in (
        '{"event": "note", "text": "weights"}',
        '{"event": "cut", "cut": 7, "gpu_share": 0, "cut_source": "measured"}',
        '{"event": "gpu", "text": "GPU: Adreno"}',
        '{"event": "blocks", "video": 0, "position": 3, "at_s": 1}',
        '{"event": "blocks", "video": 1, "position": 2, "at_s": 1}',
        '{"event": "blocks", "video": 0, "position": 2, "at_s": 1}',
        '{"event": "finished", "video": 0, "position": 12, "at_s": 1}',
        '{"event": "skipped", "video": 1, "position": 0, "at_s": 1}',
        '{"event": "finished", "video": 2, "position": 12, "at_s": 1, "record": {"video": 2, "kept": true}}',
        '{"event": "something new"}',
        '{"event": "gpu-lost", "text": "the GPU is gone"}',
        "no JSON",
        "[1]",
    ):
        watch.take(line)
    assert (said, cuts) == (["weights", "GPU: Adreno", "the GPU is gone"], [(7, 0.0, "measured")])
    assert (progress.done, progress.skipped) == (EXECUTIONS + 2, EXECUTIONS - 2 + EXECUTIONS), "one was only decoded"
    assert progress.finished == ["video 0", "video 1", "video 2"]
    assert watch.device == "Adreno"
    assert list(watch.log) == ["no JSON", "[1]"]


def test_what_was_there_is_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    lines.start("running", 100, 4, unit="blocks")
    for _ in range(2):
        lines.skip(25)
        lines.item_done("video")
    lines.advance(25)
    lines.item_done("video")
    first, _, last = capsys.readouterr().err.splitlines()
    assert first.endswith(" 0/75 blocks  0 blocks/s"), "and how long it will take is not known"
    assert " 25/50 blocks " in last


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_names_the_way_on(number: int, tmp_path: Path) -> None:
    watch, _, _ = watched()
    what = f"out/results/video-000000.safetensors cannot be written: {os.strerror(number)}"
    report = json.dumps({"error": {"kind": "file", "what": what}})
    path = program(tmp_path / "program", f"echo '{report}'; exit 1")
    with pytest.raises(RunnerError) as caught:
        run_runner(path, (), watch, Silent())
    assert caught.value.fix == "make room and run the same command with --resume: finished videos are kept"


def test_prompts_are_shown_as_one_short_line() -> None:
    assert shown("a cat\n\x1b[31mon  a\tmat\u202e") == "a cat [31mon a mat"
    assert shown("y" * 60) == "y" * 60
    assert shown("word " * 30) == "word " * 11 + "word…"
    assert len(shown("x" * 500)) == 60


def test_a_relative_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in it is started from other working directories."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HVDC_CACHE_DIR", "here")
    assert cache_folder("runtimes") == tmp_path / "here" / "runtimes"
    monkeypatch.delenv("HVDC_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "there")
    assert cache_folder("kernels") == tmp_path / "there" / "hvdc" / "kernels"
