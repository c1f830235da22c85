"""Parts of the training that can be checked without a GPU: noise levels, frozen parameters, saved values."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from examples.moving_shapes.dit import MovingShapesTransformer
from examples.moving_shapes.generate import load_transformer, load_vae, round_to_fp16, save_transformer, save_vae
from examples.moving_shapes.loop import Loop, Recipe
from examples.moving_shapes.scenes import SCENES
from examples.moving_shapes.shapes import random_clips
from examples.moving_shapes.train_experts import (
    DETAIL_STEPS,
    SEMANTIC_STEPS,
    SIGMAS,
    STEPS,
    SUBSTEPS,
    distil,
    substep_sigmas,
)
from examples.moving_shapes.train_vae import LatentVae, random_crop, vae_loss
from examples.moving_shapes.vae import VideoVae


def test_substeps_descend_from_one_step_to_the_next() -> None:
    for step, count in enumerate(SUBSTEPS):
        sigmas = substep_sigmas(step)
        assert len(sigmas) == count + 1
        assert (sigmas[0], sigmas[-1]) == (SIGMAS[step], SIGMAS[step + 1])
        assert all(a > b for a, b in pairwise(sigmas))


def test_each_expert_is_trained_on_its_own_steps() -> None:
    assert {STEPS[k].expert for k in SEMANTIC_STEPS} == {"semantic"}
    assert {STEPS[k].expert for k in DETAIL_STEPS} == {"detail"}
    assert {*SEMANTIC_STEPS, *DETAIL_STEPS} == set(range(len(STEPS)))


@pytest.mark.parametrize(("steps", "levels", "trained"), [(SEMANTIC_STEPS, 7, False), (DETAIL_STEPS, 4, True)])
def test_the_other_expert_is_not_touched(steps: tuple[int, ...], levels: int, trained: bool) -> None:
    model = MovingShapesTransformer()
    model.start_detail_expert()
    before = {n: v.clone() for n, v in model.state_dict().items()}
    data = torch.randn(4, levels, 16, 1, 4, 4), torch.arange(4)
    distil(model, data, steps, Recipe(60.0, 1e-3, max_steps=2, warm_steps=1, ema=0.0), small=True)
    changed = {n for n, v in model.state_dict().items() if not torch.equal(v, before[n])}
    assert changed
    assert {"lora" in n for n in changed} == {trained}


def test_the_loop_ends_after_its_steps_and_learns() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 1)
    loop = Loop(layer.parameters(), Recipe(60.0, 0.05, max_steps=200, warm_steps=1, ema=0.9, weight_decay=0.0))
    losses = []
    while loop.running():
        x = torch.randn(32, 4)
        loss = (layer(x) - x.sum(dim=1, keepdim=True)).square().mean()
        losses.append(loss.item())
        loop.step(loss)
    loop.finish()
    assert loop.steps == 200
    assert losses[-1] < 0.01 * losses[0]


def test_a_loss_that_is_no_number_stops_the_training() -> None:
    layer = torch.nn.Linear(1, 1)
    loop = Loop(layer.parameters(), Recipe(60.0, 0.05, max_steps=1, name="stage"))
    loop.step(layer(torch.tensor([[float("nan")]])).sum())
    with pytest.raises(SystemExit, match="not a number"):
        loop.finish()


def test_saved_files_hold_the_values_trained_on(tmp_path) -> None:
    model, vae = MovingShapesTransformer(), VideoVae()
    round_to_fp16(model)
    round_to_fp16(vae)
    both = LatentVae(vae, torch.linspace(-1, 1, 16).round(decimals=6), torch.linspace(0.5, 2, 16).round(decimals=6))
    save_transformer(tmp_path / "t", model)
    save_vae(tmp_path / "v", both)
    for saved, loaded in ((model, load_transformer(tmp_path / "t")), (both, load_vae(tmp_path / "v"))):
        again = loaded.state_dict()
        assert all(torch.equal(value, again[name]) for name, value in saved.state_dict().items())


def test_crops_lie_around_the_shape() -> None:
    generator = torch.Generator().manual_seed(1)
    frames, covered = random_crop(random_clips(16, generator), generator)
    assert frames.shape == (16, 9, 64, 64, 3)
    assert (covered.flatten(1).mean(dim=1) > 0.02).all()


def test_the_vae_s_loss_reaches_every_parameter() -> None:
    vae = VideoVae()
    generator = torch.Generator().manual_seed(2)
    frames, covered = random_crop(random_clips(1, generator, torch.tensor([len(SCENES) // 2])), generator)
    vae_loss(vae, frames, covered, 1.0).backward()
    assert all(p.grad is not None and p.grad.any() for p in vae.parameters())
