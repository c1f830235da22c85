"""`hvdc run --resume`: what is done stays, what is not, or is not as it was written, is made again."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from hvdc.artifact.reader import open_artifact
from hvdc.pipeline import run as run_module
from hvdc.pipeline import run_results
from hvdc.pipeline.run_process import Watched
from hvdc.pipeline.run_results import verified_result
from tests.cli.runs import needs_gpu, ran, run
from tests.commands import started, tree
from tests.device_runtime.runs import children_of, is_running

av = pytest.importorskip("av")
pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.usefixtures("runtime_cache")


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


TWO = ("--mode", "npu", "--prompts-limit", 2)


@pytest.fixture(scope="module")
def two_videos(runnable_artifact: Path, embeds: Path, runtimes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("two") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HVDC_CACHE_DIR", str(runtimes))
        ran(runnable_artifact, embeds, out, *TWO)
    return out


@pytest.fixture
def finished(two_videos: Path, out: Path) -> tuple[object, ...]:
    """A run of two videos that is done, of a test's own; what it was given."""
    shutil.copytree(two_videos, out)
    return TWO


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
    read = run_module.finished_run

    def another(*arguments: Any) -> object:
        found = read(*arguments)
        assert found is not None
        found[1][1] += 1.0
        return found

    monkeypatch.setattr(run_module, "finished_run", another)
    assert decoded("--resume", "--fps", 8) == [False, True]
    assert sorted(path.name for path in out.glob("*.gif")) == ["video-000000.gif"]


def test_figures_that_were_not_heard_are_the_reports(
    runnable_artifact: Path, embeds: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a stop by Ctrl-Z: the runtime does not wait, and what nobody has read in time is lost."""
    take = Watched.take
    given = ("--mode", "npu", "--prompts-limit", 2, "--no-decode")
    with monkeypatch.context() as patch:
        patch.setattr(Watched, "take", lambda self, line: None if '"event": "finished"' in line else take(self, line))
        first = ran(runnable_artifact, embeds, out, *given)
    again = ran(runnable_artifact, embeds, out, *given, "--resume")
    assert [video["npu_s"] for video in again["videos"]] == [video["npu_s"] for video in first["videos"]]
    assert all(video["npu_s"] > 0 for video in again["videos"])


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


def test_what_was_verified_is_not_read_again(
    finished: tuple[object, ...], runnable_artifact: Path, embeds: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two reads a file could become another one; a result is opened and its values are read once."""
    opened: list[str] = []
    plain = run_results.SafetensorsFile

    def counted(path: Path) -> Any:
        opened.append(path.name)
        return plain(path)

    def never(path: Path, *arguments: Any, **more: Any) -> Any:
        assert path.parent.name != "results", f"{path} is opened beside"
        return usual(path, *arguments, **more)

    usual = Path.open
    monkeypatch.setattr(Path, "open", never)
    monkeypatch.setattr(run_results, "SafetensorsFile", counted)
    facts = ran(runnable_artifact, embeds, out, *finished, "--resume")
    assert facts["skipped"] == 2
    assert sorted(opened) == ["video-000000.safetensors", "video-000001.safetensors"]


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
        assert verified_result(path, artifact, key) is not None
        if what == "tensor":
            path.write_bytes(whole[:-4] + b"\0\0\0\0")
        elif what == "gone":
            path.unlink()
        else:
            key[what] = "other"
        assert verified_result(path, artifact, key) is None
        path.write_bytes(whole.replace(b'"recovered":"0"', b'"recovered":"1"'))
        assert verified_result(path, artifact, key) is None


def test_a_damaged_result_is_made_again(runnable_artifact: Path, embeds: Path, out: Path) -> None:
    given = ("--mode", "npu", "--prompts-limit", 2, "--no-decode")
    ran(runnable_artifact, embeds, out, *given)
    path = out / "results" / "video-000001.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-4] + b"\0\0\0\0")
    assert ran(runnable_artifact, embeds, out, *given, "--resume")["finished"] == 1
    assert path.read_bytes() == whole
