"""`hvdc run`: prompts become clips."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvdc.artifact.reader import open_artifact
from hvdc.cli.output import Lines, shown
from hvdc.errors import Exit
from hvdc.pipeline import run as run_module
from hvdc.pipeline import run_process
from hvdc.pipeline.cache import cache_folder
from hvdc.pipeline.latents_file import read_latents
from hvdc.pipeline.progress import Silent
from hvdc.pipeline.run_entries import move_aside
from hvdc.pipeline.run_process import RunnerError, Watched, run_runner
from hvdc.pipeline.run_results import is_verified
from hvdc.pipeline.run_trace import is_trace
from hvdc.pipeline.sources import ArtifactSource
from quant.paths.host import to_tokens
from tests.commands import Result, hvdc, started, tree
from tests.device_runtime.runs import children_of, is_running, tokens, why_no_gpu

av = pytest.importorskip("av")
image = pytest.importorskip("PIL.Image")
torch = pytest.importorskip("torch")

needs_gpu = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")
EXECUTIONS = 12


@pytest.fixture(autouse=True)
def _cache(runtimes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def run(artifact: Path, embeds: Path, output: Path, *more: object) -> Result:
    done = hvdc("run", artifact, "--prompts", embeds, "-o", output, *more)
    assert "Traceback" not in done.err
    assert "unexpected" not in done.err
    return done


def ran(artifact: Path, embeds: Path, output: Path, *more: object) -> Any:
    """The facts of a run that succeeds."""
    done = run(artifact, embeds, output, *more, "--json")
    assert done.status == 0, done.err
    return done.json()


def refused(done: Result, output: Path, words: str, status: int = 2) -> None:
    assert done.status == status, done.err
    assert words in done.err
    assert not output.exists()


def test_from_prompts_to_clips(runnable_artifact: Path, embeds: Path, out: Path, tmp_path: Path) -> None:
    done = run(runnable_artifact, embeds, out, "--mode", "npu", "--prompts-limit", 2)
    assert done.status == 0, done.err
    assert re.search(r"^0 +prompt 0 of 0 +0 +0/12 ", done.out, re.MULTILINE)
    assert "the portable build of both executors on this machine's processors; no phone took part" in done.out
    assert sorted(path.name for path in out.iterdir()) == [
        "latents.safetensors", "results", "run.json", "sheet.png", "stream", "strips",
        "video-000000.mp4", "video-000001.mp4",
    ]  # fmt: skip
    with av.open(str(out / "video-000001.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert np.stack(frames).shape == (5, 48, 64, 3)
    with image.open(out / "sheet.png") as sheet:
        assert sheet.size == (5 * 64, 2 * (48 + 16))
    held = read_latents(out / "latents.safetensors")
    assert held.prompts == ("prompt 0 of 0", "prompt 1 of 0")
    with open_artifact(runnable_artifact) as artifact:
        shape = ArtifactSource(artifact).shape
    for video, latent in enumerate(held.values):
        np.testing.assert_array_equal(to_tokens(torch.from_numpy(latent), shape), tokens(out / "results", video))
    clip = tmp_path / "again.gif"
    assert hvdc("decode", runnable_artifact, out / "latents.safetensors", "--clip", 1, "-o", clip, "-q").status == 0


@needs_gpu
def test_both_engines(runnable_artifact: Path, embeds: Path, out: Path, tmp_path: Path) -> None:
    given = ("--cut", 5, "--seeds", "0:2", "--count", 4, "--format", "gif", "--trace", tmp_path / "trace.json")
    facts = ran(runnable_artifact, embeds, out, *given)
    assert (facts["mode"], facts["cut"], facts["cut_source"]) == ("hetero", 5, "given")
    assert [(v["prompt"], v["seed"], v["gpu_blocks"]) for v in facts["videos"]] == [
        ("prompt 0 of 0", 0, 5), ("prompt 1 of 0", 0, 5), ("prompt 2 of 0", 0, 5), ("prompt 0 of 0", 1, 5)
    ]  # fmt: skip
    assert facts["gpu"] != ""
    assert facts["period_s"] > 0
    for video in facts["videos"]:
        assert min(video["gpu_s"], video["npu_s"], video["cpu_s"], video["host_decode_s"]) > 0
        with image.open(video["clip"]) as gif:
            assert gif.n_frames == 5
    assert json.loads((tmp_path / "trace.json").read_text())
    held = json.loads((out / "run.json").read_text())
    assert held["report"]["videos"][3]["gpu_blocks"] == 5


@needs_gpu
def test_the_first_cut_stays(runnable_artifact: Path, embeds: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that are timed again would place another one, and results would not belong together."""
    first = ran(runnable_artifact, embeds, out, "--no-decode")
    assert first["cut_source"] == "measured"
    state = json.loads((out / "run.json").read_text())
    other = (first["cut"] + 3) % EXECUTIONS
    (out / "run.json").write_text(json.dumps(state | {"cut": other}))
    for path in (out / "results").iterdir():
        path.unlink()
    again = ran(runnable_artifact, embeds, out, "--no-decode", "--resume")
    assert (again["cut"], again["cut_source"]) == (other, "measured")
    assert again["videos"][1]["gpu_blocks"] == other


