"""`hvdc_runner --mode hetero-tensor`: what two processes compute is, to the bit, what one computes; and losses."""

from __future__ import annotations

import json
import os
import random
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from exporters.prompts import read_prompts
from hvdc.pipeline.stream_file import StreamVideo
from quant.paths.host import initial_noise
from tests import calibrations
from tests.device_runtime.blocks import Blocks, weights_of
from tests.device_runtime.gpu import gpu_environment
from tests.device_runtime.runs import Runner, children_of, outcome, stream_of, tokens, wait_for, why_no_gpu

pytestmark = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")

EXECUTIONS, LAYERS = 12, 2
SHARE = 0.6
VIDEOS = tuple(StreamVideo(i % 3, i) for i in range(12))


@dataclass(frozen=True)
class Both:
    """The runner, and the same engines in one process."""

    runner: Runner
    blocks: Blocks
    embeds: Path

    def due(self, video: int, gpu_blocks: int) -> Tensor:
        """Tokens of a video in whose first blocks, whole steps, the GPU had its share."""
        weights, blocks = weights_of(self.runner.artifact), self.blocks
        shape, steps = weights.shape, gpu_blocks // LAYERS
        noise = initial_noise(VIDEOS[video].seed, shape.in_channels, (2, 4, 4))
        with read_prompts(self.embeds) as prompts:
            embeds = blocks.put("embeds", torch.from_numpy(prompts.embeds[VIDEOS[video].prompt]))
        start: list[object] = ["text", 0, embeds, "text", 1, embeds]
        state = ("latent", blocks.put("latent", noise))
        shared = replace(blocks, options=(*blocks.options, "--gpu-share", SHARE))
        for engine, todo in ((shared, range(steps)), (blocks, range(steps, EXECUTIONS // LAYERS))):
            actions = [word for s in todo for word in ("embed", "run", s, 0, LAYERS, "euler", s)]
            engine.run(*start, *state, *actions, "save", "tokens", blocks.folder / "tokens")
            state = ("tokens", blocks.folder / "tokens")
        return torch.tensor(np.fromfile(blocks.folder / "tokens", np.float32))


@pytest.fixture(scope="module")
def both(
    programs: dict[str, Path], watched_checkpoint: Path, calibration: Path, embeds: Path, gpu_caches: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Both:  # fmt: skip
    folder = tmp_path_factory.mktemp("tensor")
    artifact = folder / "small.hvdc"
    done = calibrations.run_compile(watched_checkpoint, artifact, "--calibration", calibration, "-q")
    assert done.status == 0, done.err
    stream, kernels = stream_of(folder / "stream", artifact, embeds, VIDEOS), gpu_caches / "ours"
    kernels.mkdir(exist_ok=True)
    runner = Runner(programs["hvdc_runner"], artifact, stream, kernels)
    options = ("--threads", 2, "--kernel-cache", runner.kernels)
    return Both(runner, Blocks(programs["hvdc_blocks"], artifact, folder, options, gpu_environment(gpu_caches)), embeds)


@pytest.fixture(scope="module")
def whole(both: Both, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("whole") / "out"
    done = both.runner.finished(output, "hetero-tensor", "--gpu-share", SHARE)
    assert {v["gpu_blocks"] for v in done.report["videos"]} == {EXECUTIONS}
    assert (done.report["gpu_share"], done.report["cut_source"]) == (SHARE, "given")
    assert not done.report["gpu_lost"]
    return output


def test_two_processes_compute_what_one_does(both: Both, whole: Path) -> None:
    for video in (0, 1, 2):
        np.testing.assert_array_equal(tokens(whole, video).ravel(), both.due(video, EXECUTIONS).numpy())


def test_the_same_again(both: Both, whole: Path, tmp_path: Path) -> None:
    both.runner.finished(tmp_path / "out", "hetero-tensor", "--gpu-share", SHARE, "--threads", 1)
    for video in range(len(VIDEOS)):
        np.testing.assert_array_equal(tokens(tmp_path / "out", video), tokens(whole, video))


def test_no_share_is_mode_npu(both: Both, whole: Path, tmp_path: Path) -> None:
    """0, and less than half a tile: to the bit, the one without a worker and the other with an idle one."""
    both.runner.finished(tmp_path / "npu", "npu")
    for share, worker in (("0", False), ("0.01", True)):
        done = both.runner.finished(tmp_path / share, "hetero-tensor", "--gpu-share", share)
        assert any(event["event"] == "gpu" for event in done.events) == worker
        assert all(v["gpu_s"] == 0 for v in done.report["videos"])
        for video in (0, 1, 2):
            np.testing.assert_array_equal(tokens(tmp_path / share, video), tokens(tmp_path / "npu", video))
    assert (tokens(whole, 0) != tokens(tmp_path / "npu", 0)).any()


def test_shares_from_rates_and_from_timed_blocks(both: Both, tmp_path: Path) -> None:
    rates = ("--gpu-block-s", 0.03, "--npu-block-s", 0.01)
    done = both.runner.finished(tmp_path / "rates", "hetero-tensor", *rates)
    assert done.report["gpu_share"] == pytest.approx(0.25, rel=1e-12)
    assert done.report["cut_source"] == "rates"
    done = both.runner.finished(tmp_path / "timed", "hetero-tensor")
    gpu_s, npu_s = done.report["rates"]["gpu_block_s"], done.report["rates"]["npu_block_s"]
    assert done.report["gpu_share"] == pytest.approx(npu_s / (gpu_s + npu_s), rel=1e-6)
    assert done.report["cut_source"] == "measured"
    [event] = [event for event in done.events if event["event"] == "cut"]
    assert event["gpu_share"] == done.report["gpu_share"]


def test_results_of_another_share_are_nobodys(both: Both, whole: Path) -> None:
    again = both.runner.finished(whole, "hetero-tensor", "--gpu-share", SHARE, "--resume")
    assert again.report["skipped"] == len(VIDEOS)
    other = both.runner.run(whole, "hetero-tensor", "--gpu-share", SHARE / 2, "--resume")
    assert other.status == 2
    assert "share of the GPU" in other.report["error"]["what"]


def test_so_are_results_of_other_sums(both: Both, whole: Path) -> None:
    given = ("--gpu-share", SHARE, "--npu-sums", "exact", "--resume")
    other = both.runner.run(whole, "hetero-tensor", *given)
    assert other.status == 2
    assert "sums of the NPU" in other.report["error"]["what"]


@pytest.mark.parametrize(
    ("mode", "more", "words"),
    [
        ("npu", ("--gpu-share", 0.5), "a share of the GPU has no effect in mode npu"),
        ("hetero", ("--gpu-share", 0.5), "a share of the GPU has no effect in mode hetero"),
        ("hetero-tensor", ("--cut", 3), "have no effect in mode hetero-tensor"),
        ("hetero-tensor", ("--gpu-block-s", 1, "--npu-block-s", 1, "--decode-s", 1), "have no effect in mode"),
        ("hetero-tensor", ("--gpu-share", 1, "--gpu-block-s", 1, "--npu-block-s", 1), "beside a given --gpu-share"),
        ("hetero-tensor", ("--npu-sums", "some"), "--npu-sums does not take some"),
        ("hetero-tensor", ("--gpu-share", 1.5), "--gpu-share does not take 1.5"),
        ("hetero-tensor", ("--gpu-share", "nan"), "--gpu-share does not take nan"),
        ("hetero-tensor", ("--gpu-block-s", 0, "--npu-block-s", 1), "do not place a share"),
    ],
)
def test_options_that_cannot_be_carried_out(
    both: Both, mode: str, more: tuple[object, ...], words: str, tmp_path: Path
) -> None:
    done = both.runner.run(tmp_path / "out", mode, *more)
    assert done.status == 2, done.said
    assert words in done.said


def test_a_trace_shows_every_linear_on_both_engines(both: Both, tmp_path: Path) -> None:
    """Ten linears in a block of this model, eight of them in each block execution and two for the text."""
    trace = tmp_path / "trace.json"
    done = both.runner.finished(tmp_path / "out", "hetero-tensor", "--gpu-share", SHARE, "--trace", trace)
    spans = [event for event in json.loads(trace.read_text()) if event.get("ph") == "X"]
    first = [event for event in spans if event["args"]["video"] == 0]
    slices, joins = ([e for e in first if e["name"] == name] for name in ("slice", "join"))
    assert len(slices) == len(joins) == 8 * EXECUTIONS + 2 * 2 * LAYERS
    assert {event["cat"] for event in slices} == {"GPU"}
    assert {event["cat"] for event in joins} == {"handoff"}
    assert all(event["dur"] >= 0 for event in spans)
    video = done.report["videos"][0]
    assert 0 < video["waiting_s"] < video["npu_s"]
    assert video["gpu_s"] > 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_worker_killed_anywhere(both: Both, whole: Path, seed: int, tmp_path: Path) -> None:
    """Its video is done again from its last whole step by the NPU alone, and so are the others from the start."""
    more = ("--gpu-share", SHARE)
    with both.runner.started(tmp_path / "out", "hetero-tensor", *more) as child:
        for _ in range(random.Random(seed).randint(1, 90)):
            wait_for(child, "blocks")
        [worker] = children_of(child.pid)
        os.kill(worker, signal.SIGKILL)
        out, err = child.communicate(timeout=100)
    done = outcome(child.returncode, out, err)
    assert done.status == 0, done.said
    assert done.report["finished"] == len(VIDEOS)
    assert done.report["gpu_lost"]
    parts = [v["gpu_blocks"] for v in done.report["videos"]]
    [lost] = [v for v in done.report["videos"] if v["recovered"]]
    assert parts == [EXECUTIONS] * lost["video"] + [lost["gpu_blocks"]] + [0] * (len(VIDEOS) - lost["video"] - 1)
    assert lost["gpu_blocks"] % LAYERS == 0
    for video in range(lost["video"]):
        np.testing.assert_array_equal(tokens(tmp_path / "out", video), tokens(whole, video))
    for video in {lost["video"], len(VIDEOS) - 1}:
        np.testing.assert_array_equal(tokens(tmp_path / "out", video).ravel(), both.due(video, parts[video]).numpy())


def test_a_killed_worker_stops_the_stream_if_asked(both: Both, tmp_path: Path) -> None:
    more = ("--gpu-share", SHARE, "--on-gpu-loss", "stop")
    with both.runner.started(tmp_path / "out", "hetero-tensor", *more) as child:
        wait_for(child, "finished")
        [worker] = children_of(child.pid)
        os.kill(worker, signal.SIGKILL)
        out, err = child.communicate(timeout=100)
    done = outcome(child.returncode, out, err)
    assert done.status == 1
    assert "killed by signal 9" in done.said


@pytest.mark.parametrize("on_stop", ["finish", "abandon"])
def test_a_signal_keeps_what_is_finished(both: Both, whole: Path, on_stop: str, tmp_path: Path) -> None:
    more = ("--gpu-share", SHARE, "--on-stop", on_stop)
    with both.runner.started(tmp_path / "out", "hetero-tensor", *more) as child:
        wait_for(child, "finished")
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=60)
    done = outcome(child.returncode, out, err)
    assert (done.status, done.report["stopped"]) == (130, True)
    assert 0 < done.report["finished"] < len(VIDEOS)
    for video in range(done.report["finished"]):
        np.testing.assert_array_equal(tokens(tmp_path / "out", video), tokens(whole, video))
