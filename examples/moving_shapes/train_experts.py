"""Stages ``teacher``, ``semantic`` and ``detail``: a flow-matching model, then its two-expert six-step student.

The student learns by plain regression. The teacher's sampler walks from noise to a clip in fifty small steps
with guidance; kept at the student's seven noise levels, its path tells the mean velocity between each two,
which is what one large step has to output. The detail expert's paths start where the semantic expert really
arrives, not where the teacher would have been.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from examples.moving_shapes.dit import DETAIL, LATENT_SHAPE, SEMANTIC, MovingShapesTransformer, compile_blocks
from examples.moving_shapes.generate import denoise, round_to_fp16
from examples.moving_shapes.loop import Loop, Recipe, log, mixed
from examples.moving_shapes.shapes import null_embedding, prompt_embeddings
from exporters.schedule import DCM_TIMESTEPS, make_schedule

STEPS = make_schedule(DCM_TIMESTEPS)
SIGMAS = (*(step.sigma for step in STEPS), 0.0)
SUBSTEPS = (6, 6, 12, 8, 8, 10)
"""Teacher steps within each of the student's."""
SHIFT = 17.0
"""Of DCM's training grid; spreads the substeps."""
GUIDANCE = 1.0
"""w in v = v_prompt + w · (v_prompt - v_empty)."""

BATCH = 256
NULL_SHARE = 0.1
SEMANTIC_STEPS = (0, 1, 2)
DETAIL_STEPS = (3, 4, 5, 5, 5)
"""Which student step a training sample is of. The last one makes 81 % of the move, so it gets more of them."""


def train_teacher(
    latents: Tensor,
    scenes: Tensor,
    recipe: Recipe,
    start: MovingShapesTransformer | None = None,
    *,
    small: bool = False,
) -> MovingShapesTransformer:
    """Flow matching: from x = (1 - σ) clip + σ noise, predict noise - clip. Goes on from ``start``, if given."""
    device = latents.device
    torch.manual_seed(2)
    generator = torch.Generator(device).manual_seed(3 if start is None else 9)
    model = (start if start is not None else MovingShapesTransformer()).to(device).train()
    if device.type == "cuda":
        compile_blocks(model)
    texts = torch.cat([prompt_embeddings(), null_embedding()[None]]).to(device)
    batch = 4 if small else BATCH

    def uniform() -> Tensor:
        return torch.rand(batch, generator=generator, device=device)

    loop = Loop(model.base_parameters(), recipe)
    while loop.running():
        pick = torch.randint(len(latents), (batch,), generator=generator, device=device)
        clip, row = latents[pick], scenes[pick]
        row = torch.where(uniform() < NULL_SHARE, len(texts) - 1, row)
        # Half of the samples where the six steps are, half where a clip takes shape.
        shift = torch.where(uniform() < 0.5, SHIFT, 4.0)
        u = uniform()
        sigma = shift * u / (1 + (shift - 1) * u)
        noise = torch.randn(clip.shape, generator=generator, device=device)
        x = torch.lerp(clip, noise, sigma.view(-1, 1, 1, 1, 1))
        with mixed(device):
            velocity = model(x, sigma * 1000, texts[row])
        loop.step(functional.mse_loss(velocity.float(), noise - clip))
    loop.finish()
    return model


def substep_sigmas(step: int) -> list[float]:
    """Noise levels of the teacher within one student step, both ends included; even in the shifted grid's u."""
    high, low = SIGMAS[step], SIGMAS[step + 1]
    u_high, u_low = (sigma / (SHIFT - (SHIFT - 1) * sigma) for sigma in (high, low))
    count = SUBSTEPS[step]
    us = [u_high + (u_low - u_high) * i / count for i in range(count + 1)]
    return [high, *(SHIFT * u / (1 + (SHIFT - 1) * u) for u in us[1:-1]), low]


@torch.no_grad()
def teacher_path(teacher: MovingShapesTransformer, x: Tensor, text: Tensor, first_step: int = 0) -> list[Tensor]:
    """The guided teacher's x at the student's noise levels from ``first_step`` on, ``x`` itself first."""
    both = torch.cat([text, null_embedding().to(text).expand_as(text)])
    path = [x]
    for step in range(first_step, len(STEPS)):
        sigmas = substep_sigmas(step)
        for sigma, sigma_next in pairwise(sigmas):
            with mixed(x.device):
                timestep = torch.full((2 * len(x),), sigma * 1000, device=x.device)
                with_prompt, without = teacher(torch.cat([x, x]), timestep, both).float().chunk(2)
            x = x + (with_prompt + GUIDANCE * (with_prompt - without)) * (sigma_next - sigma)
        path.append(x)
    return path


