"""`hvdc run` and an output folder that something is in: whose it is, and when it is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdc.errors import Exit
from hvdc.pipeline import run as run_module
from hvdc.pipeline.run_entries import move_aside
from hvdc.pipeline.run_process import RunnerError, Watched
from hvdc.pipeline.run_trace import is_trace
from tests.cli.runs import ran, refused, run
from tests.commands import tree

pytest.importorskip("av")
pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.usefixtures("runtime_cache")


def test_an_output_that_is_not_this_runs(runnable_artifact: Path, embeds: Path, out: Path) -> None:
    given = ("--mode", "npu", "--prompts-limit", 1, "--no-decode")
    ran(runnable_artifact, embeds, out, *given)
    before = (out / "results" / "video-000000.safetensors").read_bytes()
    done = run(runnable_artifact, embeds, out, *given)
    assert (done.status, "the output is not empty" in done.err) == (2, True)
    for other in (("--seeds", 1), ("--prompts-limit", 2), ("--npu-sums", "exact")):
        done = run(runnable_artifact, embeds, out, *given, *other, "--resume")
        assert (done.status, "the run that is there is of something else" in done.err) == (2, True)
    assert (out / "results" / "video-000000.safetensors").read_bytes() == before
    facts = ran(runnable_artifact, embeds, out, *given, "--seeds", 1, "--npu-sums", "exact", "--force")
    assert (facts["finished"], facts["npu_sums"]) == (1, "exact")
    assert (out / "results" / "video-000000.safetensors").read_bytes() != before
    state = (out / "run.json").read_bytes()
    (out / "run.json").unlink()
    done = run(runnable_artifact, embeds, out, *given, "--resume")
    assert (done.status, "there is no run to go on with" in done.err) == (2, True)
    (out / "run.json").write_bytes(state[:-20])
    done = run(runnable_artifact, embeds, out, *given, "--resume")
    assert (done.status, "cannot be read" in done.err) == (2, True)
    assert (out / "results" / "video-000000.safetensors").exists()
    (out / "mine.txt").touch()
    for option in ("--force", "--resume"):
        done = run(runnable_artifact, embeds, out, *given, option)
        assert (done.status, "other things in it" in done.err) == (2, True)
    assert (out / "mine.txt").exists()


STRANGE = (
    "video-2024.mp4", "video-000000.mp4.txt", "results/mine.txt", "strips/video-0.png", "stream/notes", "trace.json",
    ".replaced/mine.txt", "results/deep/video-000000.safetensors",
)  # fmt: skip


@pytest.mark.parametrize("name", STRANGE)
def test_nothing_but_a_runs_own_files_is_replaced(name: str, runnable_artifact: Path, embeds: Path, out: Path) -> None:
    given = ("--mode", "npu", "--prompts-limit", 1, "--no-decode")
    ran(runnable_artifact, embeds, out, *given)
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("mine")
    before = tree(out)
    done = run(runnable_artifact, embeds, out, *given, "--force")
    assert done.status == 2
    assert "other things in it" in done.err
    assert name.removesuffix("/video-000000.safetensors") in done.err
    assert tree(out) == before


@pytest.mark.parametrize("state", [None, "{}", '{"run": {"format": 1}}', "[", "[]"])
def test_a_folder_that_no_run_describes_is_not_replaced(
    state: str | None, runnable_artifact: Path, embeds: Path, out: Path
) -> None:
    out.mkdir()
    (out / "video-000001.mp4").write_text("a holiday")
    if state is not None:
        (out / "run.json").write_text(state)
    before = tree(out)
    done = run(runnable_artifact, embeds, out, "--mode", "npu", "--force")
    assert (done.status, "choose another -o, or remove the folder yourself" in done.err) == (2, True)
    assert tree(out) == before


def test_an_old_run_goes_only_when_the_new_one_has_begun(
    runnable_artifact: Path, embeds: Path, out: Path, runtimes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("--mode", "npu", "--prompts-limit", 1, "--no-decode")
    ran(runnable_artifact, embeds, out, *given)
    before = tree(out)
    for more, status in ((("--npu-cpus", "4000"), None), (("--opencl-device", "no such device", "--mode", "gpu"), 5)):
        done = run(runnable_artifact, embeds, out, *given, *more, "--force")
        assert done.status != 0
        assert status in (None, done.status)
        assert tree(out) == before

    def die(self: Watched, line: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Watched, "take", die)
    done = run(runnable_artifact, embeds, out, *given, "--seeds", 1, "--force")
    assert (done.status, "the output is as it was" in done.err) == (130, True)
    assert tree(out) == before
    monkeypatch.undo()
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))
    facts = ran(runnable_artifact, embeds, out, *given, "--seeds", 1, "--npu-sums", "exact", "--force")
    assert (facts["finished"], facts["npu_sums"]) == (1, "exact")
    assert not list(out.glob(".*"))
    assert tree(out)["results/video-000000.safetensors"] != before["results/video-000000.safetensors"]


def test_what_never_began_is_not_to_be_resumed(
    runnable_artifact: Path, embeds: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: object) -> None:
        raise RunnerError("it died", fix="run the same command with --resume: finished videos are kept")

    monkeypatch.setattr(run_module, "run_runner", die)
    done = run(runnable_artifact, embeds, out, "--mode", "npu", "--json")
    assert done.json()["error"]["fix"] == "run the same command again"


def test_a_run_that_never_began_leaves_an_empty_folder(runnable_artifact: Path, embeds: Path, out: Path) -> None:
    assert run(runnable_artifact, embeds, out, "--opencl-device", "no such device", "--cut", 3).status == Exit.DEVICE
    assert list(out.iterdir()) == []
    given = ("--mode", "npu", "--prompts-limit", 1, "--no-decode")
    assert ran(runnable_artifact, embeds, out, *given)["finished"] == 1


@pytest.mark.parametrize("died", ["moving out", "moved out", "new one written", "letting go"])
def test_a_process_that_dies_while_it_replaces_a_run(
    died: str, runnable_artifact: Path, embeds: Path, out: Path
) -> None:
    given = ("--mode", "npu", "--prompts-limit", 1, "--no-decode")
    ran(runnable_artifact, embeds, out, *given)
    before = tree(out)
    if died == "moving out":
        (out / ".replacing").mkdir()
        (out / "run.json").rename(out / ".replacing" / "run.json")
        (out / "results").rename(out / ".replacing" / "results")
    elif died == "letting go":
        (out / ".discarded" / "results").mkdir(parents=True)
        (out / ".discarded" / "results" / "video-000009.safetensors").write_text("x")
    else:
        move_aside(out)
        if died == "new one written":
            (out / "run.json").write_text("{")
            (out / "stream").mkdir()
    assert ran(runnable_artifact, embeds, out, *given, "--resume")["skipped"] == 1
    after = tree(out)
    assert after.pop("run.json")
    del before["run.json"]
    assert after == before


def test_an_output_that_is_a_link(runnable_artifact: Path, embeds: Path, out: Path, tmp_path: Path) -> None:
    given = ("--mode", "npu", "--prompts-limit", 1, "--no-decode")
    out.symlink_to(tmp_path / "elsewhere")
    done = run(runnable_artifact, embeds, out, *given)
    assert (done.status, "a link to nothing" in done.err) == (2, True)
    (tmp_path / "elsewhere").mkdir()
    assert ran(runnable_artifact, embeds, out, *given)["finished"] == 1
    assert (tmp_path / "elsewhere" / "latents.safetensors").exists()


def test_a_trace_replaces_only_a_trace(
    runnable_artifact: Path, embeds: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("--mode", "npu", "--prompts-limit", 1, "--no-decode")
    (tmp_path / "mine.json").write_text("[1]")
    with monkeypatch.context() as patch:
        patch.setattr("hvdc.pipeline.run.find_runtime", None)
        for trace, words in (
            (tmp_path / "mine.json", "not a trace"),
            (tmp_path, "not a trace"),
            (tmp_path / "no" / "trace.json", "the trace's directory does not exist"),
            (runnable_artifact / "trace.json", "inside the artifact"),
            (out / "other.json", "a strange thing in the run's own folder"),
        ):
            refused(run(runnable_artifact, embeds, out, *given, "--trace", trace), out, words)
    assert (tmp_path / "mine.json").read_text() == "[1]"
    for trace in (tmp_path / "trace.json", out / "trace.json"):
        for _ in range(2):
            ran(runnable_artifact, embeds, out, *given, "--trace", trace, "--force")
        assert is_trace(trace)
        assert trace.stat().st_size > 0
