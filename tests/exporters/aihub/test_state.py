"""The file of submitted jobs."""

from __future__ import annotations

import json
from multiprocessing import get_context
from pathlib import Path

import pytest

from exporters.aihub.errors import AiHubError
from exporters.aihub.state import Known, Run, run_key

JOBS = 25


def test_what_is_noted_is_read_by_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state.json"
    run = Run(path, "k", {"graphs": {"a": "sha"}})
    assert run.job("compile a") is None
    assert run.upload("a") == ""
    assert not path.exists(), "nothing to remember yet"
    run.note_job("compile a", Known("hvdc k a"))
    run.note_upload("a", "m1")
    again = Run(path, "k", {})
    assert again.job("compile a") == Known("hvdc k a")
    assert again.upload("a") == "m1"
    run.note_job("compile a", Known("hvdc k a", "j1", "u"))
    assert again.job("compile a") == Known("hvdc k a", "j1", "u")
    assert Run(path, "other", {}).job("compile a") is None
    again.forget_job("compile a")
    again.note_upload("a", "")
    assert (run.job("compile a"), run.upload("a")) == (None, "")
    assert json.loads(path.read_text())["runs"]["k"]["about"] == {"graphs": {"a": "sha"}}
    assert sorted(p.name for p in path.parent.iterdir()) == ["state.json", "state.json.lock"]


def note_many(path: Path, key: str) -> None:
    run = Run(path, key, {})
    for i in range(JOBS):
        run.note_job(f"job {i}", Known("n", f"{key}{i}"))


def test_nothing_that_several_processes_note_at_once_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    started = [get_context("fork").Process(target=note_many, args=(path, key)) for key in "abcd"]
    for one in started:
        one.start()
    for one in started:
        one.join(60)
        assert one.exitcode == 0
    for key in "abcd":
        ids = [Run(path, key, {}).job(f"job {i}") for i in range(JOBS)]
        assert ids == [Known("n", f"{key}{i}") for i in range(JOBS)]


def test_runs_do_not_disturb_each_other(tmp_path: Path) -> None:
    one, two = (Run(tmp_path / "s.json", key, {}) for key in "ab")
    one.note_job("x", Known("n", "j1"))
    two.note_job("x", Known("n", "j2"))
    found = one.job("x")
    assert found is not None
    assert found.job_id == "j1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": 1}',
        '{"version": 2, "runs": {}}',
        '{"version": 1, "runs": {"k": {"jobs": {"x": {}}}}}',
    ],
)
def test_another_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(AiHubError, match="not a file of submitted jobs") as caught:
        Run(path, "k", {})
    assert caught.value.where == str(path)
    assert path.read_text() == text


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AiHubError, match=r"cannot be (read|written)"):
        Run(tmp_path / "file" / "s.json", "k", {}).note_upload("a", "m1")
    with pytest.raises(AiHubError, match="cannot be read"):
        Run(tmp_path, "k", {})


def test_the_key_is_of_the_values() -> None:
    assert run_key({"a": 1, "b": [2]}) == run_key({"b": [2], "a": 1})
    assert run_key({"a": 1}) != run_key({"a": 2})
    assert len(run_key({})) == 64