@needs_gpu
def test_linears_shared_by_both_engines(runnable_artifact: Path, embeds: Path, out: Path) -> None:
    """The first share stays, as the first cut does."""
    given = ("--mode", "hetero-tensor", "--no-decode")
    first = ran(runnable_artifact, embeds, out, *given)
    assert (first["mode"], first["cut_source"]) == ("hetero-tensor", "measured")
    assert [v["gpu_blocks"] for v in first["videos"]] == [EXECUTIONS] * 3
    state = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(state | {"gpu_share": 0.75}))
    for path in (out / "results").iterdir():
        path.unlink()
    done = run(runnable_artifact, embeds, out, *given, "--resume")
    assert "0.75 of all columns on the GPU, the best by blocks timed while both engines worked" in done.out


@needs_gpu
def test_a_rate_table_places_the_cut(runnable_artifact: Path, embeds: Path, out: Path, tmp_path: Path) -> None:
    table = (
        'name = "t"\ntarget = "sm8750"\nconditions = "both at work"\nframes = 5\ntokens = {}\nsteps = 6\nlayers = 2\n'
        '[gpu_block_s]\nvalue = 3.0\nsource = "made up for this"\n'
        '[npu_block_s]\nvalue = 1.0\nsource = "made up for this"\n'
        '[decode_s]\nvalue = 4.0\nsource = "made up for this"\n'
    )
    (tmp_path / "rates.toml").write_text(table.format(24))
    facts = ran(runnable_artifact, embeds, out, "--rates", tmp_path / "rates.toml", "--no-decode")
    assert (facts["cut"], facts["cut_source"]) == (4, "rates")
    (tmp_path / "rates.toml").write_text(table.format(20280))
    done = run(runnable_artifact, embeds, tmp_path / "other", "--rates", tmp_path / "rates.toml")
    refused(done, tmp_path / "other", "was measured on another model or clip length")


def test_an_interrupted_run_goes_on(
    runnable_artifact: Path, embeds: Path, out: Path, tmp_path: Path, runtimes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Watched.take

    def stop(self: Watched, line: str) -> None:
        take(self, line)
        if '"event": "finished"' in line:
            raise KeyboardInterrupt

    monkeypatch.setattr(Watched, "take", stop)
    given = ("--mode", "npu", "--seeds", "0:14", "--no-decode")
    done = run(runnable_artifact, embeds, out, *given, "-q")
    assert done.status == 130
    assert "run the same command with --resume to go on" in done.err
    kept = len(list((out / "results").iterdir()))
    assert 0 < kept < 42
    monkeypatch.undo()
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))
    facts = ran(runnable_artifact, embeds, out, *given, "--resume")
    assert facts["skipped"] == kept
    assert facts["finished"] == 42 - kept
    ran(runnable_artifact, embeds, tmp_path / "whole", *given)
    assert (out / "latents.safetensors").read_bytes() == (tmp_path / "whole" / "latents.safetensors").read_bytes()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left(how: signal.Signals, runnable_artifact: Path, embeds: Path, out: Path) -> None:
    given = ("--prompts", embeds, "-o", out, "--mode", "npu", "--seeds", "0:60", "--no-decode")
    with started("run", runnable_artifact, *given) as running:
        running.wait_for("running 1/180")
        [child] = children_of(running.child.pid)
        running.child.send_signal(how)
        done = running.end()
    deadline = time.monotonic() + 30
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(child)
    assert 0 < len(list(out.glob("results/video-*"))) < 180
    if how != signal.SIGKILL:
        assert done.status == 130
        assert "finished videos are kept" in done.err


