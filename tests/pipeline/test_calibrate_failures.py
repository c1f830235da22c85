"""Calibration that cannot succeed: nothing half-made, and what was wrong by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from quant.paths.fp32 import FloatArithmetic
from tests.calibrations import (
    SETTINGS,
    SHAPE,
    SHORT,
    Run,
    run_calibrate,
    write_model,
)
from tests.commands import hvdc, partial
from tests.exporters.models import Values

pytestmark = pytest.mark.usefixtures("known_speed")


def huge(name: str, number: float = 3e38) -> Callable[[Values], object]:
    return lambda model: model[name].fill(number)


def huge_gate(model: Values) -> None:
    model["blocks.0.ffn.net.2.bias"].fill(100)
    model["blocks.0.scale_shift_table"][..., 5, :].fill(3e38)


OVERFLOWS: dict[str, tuple[Callable[[Values], object], str]] = {
    "the first input": (huge("patch_embedding.bias"), "step 0, block 0, attn1.input"),
    "a value": (huge("blocks.1.attn1.to_v.weight"), "step 0, block 1, attn1.to_v.output"),
    "a hidden layer": (huge("blocks.1.ffn.net.0.proj.weight"), "step 0, block 1, ffn.net.0.proj.output"),
    "an output of the first block": (
        huge("blocks.0.ffn.net.2.weight"),
        "step 0, block 0, ffn.net.2.output",
    ),
    "an output of the last block": (huge("blocks.1.ffn.net.2.weight"), "step 0, block 1, ffn.net.2.output"),
    "a gate": (huge_gate, "step 0, block 0, hidden"),
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
