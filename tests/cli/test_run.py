"""`hvdc run`: prompts become clips."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvdc.artifact.reader import open_artifact
from hvdc.pipeline import run as run_module
from hvdc.pipeline.latents_file import read_latents
from hvdc.pipeline.run_process import run_runner
from hvdc.pipeline.sources import ArtifactSource
from quant.paths.host import to_tokens
from tests.cli.runs import EXECUTIONS, needs_gpu, ran, refused, run
from tests.commands import hvdc
from tests.device_runtime.runs import tokens

av = pytest.importorskip("av")
image = pytest.importorskip("PIL.Image")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("runtime_cache")


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
def test_how_the_gpu_reads_weights_and_how_long_engines_may_be_silent(
    runnable_artifact: Path, embeds: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def seen(program: Path, arguments: Sequence[object], *more: Any) -> dict[str, Any]:
        told.extend(map(str, arguments))
        return run_runner(program, arguments, *more)

    monkeypatch.setattr(run_module, "run_runner", seen)
    given = ("--gpu-import", "copy", "--gpu-silence-s", 200, "--npu-silence-s", 150)
    facts = ran(runnable_artifact, embeds, out, "--mode", "gpu", "--no-decode", *given)
    assert facts["gpu_import"] == "copy"
    assert facts["gpu_weights_copied_bytes"] > 0
    assert (told[told.index("--gpu-silence-s") + 1], told[told.index("--npu-silence-s") + 1]) == ("200.0", "150.0")


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
        'name = "t"\ndevice = "none"\ntarget = "sm8750"\nthermal = "cold"\n'
        "frames = 5\ntokens = {}\nsteps = 6\nlayers = 2\n"
        '[gpu.co_run_block_s]\nvalue = 3.0\nsource = "made up for this"\n'
        '[npu.co_run_block_s]\nvalue = 1.0\nsource = "made up for this"\n'
        '[decode.co_run_s]\nvalue = 4.0\nsource = "made up for this"\n'
    )
    (tmp_path / "rates.toml").write_text(table.format(24))
    facts = ran(runnable_artifact, embeds, out, "--rates", tmp_path / "rates.toml", "--no-decode")
    assert (facts["cut"], facts["cut_source"]) == (4, "rates")
    steps = "per_step = [0.1, 0.1, 1.45, 1.45, 1.45, 1.45]"  # the mean is as before
    (tmp_path / "steps.toml").write_text(table.format(24).replace("value = 1.0", steps))
    facts = ran(runnable_artifact, embeds, tmp_path / "steps", "--rates", tmp_path / "steps.toml", "--no-decode")
    assert (facts["cut"], facts["cut_source"]) == (5, "rates")
    (tmp_path / "rates.toml").write_text(table.format(20280))
    done = run(runnable_artifact, embeds, tmp_path / "other", "--rates", tmp_path / "rates.toml")
    refused(done, tmp_path / "other", "was measured on another model or clip length")
