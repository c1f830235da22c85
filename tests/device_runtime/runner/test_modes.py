"""`hvdc_runner` in every mode and at every cut: what it computes, and what it says of it. Built with sanitizers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from exporters.prompts import read_prompts
from hvdc.artifact.reader import open_artifact
from hvdc.pipeline.stream_file import StreamVideo
from hvdc.plan.cut import Rates, best_cut
from tests.device_runtime.runner.small import EXECUTIONS, assert_equal, needs_gpu
from tests.device_runtime.runs import (
    Runner,
    stream_of,
    tokens,
)


def test_mode_npu_starts_no_other_process(runner: Runner, on_npu: Path, tmp_path: Path) -> None:
    done = runner.finished(tmp_path / "out", "npu", "--trace", tmp_path / "trace.json")
    assert [v["gpu_blocks"] for v in done.report["videos"]] == [0, 0, 0]
    assert (done.report["gpu_engine_bytes"], done.report["cut_source"]) == (0, "none")
    assert not any(event["event"] == "gpu" for event in done.events)
    assert_equal(tmp_path / "out", on_npu)


def test_different_videos_are_different(on_npu: Path) -> None:
    first, second, third = (tokens(on_npu, video) for video in range(3))
    assert np.abs(first - second).max() > 0.1
    assert np.abs(second - third).max() > 0.1


@needs_gpu
def test_a_cut_at_the_start_is_mode_npu_and_one_at_the_end_mode_gpu(
    runner: Runner, on_npu: Path, on_gpu: Path, tmp_path: Path
) -> None:
    runner.finished(tmp_path / "0", "hetero", "--cut", 0)
    runner.finished(tmp_path / "end", "hetero", "--cut", EXECUTIONS)
    assert_equal(tmp_path / "0", on_npu)
    assert_equal(tmp_path / "end", on_gpu)
    assert np.abs(tokens(on_npu, 0) - tokens(on_gpu, 0)).max() > 0


@needs_gpu
@pytest.mark.parametrize("cut", [1, 2, 5, 6, 11])
def test_a_cut_anywhere(runner: Runner, cut: int, on_npu: Path, on_gpu: Path, tmp_path: Path) -> None:
    """Odd ones are inside a step; 6 is where the experts change."""
    done = runner.finished(tmp_path / "out", "hetero", "--cut", cut)
    assert [v["gpu_blocks"] for v in done.report["videos"]] == [cut] * 3
    assert [(e["video"], e["position"]) for e in done.events if e["event"] == "handoff"] == [(v, cut) for v in range(3)]
    for video in range(3):
        found = tokens(tmp_path / "out", video)
        assert np.isfinite(found).all()
        assert (found != tokens(on_npu, video)).any()
        assert (found != tokens(on_gpu, video)).any()


@needs_gpu
def test_mode_dp_gives_each_video_to_one_engine(runner: Runner, on_npu: Path, on_gpu: Path, tmp_path: Path) -> None:
    done = runner.finished(tmp_path / "out", "dp")
    for video, held in enumerate(done.report["videos"]):
        assert held["gpu_blocks"] in (0, EXECUTIONS)
        assert_equal(tmp_path / "out", on_gpu if held["gpu_blocks"] else on_npu, (video,))


@needs_gpu
def test_the_cut_follows_from_rates_as_python_places_it(runner: Runner, tmp_path: Path) -> None:
    for i, rates in enumerate((Rates(0.3, 0.2, 0.4), Rates(0.01, 5.0, 0.0), Rates(7.0, 0.5, 0.1))):
        given = ("--gpu-block-s", rates.gpu_block_s, "--npu-block-s", rates.npu_block_s, "--decode-s", rates.decode_s)
        done = runner.finished(tmp_path / str(i), "hetero", *given)
        assert done.report["cut"] == best_cut(rates, EXECUTIONS)
        assert done.report["cut_source"] == "rates"
        [event] = [event for event in done.events if event["event"] == "cut"]
        assert event["cut"] == done.report["cut"]


@needs_gpu
def test_without_rates_both_engines_are_timed(runner: Runner, tmp_path: Path) -> None:
    done = runner.finished(tmp_path / "out", "hetero", "--cut", "auto")
    assert done.report["cut_source"] == "measured"
    rates = Rates(**done.report["rates"])
    assert min(rates.gpu_block_s, rates.npu_block_s) > 0
    assert done.report["cut"] == best_cut(rates, EXECUTIONS)
    assert any("are timed, while both work" in event.get("text", "") for event in done.events)


@needs_gpu
def test_a_trace_shows_both_engines(runner: Runner, tmp_path: Path) -> None:
    runner.finished(tmp_path / "out", "hetero", "--cut", 6, "--trace", tmp_path / "trace.json")
    text = (tmp_path / "trace.json").read_text()
    held = json.loads(text)
    spans = [event for event in (held if isinstance(held, list) else held["traceEvents"]) if event.get("ph") == "X"]
    assert len({event["tid"] for event in spans}) >= 4
    assert all(event["dur"] >= 0 for event in spans)


@pytest.mark.parametrize("mode", ["npu", pytest.param("gpu", marks=needs_gpu)])
def test_keys_and_values_of_a_prompt_are_computed_once(runner: Runner, embeds: Path, mode: str, tmp_path: Path) -> None:
    """By each expert, while videos with that prompt follow each other; and they are right."""
    prompts = [1, 1, 0, 0, 1]
    videos = [StreamVideo(prompt, seed) for seed, prompt in enumerate(prompts)]
    stream = stream_of(tmp_path / "stream", runner.artifact, embeds, videos)
    other = Runner(runner.program, runner.artifact, stream, runner.kernels)
    other.finished(tmp_path / "out", mode, "--trace", tmp_path / "trace.json")
    spans = [event for event in json.loads((tmp_path / "trace.json").read_text()) if event.get("ph") == "X"]
    for name in ("project text", "set text"):
        assert [span["args"]["video"] for span in spans if span["name"] == name] == [0, 0, 2, 2, 4, 4]
    for video, prompt in enumerate(prompts):
        alone = tmp_path / str(video)
        stream = stream_of(tmp_path / f"stream-{video}", runner.artifact, embeds, [StreamVideo(prompt, video)])
        Runner(runner.program, runner.artifact, stream, runner.kernels).finished(alone, mode)
        np.testing.assert_array_equal(tokens(tmp_path / "out", video), tokens(alone, 0))


def test_progress_counts_every_block(runner: Runner, tmp_path: Path) -> None:
    done = runner.finished(tmp_path / "out", "npu")
    for video in range(3):
        positions = [e["position"] for e in done.events if e["event"] == "blocks" and e["video"] == video]
        assert positions == list(range(1, EXECUTIONS + 1))
    records = [e["record"] for e in done.events if e["event"] == "finished"]
    assert records == done.report["videos"]


def test_a_person_gets_lines(runner: Runner, tmp_path: Path) -> None:
    command = [str(runner.program), str(runner.artifact), str(runner.stream), "-o", str(tmp_path / "out"), "--mode"]
    done = subprocess.run([*command, "npu"], capture_output=True, text=True, check=True)
    assert "video 2: finished after" in done.stderr
    assert "3 finished, 0 were there, of 3 videos" in done.stdout
    quiet = subprocess.run([*command, "npu", "-q", "--resume"], capture_output=True, text=True, check=True)
    assert quiet.stderr == ""
    assert "0 finished, 3 were there, of 3 videos" in quiet.stdout


def test_inputs_are_those_of_the_stream(runner: Runner, on_npu: Path, embeds: Path, tmp_path: Path) -> None:
    """Another seed, and another prompt, change their video and no other."""
    changed = (StreamVideo(0, 1), StreamVideo(2, 2), StreamVideo(1, 4))
    stream = stream_of(tmp_path / "stream", runner.artifact, embeds, changed)
    other = Runner(runner.program, runner.artifact, stream, runner.kernels)
    other.finished(tmp_path / "out", "npu")
    assert_equal(tmp_path / "out", on_npu, (0,))
    for video in (1, 2):
        assert (tokens(tmp_path / "out", video) != tokens(on_npu, video)).any()
    with open_artifact(runner.artifact) as opened, read_prompts(embeds) as prompts:
        assert opened.manifest.video.tokens == len(tokens(on_npu, 0))
        assert len(prompts) == 3
