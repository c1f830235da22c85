"""`hvdc calibrate`: what it says, and arguments that cannot be."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from exporters.prompts import read_prompts
from exporters.synth import write_checkpoint
from hvdc.pipeline import cost
from hvdc.pipeline.calibration_file import read_calibration
from tests.calibrations import (
    SETTINGS,
    SHAPE,
    SHORT,
    calibrated,
    run_calibrate,
    stopped_after,
    trajectories_run,
    write_embeds,
    write_model,
)
from tests.commands import hvdc
from tests.exporters.models import Values, one_expert, write

pytestmark = pytest.mark.usefixtures("known_speed")

MEASURED = cost._cpu_flops
"""What `known_speed` takes the place of."""


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "c.safetensors"


def test_what_it_prints(watched_checkpoint: Path, embeds: Path, output: Path) -> None:
    done = run_calibrate(watched_checkpoint, embeds, output, "--seeds", "0:2")
    assert done.status == 0
    lines = done.out.splitlines()
    assert lines[0] == (f"wrote {output}: 21 GEMM inputs of 6 steps and 2 blocks, 6 trajectories of 5 frames 32 × 32")
    assert lines[1] == "GEMM inputs in which one channel stands out most"
    assert re.split(r"\s\s+", lines[2]) == [
        "block", "GEMM input", "step", "channel", "largest", "÷ median channel", "values below 3 bits",
    ]  # fmt: skip
    assert len(lines) == 7, "three of them, and what to do next"
    assert lines[-1] == f"next: hvdc compile … --calibration {output}"
    said = done.err.splitlines()
    assert [line.split()[1] for line in said if line.startswith("calibrating")] == [f"{i}/6" for i in range(1, 7)]
    assert "prompt 3/3, seed 1" in done.err
    assert "72/72 blocks" in done.err
    assert "taken over" not in done.out


def test_the_worst_inputs_are_the_worst(watched_checkpoint: Path, embeds: Path, output: Path) -> None:
    done = run_calibrate(watched_checkpoint, embeds, output)
    statistics = read_calibration(output).statistics
    ratios = {}
    for i in statistics.inputs:
        steps = range(6) if "semantic" in i.experts else range(3, 6)
        for block in range(2):
            rows = statistics.channel_absmax[i.name][list(steps), block]
            ratios[block, i.name] = (rows.max(axis=1) / np.median(rows, axis=1)).max()
    worst = sorted(ratios, key=lambda key: -ratios[key])[:3]
    shown = [line.split() for line in done.out.splitlines()[3:6]]
    assert [(int(row[0]), row[1]) for row in shown] == worst
    assert [float(row[5]) for row in shown] == [pytest.approx(ratios[key], abs=0.06) for key in worst]


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_json(watched_checkpoint: Path, embeds: Path, output: Path) -> None:
    done = run_calibrate(watched_checkpoint, embeds, output, "--json", "--prompts-limit", 2, "--seeds", "7,0")
    assert (done.status, done.err) == (0, "")
    facts = strict(done.out)
    held = read_calibration(output)
    for name, value in held.provenance.model_dump(mode="json", exclude={"format", "version"}).items():
        assert facts[name] == value, name
    assert (facts["output"], facts["prompts"], facts["seeds"]) == (str(output), 2, [7, 0])
    assert (facts["trajectories"], facts["resumed_trajectories"], facts["gemm_inputs"]) == (4, 0, 21)
    assert facts["peak_device_bytes"] is None
    assert list(facts["absmax"]) == [i.name for i in held.statistics.inputs]
    np.testing.assert_array_equal(
        np.stack([np.array(rows, np.float32) for rows in facts["absmax"].values()], axis=-1), held.statistics.absmax
    )
    assert len(facts["outliers"]) == 42
    assert set(facts["outliers"][0]) == {"block", "input", "step", "channel", "absmax", "ratio", "few_bits"}
    ratios = [outlier["ratio"] for outlier in facts["outliers"]]
    assert ratios == sorted(ratios, reverse=True)
    assert all(0 <= outlier["few_bits"] <= 1 for outlier in facts["outliers"])
    assert (facts["large_outputs"], facts["all_zero"]) == ([], [])


def test_quiet(watched_checkpoint: Path, embeds: Path, output: Path) -> None:
    done = run_calibrate(watched_checkpoint, embeds, output, "-q")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("wrote ")


def test_bf16_is_another_calibration(watched_checkpoint: Path, embeds: Path, calibration: Path, output: Path) -> None:
    assert run_calibrate(watched_checkpoint, embeds, output, "--dtype", "bf16").status == 0
    narrow, wide = read_calibration(output), read_calibration(calibration)
    assert narrow.provenance.dtype == "bf16"
    assert narrow.provenance.statistics_sha256 != wide.provenance.statistics_sha256
    np.testing.assert_allclose(narrow.statistics.absmax, wide.statistics.absmax, rtol=0.2)


def test_embeddings_in_another_dtype(watched_checkpoint: Path, output: Path, tmp_path: Path) -> None:
    """Values that both dtypes hold are the same prompts."""
    from exporters.prompts import write_prompts

    rows = [np.full((SHAPE.text_tokens, SHAPE.text_width), 0.5, np.float32)]
    for dtype in ("fp32", "bf16"):
        write_prompts(tmp_path / dtype, ["a"], rows, dtype=dtype)
        calibrated(watched_checkpoint, tmp_path / dtype, tmp_path / f"{dtype}.out", settings=SHORT)
    assert (tmp_path / "fp32.out").read_bytes() == (tmp_path / "bf16.out").read_bytes()


def test_outputs_near_the_end_of_fp16(embeds: Path, output: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", lambda m: m["blocks.1.ffn.net.2.weight"].__imul__(1e5))
    done = run_calibrate(model, embeds, output)
    assert done.status == 0
    assert re.search(
        r"warning: ffn\.net\.2\.output of block 1 reaches [\d,]+ at step \d; the NPU's FP16 ends", done.out
    )
    facts = strict(run_calibrate(model, embeds, output, "--force", "--json").out)
    assert facts["large_outputs"][0]["absmax"] > 65504
    assert {(o["output"], o["engine"]) for o in facts["large_outputs"]} == {("ffn.net.2.output", "NPU")}


def test_a_hidden_state_near_the_end_of_fp16_is_the_gpus(embeds: Path, output: Path, tmp_path: Path) -> None:
    """The GPU keeps it in FP16 between blocks; what the GEMMs read is normalised, so nothing else is large."""
    model = write_model(tmp_path / "model", lambda m: m["patch_embedding.bias"].fill(1e5))
    done = run_calibrate(model, embeds, output)
    assert done.status == 0, done.err
    warnings = [line for line in done.out.splitlines() if line.startswith("warning: ")]
    shown = (
        r"warning: hidden of block \d reaches 100,\d+ at step \d; the FP16 of the GPU's residual stream ends at 65,504"
    )
    assert [bool(re.fullmatch(shown, line)) for line in warnings] == [True, True, True, False]
    assert warnings[3] == "warning: and 9 more above 30,000, of the GPU; --json lists all"
    facts = strict(run_calibrate(model, embeds, output, "--force", "--json").out)
    assert [(o["output"], o["engine"]) for o in facts["large_outputs"]] == [("hidden", "GPU")] * 12


def test_one_of_each(watched_checkpoint: Path, embeds: Path, output: Path) -> None:
    settings = (*SETTINGS, "--set", "timesteps=[900]", "--frames", 1)
    done = run_calibrate(watched_checkpoint, embeds, output, "--prompts-limit", 1, settings=settings)
    assert "21 GEMM inputs of 1 step and 2 blocks, 1 trajectory of 1 frame 32 × 32" in done.out
    output.unlink()
    more = ("--prompts-limit", 2)
    stopped_after(1, lambda: run_calibrate(watched_checkpoint, embeds, output, *more, settings=settings))
    done = run_calibrate(watched_checkpoint, embeds, output, *more, "--resume", settings=settings)
    assert "1 trajectory was taken over from the interrupted run" in done.out


def test_scores_near_the_end_of_fp16_are_a_bound(embeds: Path, output: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", lambda m: m["blocks.0.attn1.norm_q.weight"].__imul__(1e6))
    done = run_calibrate(model, embeds, output)
    assert re.search(r"warning: attn1\.scores_bound of block 0 reaches [\d,]+ \(an upper bound\) at step", done.out)


def silent_values(model: Values) -> None:
    for name in ("to_v.weight", "to_v.bias", "to_v.lora_A.weight"):
        model[f"blocks.1.attn1.{name}"].fill(0)


def test_inputs_that_are_all_zero_get_scale_1(embeds: Path, output: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", silent_values)
    done = run_calibrate(model, embeds, output)
    assert done.status == 0, done.err
    note = "GEMM inputs were all zero and have scale 1; the first is attn1.to_out.0.input of block 1 at step 0"
    assert f"note: 18 {note}" in done.out, "values, their sum and the adapter's hidden in three or six steps"
    facts = strict(run_calibrate(model, embeds, output, "--force", "--json").out)
    assert {o["input"] for o in facts["all_zero"]} == {
        "attn1.value", "attn1.to_out.0.input", "attn1.to_v.lora_hidden", "attn1.to_out.0.lora_hidden",
    }  # fmt: skip
    assert {o["block"] for o in facts["all_zero"]} == {1}
    artifact = tmp_path / "a.hvdc"
    for options in ((), ("--scale-mode", "mse"), ("--scale-mode", "percentile"), ("--smooth", 0.5)):
        given = ("--calibration", output, "-o", artifact, "--force", "-q", *SETTINGS, *options)
        assert hvdc("compile", model, *given).status == 0
        rows = {row["name"]: row["min_max"] for row in hvdc("inspect", artifact, "--scales", "--json").json()}
        assert [top for _, top in rows["attn1.value"]] == [1.0] * 6, options
        assert all(0 < low < 1 for low, _ in rows["attn1.value"])


def test_channels_that_are_mostly_silent(embeds: Path, output: Path, tmp_path: Path) -> None:
    def edit(model: Values) -> None:
        silent_values(model)
        model["blocks.1.attn1.to_v.bias"][3] = 2.0

    model = write_model(tmp_path / "model", edit)
    facts = strict(run_calibrate(model, embeds, output, "--json").out)
    assert facts["outliers"][0]["channel"] == 3
    assert facts["outliers"][0]["ratio"] is None, "infinite, which JSON has no number for"


def test_one_expert(embeds: Path, output: Path, tmp_path: Path) -> None:
    path = tmp_path / "model"
    write_checkpoint(path, one_expert(SHAPE), layout="diffusers", dtype="f32")
    settings = (*SETTINGS[:6], "--set", "text_tokens=6")
    done = run_calibrate(path, embeds, output, "--json", settings=settings)
    assert done.status == 0, done.err
    facts = strict(done.out)
    assert facts["gemm_inputs"] == 13
    assert {step["expert"] for step in facts["steps"]} == {"semantic"}
    artifact = tmp_path / "a.hvdc"
    assert hvdc("compile", path, "--calibration", output, "-o", artifact, "-q", *settings).status == 0
    assert hvdc("validate", "--deep", "--against", path, artifact, "-q").status == 0


@pytest.mark.parametrize(("timesteps", "expert"), [("[1000]", "semantic"), ("[900,800]", "detail")])
def test_a_schedule_of_one_expert(
    timesteps: str, expert: str, watched_checkpoint: Path, embeds: Path, output: Path, tmp_path: Path
) -> None:
    settings = (*SETTINGS, "--set", f"timesteps={timesteps}")
    facts = strict(run_calibrate(watched_checkpoint, embeds, output, "--json", settings=settings).out)
    assert {step["expert"] for step in facts["steps"]} == {expert}
    artifact = tmp_path / "a.hvdc"
    for options in ((), ("--scale-mode", "global"), ("--scale-mode", "mse"), ("--smooth", 0.5)):
        given = ("--calibration", output, "-o", artifact, "--force", "-q", *settings, *options)
        done = hvdc("compile", watched_checkpoint, *given)
        assert done.status == 0, done.err
        assert hvdc("validate", "--deep", artifact, "-q").status == 0


def wrong_embeds(shape: tuple[int, ...], value: float = 0.5) -> Callable[[Path], tuple[object, ...]]:
    return lambda folder: ("--prompts", write(folder / "e", {"prompt_embeds": np.full(shape, value, np.float32)}))


def options(*given: object) -> Callable[[Path], tuple[object, ...]]:
    return lambda folder: given


def at(name: str, make: Callable[[Path], object], option: str = "-o") -> Callable[[Path], tuple[object, ...]]:
    def place(folder: Path) -> tuple[object, ...]:
        make(folder / name)
        return (option, folder / name)

    return place


WRONG: dict[str, tuple[Callable[[Path], tuple[object, ...]], int, str]] = {
    "another width": (wrong_embeds((2, 6, 40)), 3, "another width than the model's text input"),
    "more tokens": (wrong_embeds((2, 7, 32)), 3, "--text-tokens 6"),
    "an axis less": (wrong_embeds((6, 32)), 3, "wrong number of axes"),
    "no prompts in the file": (wrong_embeds((0, 6, 32)), 3, "the file holds no prompts"),
    "NaN in a prompt": (wrong_embeds((2, 6, 32), math.nan), 3, "prompt 0 has an embedding that is not finite"),
    "no file of prompts": (options("--prompts", "nowhere"), 3, "there is no such file"),
    "a limit of 0": (options("--prompts-limit", 0), 2, "--prompts-limit"),
    "a negative limit": (options("--prompts-limit", -1), 2, "--prompts-limit"),
    "an unknown device": (options("--device", "tpu"), 2, "there is no such device"),
    "a device without a number": (options("--device", "cuda:"), 2, "there is no such device"),
    "an unknown dtype": (options("--dtype", "fp16"), 2, "--dtype"),
    "seeds in words": (options("--seeds", "one"), 2, "the seeds are not a list"),
    "no seeds": (options("--seeds", ""), 2, "the seeds are not a list"),
    "an empty range": (options("--seeds", "4:4"), 2, "there must be seeds"),
    "a range of three": (options("--seeds", "0:4:2"), 2, "the seeds are not a list"),
    "a seed twice": (options("--seeds", "1,2,1"), 2, "each once"),
    "a seed twice, in two ways": (options("--seeds", "1,01"), 2, "each once"),
    "a negative seed": (options("--seeds", "-1"), 2, "a seed is out of range"),
    "a negative range": (options("--seeds=-2:2"), 2, "a seed is out of range"),
    "a huge seed": (options("--seeds", 2**63), 2, "a seed is out of range"),
    "a seed of many digits": (options("--seeds", "9" * 5000), 2, "the seeds are not a list"),
    "a huge range": (options("--seeds", "0:99999999999999"), 2, "there are too many seeds"),
    "a fraction": (options("--seeds", "0.5"), 2, "the seeds are not a list"),
    "a missing folder": (options("-o", "nowhere/c.safetensors"), 2, "the output's directory does not exist"),
    "a folder": (at("folder", Path.mkdir), 2, "the output is a directory"),
    "no name": (options("-o", ""), 2, "the output is a directory"),
    "a file that is there": (at("there", lambda p: p.write_text("mine")), 2, "--force"),
    "latents that are there": (at("there", lambda p: p.write_text("mine"), "--save-latents"), 2, "--force"),
    "latents in a missing folder": (options("--save-latents", "nowhere/l"), 2, "directory does not exist"),
    "latents that are a folder": (at("folder", Path.mkdir, "--save-latents"), 2, "the output is a directory"),
    "latents of the same name": (options("-o", "x", "--save-latents", "./x"), 2, "name one file"),
    "frames": (options("--frames", 6), 2, "4 n + 1"),
    "rows": (options("--height", 40), 2, "a multiple of 16"),
    "more columns than positions": (options("--width", 5000), 2, "width"),
    "timesteps": (options("--set", "timesteps=[900,1000]"), 2, "descending"),
    "no checkpoint": (options("--adapter", "nowhere"), 3, "nowhere"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be(
    case: str, watched_checkpoint: Path, embeds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, status, words = WRONG[case]
    monkeypatch.chdir(tmp_path)
    more = make(tmp_path)
    before = sorted(tmp_path.iterdir())
    done, ran = trajectories_run(lambda: run_calibrate(watched_checkpoint, embeds, tmp_path / "c.safetensors", *more))
    assert (done.status, ran) == (status, 0), done.err
    assert words in done.err
    assert sorted(tmp_path.iterdir()) == before
    as_json = run_calibrate(watched_checkpoint, embeds, tmp_path / "c.safetensors", *more, "--json")
    assert strict(as_json.out)["error"]["exit_status"] == status


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_gpu_that_is_not_there(device: str, watched_checkpoint: Path, embeds: Path, output: Path) -> None:
    done = run_calibrate(watched_checkpoint, embeds, output, "--device", device)
    assert (done.status, "PyTorch sees no GPU here" in done.err) == (2, True)
    assert "--device cpu" in done.err


def test_force_replaces(watched_checkpoint: Path, embeds: Path, calibration: Path, output: Path) -> None:
    latents = output.with_name("latents")
    for path in (output, latents):
        path.write_text("old")
    done = run_calibrate(watched_checkpoint, embeds, output, "--save-latents", latents, "--force")
    assert done.status == 0, done.err
    assert output.read_bytes() == calibration.read_bytes()
    assert load_file(latents)["latents"].shape == (3, 16, 2, 4, 4)
    assert np.isfinite(load_file(latents)["latents"]).all()


def test_force_never_replaces_an_input_or_a_device(watched_checkpoint: Path, embeds: Path, tmp_path: Path) -> None:
    model, prompts = (Path(shutil.copy(path, tmp_path)) for path in (watched_checkpoint, embeds))
    link = tmp_path / "link"
    link.symlink_to(prompts)
    os.mkfifo(tmp_path / "pipe")
    for path in (model, prompts, link):
        done = run_calibrate(model, prompts, path, "--force")
        assert (done.status, "the output is one of the inputs" in done.err) == (2, True)
        done = run_calibrate(model, prompts, tmp_path / "c", "--save-latents", path, "--force")
        assert (done.status, "the output is one of the inputs" in done.err) == (2, True)
    done = run_calibrate(model, prompts, tmp_path / "pipe", "--force")
    assert (done.status, "is not a file" in done.err) == (2, True)
    with read_prompts(prompts) as held:
        assert len(held) == 3


def test_a_long_run_is_said_and_a_smaller_clip_proposed(
    watched_checkpoint: Path, embeds: Path, output: Path, calibration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "_cpu_flops", lambda: 1e4)
    done = run_calibrate(watched_checkpoint, embeds, output)
    assert done.status == 0, "nothing is refused, and nothing switches by itself"
    assert re.search(r"note: on this CPU it takes about \d+ h; --device cuda is some hundred times faster", done.err)
    assert "a smaller clip" not in done.err, "there is none"
    assert output.read_bytes() == calibration.read_bytes()
    large = ("--force", "--prompts-limit", 1, "--height", 256, "--width", 256)
    said = run_calibrate(watched_checkpoint, embeds, output, *large)
    assert "compiling with its scales then needs --allow-geometry" in said.err
    proposed = re.search(r"takes about (\d+) h: --frames (\d+) --height (\d+) --width (\d+)", said.err)
    assert proposed is not None
    whole = re.search(r"on this CPU it takes about (\d+) h", said.err)
    assert whole is not None
    assert int(proposed[1]) * 4 <= int(whole[1])
    assert read_calibration(output).provenance.video.height == 256
    assert run_calibrate(watched_checkpoint, embeds, output, "--force", "--json").err == ""


def test_a_short_run_is_not_talked_about(
    watched_checkpoint: Path, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "_cpu_flops", MEASURED)
    done = run_calibrate(watched_checkpoint, write_embeds(tmp_path / "one", count=1), output, settings=SHORT)
    assert "note:" not in done.err
