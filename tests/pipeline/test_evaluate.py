"""`hvdc evaluate`: what it measures is what an independent run of the paths gives, and wrong requests are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from exporters.checkpoint import open_checkpoint
from exporters.model import TINY
from exporters.prompts import write_prompts
from exporters.schedule import make_schedule
from exporters.synth import write_checkpoint
from hvdc.pipeline.calibration_file import read_calibration
from hvdc.pipeline.sources import CheckpointSource
from quant.calibration.modes import activation_scales
from quant.paths.host import initial_noise
from quant.paths.trajectory import Trajectory, fp32, gpu
from quant.paths.weights import Weights
from tests.commands import hvdc

SMALL = replace(TINY, width=128, heads=1, ffn_width=192)
CLIP = ("--frames", "5", "--height", "64", "--width", "64", "--set", "text_tokens=16", "-q")
LATENT = (2, 8, 8)
TEXTS = ("a red square", "a/blue square")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, prompts, a calibration, an artifact with it, and a decoder."""
    from diffusers import AutoencoderKLWan

    place = tmp_path_factory.mktemp("evaluate")
    write_checkpoint(place / "model.safetensors", SMALL, dtype="bf16")
    rng = np.random.default_rng(0)
    embeds = [rng.standard_normal((16, 64)).astype(np.float32) for _ in TEXTS]
    write_prompts(place / "prompts.safetensors", TEXTS, embeds)
    torch.manual_seed(0)
    AutoencoderKLWan(
        base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    ).save_pretrained(place / "vae")
    common = (place / "model.safetensors", *CLIP)
    for done in (
        hvdc("calibrate", *common, "--prompts", place / "prompts.safetensors", "-o", place / "c.safetensors"),
        hvdc("compile", *common, "--calibration", place / "c.safetensors", "-o", place / "a.hvdc"),
    ):
        assert done.status == 0, done.err
    return place


def evaluated(place: Path, *more: object) -> dict[str, dict]:
    done = hvdc(
        "evaluate", place / "model.safetensors", "--prompts", place / "prompts.safetensors", *CLIP, "--json", *more
    )
    assert done.status == 0, done.err
    return {row["path"]: row for row in done.json()["rows"]}


def test_figures_are_those_of_the_paths_run_by_themselves(place: Path) -> None:
    rows = evaluated(place, "--calibration", place / "c.safetensors", "--prompts-limit", "1", "--seeds", "5")
    calibrated = read_calibration(place / "c.safetensors")
    with open_checkpoint(place / "model.safetensors", text_tokens=16) as checkpoint:
        weights = Weights(CheckpointSource(checkpoint, make_schedule()))
        scales = activation_scales(calibrated.statistics, weights.steps, "per-step")
        from exporters.prompts import read_prompts

        with read_prompts(place / "prompts.safetensors") as prompts:
            embeds = torch.from_numpy(prompts.embeds[0].copy())
        hidden: dict[str, list[torch.Tensor]] = {"fp32": [], "gpu": []}
        latent = {}
        for name, path in (("fp32", fp32(weights)), ("gpu", gpu(weights, scales))):
            run = Trajectory(path, embeds, LATENT)
            seen = hidden[name]
            state = run.run(run.start(initial_noise(5, 16, LATENT)), seen=lambda _, h, seen=seen: seen.append(h))
            latent[name] = run.finish(state)
    row = rows["gpu per-step"]
    due = [
        float(10 * torch.log10(a.square().sum() / (b - a).square().sum()))
        for a, b in zip(*hidden.values(), strict=True)
    ]
    np.testing.assert_allclose(row["sqnr_db"], due, atol=1e-3)
    error = (latent["gpu"] - latent["fp32"]).norm() / latent["fp32"].norm()
    assert row["latent_error"] == pytest.approx(float(error), rel=1e-4)
    assert row["latent_sqnr_db"] == pytest.approx(float(-20 * torch.log10(error)), abs=1e-3)
    assert all(0.9 < cosine <= 1.0 for cosine in row["cosine"])


