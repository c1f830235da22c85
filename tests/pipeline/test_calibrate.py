"""Calibration that is stopped, or cannot succeed: nothing half-made, a way to go on, and what was wrong by name."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from hvdc.pipeline import calibrate as stage
from quant.paths.fp32 import FloatArithmetic
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
from tests.commands import ROOT, Result, environment, hvdc, partial, started
from tests.exporters.models import Values

pytestmark = pytest.mark.usefixtures("known_speed")

Run = Callable[..., Result]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "c.safetensors"


@pytest.fixture
def run(watched_checkpoint: Path, embeds: Path, output: Path) -> Run:
    """Calibrate into ``output``."""
    return lambda *more: run_calibrate(watched_checkpoint, embeds, output, *more)


@pytest.fixture(scope="module")
def four_seeds(watched_checkpoint: Path, embeds: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    output = tmp_path_factory.mktemp("four") / "c.safetensors"
    return calibrated(watched_checkpoint, embeds, output, "--seeds", "0:4").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_resume_goes_on(
    number: signal.Signals, watched_checkpoint: Path, embeds: Path, output: Path, four_seeds: bytes
) -> None:
    arguments = ("calibrate", watched_checkpoint, "--prompts", embeds, "-o", output, *SETTINGS, "--seeds", "0:4")
    with started(*arguments) as running:
        running.wait_for("calibrating 2/")
        running.child.send_signal(number)
        done = running.end()
    assert done.status == 130, done.err
    assert "--resume" in done.err
    assert "Traceback" not in done.err
    assert not output.exists()
    assert sorted(p.name for p in partial(output).iterdir()) == ["identity", "part-0000.safetensors"]
    assert 2 <= hvdc(*arguments, "--resume", "--json").json()["resumed_trajectories"] < 12
    assert output.read_bytes() == four_seeds
    assert not partial(output).exists()


def test_finished_trajectories_are_not_run_again(run: Run, calibration: Path, output: Path) -> None:
    stopped_after(2, run)
    assert not output.exists()
    done, ran = trajectories_run(lambda: run("--resume"))
    assert (done.status, ran) == (0, 1)
    assert "2 trajectories were taken over from the interrupted run" in done.out
    assert output.read_bytes() == calibration.read_bytes()
    assert not partial(output).exists()


def test_stopped_again_and_again(run: Run, calibration: Path, output: Path) -> None:
    for count in range(2):
        stopped_after(1, lambda: run("--resume"))
        assert len(list(partial(output).glob("part-*"))) == count + 1
    done, ran = trajectories_run(lambda: run("--resume"))
    assert (done.status, ran) == (0, 1)
    assert output.read_bytes() == calibration.read_bytes()


def test_a_leftover_is_reported(run: Run, output: Path) -> None:
    stopped_after(1, run)
    held = {p.name: p.read_bytes() for p in partial(output).iterdir()}
    for more in ([], ["--force"]):
        done = run(*more)
        assert done.status == 2
        assert "an unfinished calibration of this output is there" in done.err
        assert str(partial(output)) in done.err
        assert "--resume" in done.err
    assert {p.name: p.read_bytes() for p in partial(output).iterdir()} == held


def test_stopped_before_anything_was_finished_nothing_is_left(run: Run, output: Path) -> None:
    stopped_after(0, run)
    assert list(output.parent.iterdir()) == []
    assert run("--resume").status == 0


OTHER_RUNS: dict[str, list[object]] = {
    "seeds": ["--seeds", "1"],
    "more seeds": ["--seeds", "0,1"],
    "fewer prompts": ["--prompts-limit", 2],
    "a smaller clip": ["--frames", 1],
    "a schedule": ["--set", "timesteps=[1000,900]"],
    "a boundary": ["--set", "expert_boundary=950"],
    "a dtype": ["--dtype", "bf16"],
    "latents": ["--save-latents", "latents.safetensors"],
    "an alpha": ["--lora-alpha", 4],
}


@pytest.fixture(scope="module")
def leftover(watched_checkpoint: Path, embeds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("leftover") / "c.safetensors"
    stopped_after(1, lambda: run_calibrate(watched_checkpoint, embeds, output))
    return output


def assert_another(done: Result, leftover: Path) -> None:
    assert done.status == 2, done.err
    assert "the unfinished calibration is of another checkpoint, other prompts or other settings" in done.err
    assert (partial(leftover) / "part-0000.safetensors").is_file()


@pytest.mark.parametrize("case", OTHER_RUNS)
def test_a_leftover_of_another_run_is_refused(
    case: str, watched_checkpoint: Path, embeds: Path, leftover: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(leftover.parent)
    assert_another(run_calibrate(watched_checkpoint, embeds, leftover, "--resume", *OTHER_RUNS[case]), leftover)


def test_a_leftover_of_other_inputs_is_refused(
    watched_checkpoint: Path, embeds: Path, leftover: Path, tmp_path: Path
) -> None:
    prompts = write_embeds(tmp_path / "prompts", seed=1)
    assert_another(run_calibrate(watched_checkpoint, prompts, leftover, "--resume"), leftover)
    model = write_model(tmp_path / "model", seed=1)
    assert_another(run_calibrate(model, embeds, leftover, "--resume"), leftover)


@pytest.mark.parametrize("setting", ["scale_mode=mse", "percentile=99", "smooth=0.5", "target=sm8750"])
def test_what_does_not_change_the_run_does_not_hinder_going_on(setting: str, run: Run, output: Path) -> None:
    stopped_after(2, run)
    assert run("--resume", "--set", setting).status == 0


def test_a_damaged_leftover_is_named(run: Run, calibration: Path, output: Path) -> None:
    stopped_after(1, run)
    part = partial(output) / "part-0000.safetensors"
    for data in (b"", part.read_bytes()[:-100], calibration.read_bytes()):
        part.write_bytes(data)
        done = run("--resume")
        assert done.status == 1
        assert f"where:     {part}" in done.err
        assert "remove that file" in done.err
    part.unlink()
    assert run("--resume").status == 0
    assert output.read_bytes() == calibration.read_bytes()


def test_something_else_in_the_place_of_the_leftover(run: Run, output: Path) -> None:
    partial(output).mkdir()
    (partial(output) / "thesis.txt").write_text("months of work")
    for more in ([], ["--resume"], ["--force"]):
        done = run(*more)
        assert (done.status, "in the way" in done.err) == (2, True)
    assert (partial(output) / "thesis.txt").read_text() == "months of work"
    shutil.rmtree(partial(output))
    partial(output).write_text("mine")
    done = run()
    assert (done.status, partial(output).read_text()) == (1, "mine")


def test_two_at_a_time(run: Run, output: Path) -> None:
    partial(output).mkdir()
    descriptor = os.open(partial(output), os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    for more in ([], ["--resume"], ["--force"]):
        done = run(*more)
        assert (done.status, "another hvdc is writing this output now" in done.err) == (2, True)
    os.close(descriptor)
    assert run().status == 0


def test_latents_are_taken_over_too(run: Run, output: Path) -> None:
    latents = output.with_name("latents.safetensors")
    more = ("--seeds", "3,1", "--save-latents", latents)
    assert run(*more).status == 0
    whole = latents.read_bytes()
    held = load_file(latents)["latents"]
    assert (held.dtype, held.shape) == (np.float32, (6, 16, 2, 4, 4))
    assert len({row.tobytes() for row in held}) == 6
    facts = json.loads(json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])["__metadata__"]["calibration"])
    assert facts["seeds"] == [3, 1] * 3
    assert [text.split()[1] for text in facts["prompts"]] == list("001122")
    first = output.read_bytes()
    output.unlink()
    latents.unlink()
    stopped_after(4, lambda: run(*more))
    assert not latents.exists()
    assert run(*more, "--resume").status == 0
    assert (output.read_bytes(), latents.read_bytes()) == (first, whole)


def test_killed_anywhere_it_goes_on_to_the_same_bytes(watched_checkpoint: Path, embeds: Path, tmp_path: Path) -> None:
    """SIGKILL before each call that changes the file system."""
    whole = calibrated(watched_checkpoint, embeds, tmp_path / "whole", "--prompts-limit", 2, settings=SHORT)
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.killed_calibration", watched_checkpoint, embeds, tmp_path],
        env=environment(OMP_NUM_THREADS="1"), cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rounds = json.loads(done.stdout)
    assert len(rounds) >= 12
    assert [r["status"] for r in rounds] == [0] * len(rounds), rounds
    assert not any(r["left"] for r in rounds), rounds
    assert sum(r["there"] for r in rounds) < 6, "after the rename there is only tidying up"
    assert len(list(tmp_path.glob("*.killed"))) == len(rounds)
    for path in tmp_path.glob("*.killed"):
        assert path.read_bytes() == whole.read_bytes(), path


def test_a_full_disk(mounted: Callable[..., Path], watched_checkpoint: Path, embeds: Path, calibration: Path) -> None:
    disk = mounted(2 << 20)
    output = disk / "c.safetensors"
    done = run_calibrate(watched_checkpoint, embeds, output)
    assert done.status == 1, done.err
    assert "the disk is full" in done.err
    assert "--resume" in done.err
    assert [p.name for p in disk.iterdir()] == ["c.safetensors.partial"]
    assert sorted(p.name for p in partial(output).iterdir()) == ["identity", "part-0000.safetensors"]
    subprocess.run(["mount", "-o", "remount,size=8388608", disk], check=True)
    assert run_calibrate(watched_checkpoint, embeds, output, "--resume").status == 0
    assert output.read_bytes() == calibration.read_bytes()
    output.unlink()
    with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(bytes(1 << 12)):
            pass
    done = run_calibrate(watched_checkpoint, embeds, output)
    assert (done.status, "the disk is full" in done.err) == (1, True)
    assert [p.name for p in disk.iterdir()] == ["filler"]


def test_a_folder_that_is_its_checkpoints(watched_checkpoint: Path, embeds: Path, tmp_path: Path) -> None:
    """What a run writes beside the weights is no change of the checkpoint."""
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(watched_checkpoint, folder / "diffusion_pytorch_model.safetensors")
    output = folder / "calibration"
    stopped_after(1, lambda: run_calibrate(folder, embeds, output))
    assert run_calibrate(folder, embeds, output, "--resume").status == 0


def test_a_checkpoint_that_changes_meanwhile_is_refused(
    watched_checkpoint: Path, embeds: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Path(shutil.copy(watched_checkpoint, output.with_name("model")))
    hashing = stage.tensors_sha256

    def changed(*arguments: Any) -> str:
        os.utime(model, ns=(0, 0))
        return hashing(*arguments)

    monkeypatch.setattr(stage, "tensors_sha256", changed)
    done = run_calibrate(model, embeds, output)
    assert (done.status, "changed while it was calibrated" in done.err) == (3, True)
    assert [p.name for p in output.parent.iterdir()] == ["model"]


def huge(name: str, number: float = 3e38) -> Callable[[Values], object]:
    return lambda model: model[name].fill(number)


OVERFLOWS: dict[str, tuple[Callable[[Values], object], str]] = {
    "the first input": (huge("patch_embedding.bias"), "step 0, block 0, attn1.input"),
    "a value": (huge("blocks.1.attn1.to_v.weight"), "step 0, block 1, attn1.value"),
    "a hidden layer": (huge("blocks.1.ffn.net.0.proj.weight"), "step 0, block 1, ffn.net.2.input"),
    "the text": (huge("condition_embedder.text_embedder.linear_2.weight"), "step 0, block 0, attn2.text"),
    "a norm": (huge("blocks.0.attn2.norm_q.weight"), "step 0, block 0, attn2.query"),
    "scores": (huge("blocks.0.attn2.norm_q.weight", 1e38), "step 0, block 0, attn2.scores_bound"),
    "the detail text": (huge("condition_embedder_lora.text_embedder.linear_2.weight"), "step 3, block 0, attn2.text"),
    "the semantic head": (huge("proj_out.weight"), "step 1, block 0, attn1.input"),
    "the detail head": (huge("proj_out_lora.weight"), "step 4, block 0, attn1.input"),
}


def test_an_overflow_in_an_adapter_is_named(embeds: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", huge("blocks.1.attn1.to_v.lora_A.weight"))
    done = run_calibrate(model, embeds, tmp_path / "c.safetensors")
    assert "step 3, block 1, attn1.to_v.lora_hidden\n" in done.err


@pytest.mark.parametrize("case", OVERFLOWS)
def test_an_overflow_is_named(case: str, embeds: Path, tmp_path: Path) -> None:
    edit, place = OVERFLOWS[case]
    model = write_model(tmp_path / "model", edit)
    done = run_calibrate(model, embeds, tmp_path / "c.safetensors")
    assert done.status == 1, done.err
    assert f"the model computed NaN or Inf: {place}\n" in done.err
    assert "prompt 0, seed 0" in done.err
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_an_overflow_of_the_last_step_is_the_final_latents(embeds: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", huge("proj_out_lora.weight"))
    done = run_calibrate(model, embeds, tmp_path / "c.safetensors", settings=SHORT)
    assert (done.status, "final latent holds NaN or Inf" in done.err) == (1, True), done.err
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_an_overflow_keeps_what_was_finished(watched_checkpoint: Path, tmp_path: Path) -> None:
    rows = [np.full((SHAPE.text_tokens, SHAPE.text_width), value, np.float32) for value in (1.0, 3e38)]
    from exporters.prompts import write_prompts

    write_prompts(tmp_path / "prompts", ["fine", "huge"], rows)
    done = run_calibrate(watched_checkpoint, tmp_path / "prompts", tmp_path / "c.safetensors")
    assert (done.status, "prompt 1, seed 0" in done.err) == (1, True), done.err
    assert not (tmp_path / "c.safetensors").exists()


@pytest.mark.parametrize(
    "name", ["blocks.1.attn1.to_q.weight", "condition_embedder_lora.time_proj.bias", "proj_out.bias"]
)
def test_weights_that_are_not_finite_are_the_checkpoints_fault(name: str, embeds: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", huge(name, np.nan))
    done = run_calibrate(model, embeds, tmp_path / "c.safetensors")
    assert done.status == 3, done.err
    assert name in done.err
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


OUT_OF_MEMORY = {
    "the device": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    "Python": MemoryError(),
    "the CPU": RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory"),
}


@pytest.mark.parametrize("case", OUT_OF_MEMORY)
def test_out_of_memory_names_a_clip_that_would_fit(
    case: str, run: Run, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise OUT_OF_MEMORY[case]

    monkeypatch.setattr(FloatArithmetic, "attention", fails)
    done = run("--height", 480, "--width", 832)
    assert done.status == 1, done.err
    assert "the device's memory is too small for this clip" in done.err
    assert "5 frames of 832 × 480, fp32" in done.err
    assert "this would fit: --frames 17 --height 240 --width 416" in done.err, "49 frames have more tokens than these"
    assert not output.exists()
    assert not partial(output).exists()


def test_other_failures_are_not_called_out_of_memory(
    watched_checkpoint: Path, embeds: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(FloatArithmetic, "attention", fails)
    done = hvdc("calibrate", watched_checkpoint, "--prompts", embeds, "-o", output, *SETTINGS)
    assert (done.status, "a fault of ours" in done.err) == (1, True)
