"""What `hvdc run` refuses, and what it says then."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from hvdc.artifact.reader import open_artifact
from hvdc.errors import Exit, HvdcError
from tests.cli.runs import refused, run

pytest.importorskip("av")
pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.usefixtures("runtime_cache")


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
        (("--mode", "npu", "--opencl-device", "x"), "--opencl-device would have no effect"),
        (("--mode", "npu", "--gpu-import", "copy"), "--gpu-import would have no effect"),
        (("--mode", "npu", "--gpu-silence-s", 9), "--gpu-silence-s would have no effect"),
        (("--gpu-silence-s", 0), "this is no length of time"),
        (("--npu-silence-s", "nan"), "this is no length of time"),
        (("--gpu-import", "magic"), "--gpu-import"),
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


@pytest.mark.parametrize("more", [("--cut", 0), ("--mode", "hetero-tensor", "--gpu-share", 0)])
def test_without_work_for_the_gpu_its_scales_are_not_missed(
    tiled_artifact: Path, embeds: Path, out: Path, more: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes next is looked for: the runtime."""

    def found(*_: object) -> None:
        raise HvdcError("no runtime today")

    monkeypatch.setattr("hvdc.pipeline.run.find_runtime", found)
    refused(run(tiled_artifact, embeds, out, *more), out, "no runtime today", 1)


def test_an_output_in_no_folder(runnable_artifact: Path, embeds: Path, tmp_path: Path) -> None:
    done = run(runnable_artifact, embeds, tmp_path / "no" / "out", "--mode", "npu")
    refused(done, tmp_path / "no", "the output's directory does not exist")


def test_what_the_runtime_refuses_is_said_with_its_status(runnable_artifact: Path, embeds: Path, out: Path) -> None:
    done = run(runnable_artifact, embeds, out, "--opencl-device", "no such device", "--cut", 3, "--json")
    assert done.status == Exit.DEVICE
    assert "no such device" in done.json()["error"]["what"]