def test_every_path_mode_cut_and_strength_is_a_row(place: Path) -> None:
    more = ("--scale-mode", "per-step", "--scale-mode", "mse", "--cut", "0,5,12", "--smooth", "0.5")
    more = (*more, "--gpu-share", "0,0.5")
    artifact = ("--artifact", place / "a.hvdc", "--prompts-limit", "1", "--calibration", place / "c.safetensors")
    rows = evaluated(place, *more, *artifact)
    cuts = ("hetero(0)", "hetero(5)", "hetero(12)", "hetero-tensor(0)", "hetero-tensor(0.5)", "gpu")
    labels = ("per-step", "mse", "per-step smooth 0.5", "artifact")
    gpus = {f"{path} {label}" for path in cuts for label in labels}
    assert set(rows) == {"fp32", "npu", "npu smooth 0.5", "npu artifact"} | gpus
    assert rows["fp32"]["latent_error"] is None
    same = ("sqnr_db", "latent_error")
    for a, b in (
        ("hetero(0) per-step", "npu"),
        ("hetero(12) per-step", "gpu per-step"),
        ("hetero-tensor(0) per-step", "npu"),
        ("npu artifact", "npu"),
        ("gpu artifact", "gpu per-step"),
    ):
        assert [rows[a][key] for key in same] == [rows[b][key] for key in same], (a, b)
    assert rows["npu"]["latent_error"] < rows["gpu per-step"]["latent_error"]
    shared = rows["hetero-tensor(0.5) per-step"]
    assert (shared["engine"], shared["gpu_share"], shared["cut"]) == ("hetero-tensor", 0.5, None)
    assert shared["latent_error"] not in (rows["npu"]["latent_error"], rows["gpu per-step"]["latent_error"])
    assert rows["npu smooth 0.5"]["latent_error"] != rows["npu"]["latent_error"]