@torch.no_grad()
def paths(
    teacher: MovingShapesTransformer,
    count: int,
    generator: torch.Generator,
    semantic: MovingShapesTransformer | None = None,
    chunk: int = 512,
) -> tuple[Tensor, Tensor]:
    """``(x [count, levels, …] in fp32, prompt rows [count])`` of ``count`` teacher paths from random noise.

    fp32, because the first step moves by 0.8 % of a velocity: rounding x to bf16 would drown it. With
    ``semantic``, that expert makes its three steps first and the paths begin there.
    """
    device = generator.device
    texts = prompt_embeddings().to(device)
    rows = torch.randint(len(texts), (count,), generator=generator, device=device)
    kept = []
    for start in range(0, count, chunk):
        text = texts[rows[start : start + chunk]]
        x = torch.randn(len(text), *LATENT_SHAPE, generator=generator, device=device)
        first = 0
        if semantic is not None:
            first = len(SEMANTIC_STEPS)
            x = denoise(semantic, x, text, steps=slice(first))
        kept.append(torch.stack(teacher_path(teacher, x, text, first), dim=1))
    return torch.cat(kept), rows


def distil(
    model: MovingShapesTransformer,
    data: tuple[Tensor, Tensor],
    steps: Sequence[int],
    recipe: Recipe,
    *,
    small: bool = False,
) -> None:
    """Trains the expert of ``steps`` to make each of them in one; the other expert's parameters stay."""
    x, rows = data
    device = x.device
    generator = torch.Generator(device).manual_seed(5)
    texts = prompt_embeddings().to(device)
    semantic = STEPS[steps[0]].expert == "semantic"
    parameters = model.base_parameters() if semantic else model.detail_parameters()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parameter in parameters:
        parameter.requires_grad_(True)
    expert = SEMANTIC if semantic else DETAIL
    offset = len(STEPS) + 1 - x.shape[1]  # the level that the paths begin at
    choice = torch.tensor(steps, device=device)
    sigmas = torch.tensor(SIGMAS, device=device)
    timesteps = torch.tensor([step.timestep for step in STEPS], device=device)
    loop = Loop(parameters, recipe)
    while loop.running():
        pick = torch.randint(len(x), (4 if small else BATCH,), generator=generator, device=device)
        k = choice[torch.randint(len(choice), pick.shape, generator=generator, device=device)]
        here, there = x[pick, k - offset], x[pick, k - offset + 1]
        target = (there - here) / (sigmas[k + 1] - sigmas[k]).view(-1, 1, 1, 1, 1)
        with mixed(device):
            velocity = model(here, timesteps[k], texts[rows[pick]], expert)
        loop.step(functional.mse_loss(velocity.float(), target))
    loop.finish()


def train_semantic(
    teacher: MovingShapesTransformer, count: int, recipe: Recipe, *, small: bool = False
) -> MovingShapesTransformer:
    """The semantic expert, with fp16 values. It begins as the teacher and sees its own three steps only, so that
    the detail expert has work to do. The detail expert's parts are copies of it, ready to be trained."""
    device = next(teacher.parameters()).device
    generator = torch.Generator(device).manual_seed(4)
    data = paths(teacher, count, generator)
    log(f"  {count} teacher paths")
    model = MovingShapesTransformer().to(device)
    model.load_state_dict(teacher.state_dict())
    if device.type == "cuda":
        compile_blocks(model)
    distil(model, data, SEMANTIC_STEPS, recipe, small=small)
    round_to_fp16(model)
    torch.manual_seed(6)
    model.start_detail_expert()
    return model


def train_detail(
    model: MovingShapesTransformer,
    teacher: MovingShapesTransformer,
    count: int,
    recipe: Recipe,
    *,
    small: bool = False,
) -> MovingShapesTransformer:
    """The whole student, with fp16 values: the semantic expert as given, and the detail expert's parts trained."""
    device = next(teacher.parameters()).device
    generator = torch.Generator(device).manual_seed(7)
    data = paths(teacher, count, generator, semantic=model)
    log(f"  {count} paths from the semantic expert on")
    # Not compiled: with PyTorch 2.11 compiled steps of this stage diverged, though their gradients agreed.
    student = copy.deepcopy(model)
    distil(student, data, DETAIL_STEPS, recipe, small=small)
    round_to_fp16(student)
    return student