def test_decoding_goes_on_where_it_stopped(
    runnable_artifact: Path, embeds: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("--mode", "npu", "--prompts-limit", 2)
    assert ran(runnable_artifact, embeds, out, *given)["videos"][1]["host_decode_s"] > 0
    (out / "video-000001.mp4").unlink()
    before = (out / "video-000000.mp4").stat().st_mtime_ns
    facts = ran(runnable_artifact, embeds, out, *given, "--resume")
    assert [v["host_decode_s"] is None for v in facts["videos"]] == [True, False]
    assert (out / "video-000000.mp4").stat().st_mtime_ns == before
    assert (out / "video-000001.mp4").exists()


@pytest.fixture
def finished(runnable_artifact: Path, embeds: Path, out: Path) -> tuple[object, ...]:
    """A run of two videos that is done; what it was given."""
    given = ("--mode", "npu", "--prompts-limit", 2)
    ran(runnable_artifact, embeds, out, *given)
    return given


@pytest.mark.parametrize("what", ["clip", "strip", "no record"])
def test_a_clip_that_is_not_what_was_written_is_made_again(
    what: str, finished: tuple[object, ...], runnable_artifact: Path, embeds: Path, out: Path
) -> None:
    before = tree(out)
    if what == "no record":
        state = json.loads((out / "run.json").read_text())
        del state["clips"]["video-000001.mp4"]
        (out / "run.json").write_text(json.dumps(state))
    else:
        path = out / {"clip": "video-000001.mp4", "strip": "strips/video-000001.png"}[what]
        path.write_bytes(b"junk")
    facts = ran(runnable_artifact, embeds, out, *finished, "--resume")
    assert [v["host_decode_s"] is None for v in facts["videos"]] == [True, False]
    assert {n: d for n, d in tree(out).items() if n != "run.json"} == {
        n: d for n, d in before.items() if n != "run.json"
    }


def test_clips_of_another_rate_format_or_latent_are_made_again(
    finished: tuple[object, ...], runnable_artifact: Path, embeds: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decoded(*more: object) -> list[bool]:
        return [v["host_decode_s"] is not None for v in ran(runnable_artifact, embeds, out, *finished, *more)["videos"]]

    assert decoded("--resume", "--fps", 8) == [True, True]
    assert decoded("--resume", "--fps", 8) == [False, False]
    with av.open(str(out / "video-000000.mp4")) as container:
        assert container.streams.video[0].average_rate == 8
    assert decoded("--resume", "--format", "gif", "--fps", 8) == [True, True]
    assert decoded("--resume", "--fps", 8) == [False, False]
    read = run_module.read_results

    def another(*arguments: object) -> object:
        latents = read(*arguments)  # type: ignore[arg-type]
        latents[1] += 1.0
        return latents

    monkeypatch.setattr(run_module, "read_results", another)
    assert decoded("--resume", "--fps", 8) == [False, True]
    assert sorted(path.name for path in out.glob("*.gif")) == ["video-000000.gif"]


def test_figures_of_a_video_stay_with_it(
    finished: tuple[object, ...], runnable_artifact: Path, embeds: Path, out: Path
) -> None:
    first = json.loads((out / "run.json").read_text())["report"]["videos"]
    (out / "results" / "video-000001.safetensors").unlink()
    facts = ran(runnable_artifact, embeds, out, *finished, "--resume")
    held = json.loads((out / "run.json").read_text())["report"]["videos"]
    assert held[0] == first[0] | {"skipped": True}
    assert held[0]["npu_s"] > 0
    assert (held[1]["skipped"], held[1]["npu_s"] > 0) == (False, True)
    assert [facts["videos"][i]["npu_s"] for i in range(2)] == [v["npu_s"] for v in held]


def test_without_work_for_it_the_runtime_is_not_started(
    finished: tuple[object, ...], runnable_artifact: Path, embeds: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (out / "video-000001.mp4").unlink()
    first = json.loads((out / "run.json").read_text())["report"]
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "run_runner", None)
        facts = ran(runnable_artifact, embeds, out, *finished, "--resume")
        assert (facts["finished"], facts["skipped"], facts["stopped"]) == (0, 2, False)
        assert [v["host_decode_s"] is None for v in facts["videos"]] == [True, False]
        assert [v["npu_s"] for v in facts["videos"]] == [v["npu_s"] for v in first["videos"]]


@needs_gpu
@pytest.mark.parametrize("mode", ["hetero", "gpu", "dp", "hetero-tensor"])
def test_nor_in_any_mode(
    mode: str, runnable_artifact: Path, embeds: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("--mode", mode, "--prompts-limit", 2, "--no-decode")
    first = ran(runnable_artifact, embeds, out, *given)
    monkeypatch.setattr(run_module, "run_runner", None)
    again = ran(runnable_artifact, embeds, out, *given, "--resume")
    same = ("mode", "cut", "cut_source", "gpu_share", "gpu", "weights_bytes")
    assert [again[name] for name in same] == [first[name] for name in same]


@pytest.mark.parametrize("what", ["mode", "input", "video", "tensor", "gone"])
def test_a_result_that_is_not_this_videos_is_left_to_the_runtime(
    what: str, finished: tuple[object, ...], runnable_artifact: Path, embeds: Path, out: Path
) -> None:
    path = out / "results" / "video-000001.safetensors"
    whole = path.read_bytes()
    with open_artifact(runnable_artifact) as artifact:
        key: dict[str, object] = {
            name: json.loads(whole[8 : whole.index(b"}}", 8) + 2])["__metadata__"][name]
            for name in ("mode", "input", "video", "cut")
        }
        key["gpu_share"] = 0.0
        assert is_verified(path, artifact, key)
        if what == "tensor":
            path.write_bytes(whole[:-4] + b"\0\0\0\0")
        elif what == "gone":
            path.unlink()
        else:
            key[what] = "other"
        assert not is_verified(path, artifact, key)
        path.write_bytes(whole.replace(b'"recovered":"0"', b'"recovered":"1"'))
        assert not is_verified(path, artifact, key)


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
    for more, status in ((("--npu-cpus", "4000"), None), (("--device", "no such device", "--mode", "gpu"), 5)):
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
    facts = ran(runnable_artifact, embeds, out, *given, "--seeds", 1, "--force")
    assert facts["finished"] == 1
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
    assert run(runnable_artifact, embeds, out, "--device", "no such device", "--cut", 3).status == Exit.DEVICE
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


def test_an_artifact_without_a_decoder(tiny_artifact: Path, out: Path, tmp_path: Path) -> None:
    from exporters.prompts import write_prompts

    with open_artifact(tiny_artifact) as artifact:
        g = artifact.manifest.geometry
    rows = [np.random.default_rng(0).standard_normal((g.text_tokens, g.text_width)).astype(np.float32)]
    write_prompts(tmp_path / "p.safetensors", ["a cat"], rows)
    done = run(tiny_artifact, tmp_path / "p.safetensors", out, "--mode", "npu")
    assert done.status == 0, done.err
    assert "note: the artifact holds no decoder, so that latents stay latents" in done.out
    assert done.out.endswith(f"wrote {out / 'latents.safetensors'}\n")
    assert not (out / "sheet.png").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--cut", 13), "the cut is beyond the trajectory"),
        (("--cut", "soon"), "this is no place for a cut"),
        (("--mode", "npu", "--cut", 3), "--cut would have no effect"),
        (("--mode", "npu", "--device", "x"), "--device would have no effect"),
        (("--cut", 3, "--rates", "r.toml"), "--rates would have no effect"),
        (("--npu-sums", "some"), "--npu-sums"),
        (("--gpu-share", 0.5), "--gpu-share would have no effect"),
        (("--mode", "hetero-tensor", "--cut", 3), "--cut would have no effect"),
        (("--mode", "hetero-tensor", "--gpu-share", 1.1), "this is no share"),
        (("--mode", "hetero-tensor", "--gpu-share", 1, "--rates", "r.toml"), "--rates would have no effect"),
        (("--rates", "nowhere.toml"), "the rate table cannot be read"),
        (("--no-decode", "--fps", 8), "--fps would have no effect"),
        (("--resume", "--force"), "--resume goes on and --force starts over"),
        (("--count", 4), "there are fewer videos than were asked for"),
        (("--seeds", "many"), "the seeds are not a list"),
        (("--mode", "fast"), "--mode"),
    ],
)
def test_what_is_refused_before_anything_is_built(
    runnable_artifact: Path, embeds: Path, out: Path, more: tuple[object, ...], words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("hvdc.pipeline.run.find_runtime", None)
    refused(run(runnable_artifact, embeds, out, *more), out, words)


def test_files_that_do_not_fit(
    runnable_artifact: Path, tiled_artifact: Path, embeds: Path, out: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("hvdc.pipeline.run.find_runtime", None)
    refused(run(tmp_path / "nowhere", embeds, out), out, "there is no such artifact", 4)
    refused(run(runnable_artifact, tmp_path / "nowhere", out), out, "there is no such file", 3)
    refused(run(tiled_artifact, embeds, out), out, "the artifact has no activation scales")
    monkeypatch.setitem(sys.modules, "av", None)
    refused(run(runnable_artifact, embeds, out), out, "writing videos needs PyAV", 1)


def test_an_output_in_no_folder(runnable_artifact: Path, embeds: Path, tmp_path: Path) -> None:
    done = run(runnable_artifact, embeds, tmp_path / "no" / "out", "--mode", "npu")
    refused(done, tmp_path / "no", "the output's directory does not exist")


def test_what_the_runtime_refuses_is_said_with_its_status(runnable_artifact: Path, embeds: Path, out: Path) -> None:
    done = run(runnable_artifact, embeds, out, "--device", "no such device", "--cut", 3, "--json")
    assert done.status == Exit.DEVICE
    assert "no such device" in done.json()["error"]["what"]


def test_a_damaged_result_is_made_again(runnable_artifact: Path, embeds: Path, out: Path) -> None:
    given = ("--mode", "npu", "--prompts-limit", 2, "--no-decode")
    ran(runnable_artifact, embeds, out, *given)
    path = out / "results" / "video-000001.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-4] + b"\0\0\0\0")
    assert ran(runnable_artifact, embeds, out, *given, "--resume")["finished"] == 1
    assert path.read_bytes() == whole


# --- the process -------------------------------------------------------------------------------------------------


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

    watch, said, cuts = watched()
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
        '{"event": "something new"}',
        '{"event": "gpu-lost", "text": "the GPU is gone"}',
        "no JSON",
        "[1]",
    ):
        watch.take(line)
    assert (said, cuts) == (["weights", "GPU: Adreno", "the GPU is gone"], [(7, 0.0, "measured")])
    assert (progress.done, progress.skipped) == (EXECUTIONS + 2, EXECUTIONS - 2)
    assert progress.finished == ["video 0", "video 1"]
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
    assert " 0/75 blocks  0 blocks/s " in first
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
    assert cache_folder("opencl") == tmp_path / "there" / "hvdc" / "opencl"