def test_frames_task_videos_and_figures(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_task.py").write_text(
        "def check(frames, prompt):\n"
        "    return {'mean': float(frames.mean()), 'red': float('red' in prompt), 'frames': frames.shape[0]}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    more = ("--vae", place / "vae", "--task", "my_task", "--plot", tmp_path / "figures")
    rows = evaluated(place, "--calibration", place / "c.safetensors", *more, "--export-videos", tmp_path / "videos")
    assert rows["fp32"]["task"]["red"] == 0.5
    assert rows["npu"]["task"]["frames"] == 5
    assert rows["fp32"]["psnr_db"] is None
    assert rows["npu"]["psnr_db"] > rows["gpu per-step"]["psnr_db"] > 20
    assert 0.5 < rows["gpu per-step"]["ssim"] <= 1
    assert {p.name for p in (tmp_path / "figures").iterdir()} == {"error.png", "absmax.png", "histograms-per-step.png"}
    assert {p.name for p in (tmp_path / "videos").iterdir() if p.is_dir()} == {"fp32", "npu", "gpu_per-step"}
    assert (tmp_path / "videos" / "npu" / "a red square-0.mp4").is_file()
    mapping = json.loads((tmp_path / "videos" / "npu.prompts.json").read_text())
    assert set(mapping.values()) == set(TEXTS)


def test_the_table_names_every_path(place: Path) -> None:
    done = hvdc(
        "evaluate", place / "model.safetensors", "--prompts", place / "prompts.safetensors", *CLIP,
        "--prompts-limit", "1", "--vae", place / "vae",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "npu" in done.out
    assert "PSNR" in done.out
    assert "1 clip of 5 frames 64 × 64" in done.out
    assert "no LPIPS:" in done.out or "LPIPS" in done.out


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        (("--cut", "99", "--calibration", "c.safetensors"), 2, "cut at 99 is impossible"),
        (("--gpu-share", "1.5", "--calibration", "c.safetensors"), 2, "share of 1.5 is impossible"),
        (("--gpu-share", "half", "--calibration", "c.safetensors"), 2, "the shares are not a list"),
        (("--gpu-share", "0.5"), 2, "the GPU's arithmetic needs activation scales"),
        (("--cut", "x"), 2, "cuts are not a list"),
        (("--cut", "3"), 2, "needs activation scales"),
        (("--smooth", "0.5"), 2, "needs activation scales"),
        (("--task", "csv"), 2, "task cannot be loaded"),
        (("--task", "nowhere", "--vae", "vae"), 2, "task cannot be loaded"),
        (("--export-videos", "v"), 2, "no decoder was given"),
        (("--scale-mode", "mse"), 2, "no statistics"),
        (("--smooth", "7", "--calibration", "c.safetensors"), 2, "out of range"),
        (("--plot", "model.safetensors"), 2, "folder for figures"),
        (("--artifact", "a.hvdc", "--set", "timesteps=[1000,900,800]"), 3, "another schedule"),
        (("--vae", "nowhere"), 3, "nowhere"),
        (("--calibration", "prompts.safetensors"), 3, "not a calibration file"),
        (("--artifact", "nowhere.hvdc"), 4, "no such artifact"),
        (("--device", "tpu"), 2, "no such device"),
    ],
)
def test_wrong_requests(
    place: Path, more: tuple[str, ...], status: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    done = hvdc("evaluate", "model.safetensors", "--prompts", "prompts.safetensors", *CLIP, *more)
    assert (done.status, said in done.err) == (status, True), done.err
    assert "unexpected" not in done.err
    assert not (place / "v").exists()


def test_a_model_that_overflows_is_an_error_and_not_a_perfect_score(place: Path, tmp_path: Path) -> None:
    """FP16 overflows where FP32 does not: the NPU's path must not be reported as if it had a figure."""
    from safetensors.torch import load_file, save_file

    state = load_file(place / "model.safetensors")
    name = "blocks.1.attn1.to_v.base_layer.bias"
    state[name] = torch.full_like(state[name], 3e5)
    save_file(state, tmp_path / "large.safetensors")
    done = hvdc("evaluate", tmp_path / "large.safetensors", "--prompts", place / "prompts.safetensors", *CLIP)
    assert done.status == 0, done.err
    assert "NaN or Inf at step 0, block 1" in done.out


def changed(place: Path, folder: Path) -> Path:
    """The same sizes, one other weight."""
    from safetensors.torch import load_file, save_file

    state = load_file(place / "model.safetensors")
    state["blocks.0.attn1.to_q.base_layer.bias"] += 1
    save_file(state, folder / "other.safetensors")
    return folder / "other.safetensors"


@pytest.mark.parametrize("given", [("--calibration", "c.safetensors"), ("--artifact", "a.hvdc")])
def test_scales_and_artifacts_of_other_weights_are_refused(place: Path, tmp_path: Path, given: tuple[str, str]) -> None:
    model = changed(place, tmp_path)
    done = hvdc("evaluate", model, "--prompts", place / "prompts.safetensors", *CLIP, given[0], place / given[1])
    assert done.status == 3, done.out
    assert "belongs to another checkpoint" in done.err


def test_damaged_scales_of_an_artifact_are_refused(place: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(place / "a.hvdc", tmp_path / "a.hvdc"))
    path = copy / "calibration" / "scales.bin"
    data = bytearray(path.read_bytes())
    data[0:4] = np.float32(np.nan).tobytes()
    path.write_bytes(data)
    done = hvdc(
        "evaluate", place / "model.safetensors", "--prompts", place / "prompts.safetensors", *CLIP, "--artifact", copy
    )
    assert done.status == 4, done.out


def test_another_size_is_noted(place: Path) -> None:
    done = hvdc(
        "evaluate", place / "model.safetensors", "--prompts", place / "prompts.safetensors", "--frames", "5",
        "--height", "32", "--width", "64", "--set", "text_tokens=16", "-q", "--prompts-limit", "1",
        "--calibration", place / "c.safetensors", "--artifact", place / "a.hvdc",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "the calibration was run at another size: 5 × 64×64" in done.out
    assert "the artifact is made for another size" in done.out


def test_settings_of_the_configuration_are_the_defaults(place: Path) -> None:
    calibration = ("--calibration", place / "c.safetensors", "--prompts-limit", "1")
    rows = evaluated(place, *calibration, "--set", "scale_mode=percentile", "--set", "percentile=90")
    other = evaluated(place, *calibration, "--set", "scale_mode=percentile")
    assert set(rows) == {"fp32", "npu", "gpu percentile"}
    assert rows["gpu percentile"]["latent_error"] > 1.5 * other["gpu percentile"]["latent_error"]
    smooth = evaluated(place, *calibration, "--set", "smooth=0.5")
    assert smooth["gpu per-step smooth 0.5"]["smooth"] == 0.5
    assert smooth["gpu per-step"]["scale_mode"] == "per-step"


def test_a_task_that_fails_says_on_which_prompt(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad_task.py").write_text("def check(frames, prompt):\n    raise KeyError(prompt)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    done = hvdc(
        "evaluate", place / "model.safetensors", "--prompts", place / "prompts.safetensors", *CLIP,
        "--vae", place / "vae", "--task", "bad_task",
    )  # fmt: skip
    assert done.status == 2
    assert "the task cannot score a clip" in done.err
    assert "a red square" in done.err


def test_a_long_run_on_a_cpu_says_so_first(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdc.pipeline.evaluate.cpu_duration_s", lambda *_: 7200.0)
    done = hvdc(
        "evaluate", place / "model.safetensors", "--prompts", place / "prompts.safetensors", *CLIP,
        "--prompts-limit", "1",
    )  # fmt: skip
    assert done.status == 0
    assert "note: on this CPU it takes 2 h or more" in done.err
