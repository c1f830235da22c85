"""One training loop for every stage: optimiser, schedule, moving average, and an end set by time.

A lent or rented GPU is paid by the minute, and its speed isn't known beforehand. So a loop is given seconds, not
steps: the learning rate follows the share of them that has passed. Seeds fix the data and the start; the number
of steps, and with it the result, depends on the machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


def log(*words: object) -> None:
    print(*words, flush=True)


def mixed(device: torch.device) -> AbstractContextManager[object]:
    """bf16 autocast on a GPU, fp32 elsewhere."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


@dataclass(frozen=True)
class Recipe:
    """How long, and with which optimiser settings."""

    seconds: float
    lr: float
    max_steps: int = 10**9
    warm_steps: int = 100
    floor: float = 0.02
    """The learning rate's end, as a share of ``lr``."""
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.01
    ema: float = 0.998
    name: str = ""


class Loop:
    """Use: ``while loop.running(): loop.step(loss)``, then ``loop.finish()`` leaves the averaged parameters."""

    UNTIMED_STEPS = 3
    """Compiling and kernel selection happen in the first steps and shouldn't eat the time for training."""

    def __init__(self, parameters: Iterable[nn.Parameter], recipe: Recipe) -> None:
        self.recipe = recipe
        self.parameters = list(parameters)
        device = self.parameters[0].device
        self.cuda = device.type == "cuda"
        self.optimiser = torch.optim.AdamW(
            self.parameters, lr=recipe.lr, betas=recipe.betas, weight_decay=recipe.weight_decay, fused=self.cuda
        )
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        self.steps = 0
        self._recent = torch.zeros((), device=device)
        self._recent_steps = 0
        self._made = self._clock = time.monotonic()

    @property
    def progress(self) -> float:
        passed = time.monotonic() - self._clock if self.steps >= self.UNTIMED_STEPS else 0.0
        return max(passed / max(self.recipe.seconds, 1e-9), self.steps / self.recipe.max_steps)

    def running(self) -> bool:
        return self.progress < 1.0 or self.steps == 0

    def step(self, loss: Tensor) -> None:
        recipe = self.recipe
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        cosine = 0.5 + 0.5 * math.cos(math.pi * min(self.progress, 1.0))
        warm = min(1.0, (self.steps + 1) / max(1, recipe.warm_steps))
        for group in self.optimiser.param_groups:
            group["lr"] = recipe.lr * warm * (recipe.floor + (1 - recipe.floor) * cosine)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        keep = min(recipe.ema, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - keep)
        self._recent += loss.detach()
        self._recent_steps += 1
        self.steps += 1
        if self.steps == self.UNTIMED_STEPS:
            if self.cuda:
                torch.cuda.synchronize()
            self._clock = time.monotonic()
            log(f"  {recipe.name}: first {self.steps} steps took {self._clock - self._made:.1f} s")
        if self.steps % 250 == 0:
            self._report()

    def _report(self) -> None:
        loss = float(self._recent) / max(1, self._recent_steps)
        self._recent.zero_()
        self._recent_steps = 0
        if not math.isfinite(loss):
            raise SystemExit(f"{self.recipe.name}: the loss is not a number after {self.steps} steps")
        log(f"  {self.recipe.name}: step {self.steps}, {100 * self.progress:.0f} %, loss {loss:.4f}")

    def finish(self) -> None:
        if self._recent_steps:
            self._report()
        with torch.no_grad():
            for parameter, average in zip(self.parameters, self.average, strict=True):
                parameter.copy_(average)
        log(f"  {self.recipe.name}: {self.steps} steps in {time.monotonic() - self._made:.1f} s")
