"""The denoising steps of one video: timesteps, noise levels, step sizes, and the expert of each step.

DCM's sampler is Euler's method on the flow (Vchitect/DCM, fastvideo/distill/solver.py,
`InferencePCMFMScheduler`): with sigma = t / 1000 and the model's velocity v,

    x_next = x + v · (sigma_next - sigma)

and sigma 0 after the last step, which therefore lands on the clean sample. All of it in float32.
The released script has six hand-picked timesteps, and hands over from the semantic to the detail expert
with `int(t) <= 978` (fastvideo/sample/inference_wan.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from exporters.errors import CheckpointError
from exporters.model import EMBEDDER

DCM_TIMESTEPS = (1000.0, 992.0, 982.0, 949.0, 905.0, 810.0)
"""What DCM-Wan2.1 was distilled for: points of its shift-17 training grid, rounded to integers."""

DCM_BOUNDARY = 978
"""Steps with ``int(t) <= 978`` belong to the detail expert. (Training split at 981; inference uses 978.)"""

NUM_TRAIN_TIMESTEPS = 1000


@dataclass(frozen=True)
class Step:
    """One evaluation of the model and the update that follows it.

    ``timestep`` is what the time embedding receives, in (0, num_train_timesteps]. ``sigma``, ``sigma_next``
    and ``step_size`` (negative) are float32 values, held exactly in Python's float.
    """

    index: int
    timestep: float
    sigma: float
    sigma_next: float
    step_size: float
    expert: str


def make_schedule(
    timesteps: Sequence[float] = DCM_TIMESTEPS,
    *,
    boundary: int = DCM_BOUNDARY,
    experts: Sequence[str] = ("semantic", "detail"),
    num_train_timesteps: int = NUM_TRAIN_TIMESTEPS,
) -> tuple[Step, ...]:
    """The steps for ``timesteps``, each routed to its expert: detail if ``int(t) <= boundary``, else semantic.

    ``experts`` are those that the model has; with one, it does every step. Timesteps are used as given:
    they needn't be integers, nor the six of DCM.

    Raises:
        CheckpointError: no timestep; one that is not finite, or outside (0, num_train_timesteps]; an order
            that isn't strictly descending, also after rounding to float32; experts that hvdc doesn't know.
    """
    names = _check_experts(experts)
    times = _check_timesteps(timesteps, num_train_timesteps)
    scale = np.float32(num_train_timesteps)
    sigmas = [np.float32(t) / scale for t in times] + [np.float32(0.0)]
    for t, sigma, t_next, sigma_next in zip(times, sigmas, times[1:], sigmas[1:], strict=False):
        if not sigma_next < sigma:
            raise CheckpointError(
                "two timesteps are too close to be different noise levels in float32",
                where=_WHERE,
                expected="a lower sigma at every step",
                found=f"timesteps {t!r} and {t_next!r} both have sigma {float(sigma)!r}",
                fix="remove one of the two timesteps",
            )
    return tuple(
        Step(
            index=index,
            timestep=t,
            sigma=float(sigmas[index]),
            sigma_next=float(sigmas[index + 1]),
            step_size=float(sigmas[index + 1] - sigmas[index]),
            expert="detail" if "detail" in names and int(t) <= boundary else "semantic",
        )
        for index, t in enumerate(times)
    )


def unused_experts(steps: Iterable[Step], experts: Sequence[str]) -> tuple[str, ...]:
    """The experts of the model that no step runs, in the order of ``experts``: ``()`` when all are used."""
    used = {step.expert for step in steps}
    return tuple(expert for expert in experts if expert not in used)


def unused_expert_notes(
    steps: Iterable[Step], experts: Sequence[str], *, boundary: int = DCM_BOUNDARY
) -> tuple[str, ...]:
    """One sentence for a person for each expert that no step runs."""
    steps = tuple(steps)
    side = {"semantic": f"above {boundary}", "detail": f"at or below {boundary}"}
    shown = ", ".join(f"{step.timestep:g}" for step in steps)
    return tuple(
        f"the {expert} expert is not used: none of the timesteps {shown} is {side[expert]}"
        for expert in unused_experts(steps, experts)
    )


_WHERE = "the list of timesteps"


def _check_experts(experts: Sequence[str]) -> tuple[str, ...]:
    names = tuple(experts)
    if names not in {("semantic",), tuple(EMBEDDER)}:
        raise CheckpointError(
            "this set of experts cannot be scheduled",
            where="the experts of the schedule",
            expected="('semantic',) or ('semantic', 'detail')",
            found=repr(names),
            fix="give the experts of the model's geometry",
        )
    return names


def _check_timesteps(timesteps: Sequence[float], num_train_timesteps: int) -> tuple[float, ...]:
    expected = f"strictly descending numbers in (0, {num_train_timesteps}]"

    def refuse(what: str, found: str, fix: str) -> CheckpointError:
        return CheckpointError(what, where=_WHERE, expected=expected, found=found, fix=fix)

    if num_train_timesteps < 1:
        raise refuse(
            "the number of training timesteps must be positive",
            f"num_train_timesteps = {num_train_timesteps}",
            f"use the model's own number, {NUM_TRAIN_TIMESTEPS} for every Wan model",
        )
    times = tuple(float(t) for t in timesteps)
    if not times:
        dcm = ", ".join(f"{t:g}" for t in DCM_TIMESTEPS)
        raise refuse("the schedule has no steps", "an empty list", f"give at least one timestep; DCM's are {dcm}")
    for index, t in enumerate(times):
        if not math.isfinite(t):
            raise refuse("a timestep is not a number", f"{t!r} at position {index}", "write it as a plain number")
        # The last clause: a positive float64 may round to a float32 zero, which is a step of no noise.
        if not 0.0 < t <= num_train_timesteps or np.float32(t) / np.float32(num_train_timesteps) == 0.0:
            raise refuse(
                "a timestep is out of range",
                f"{t!r} at position {index}",
                "leave out the final 0, which is implied; timesteps count noise, 1000 is pure noise",
            )
        if index and not t < times[index - 1]:
            raise refuse(
                "the timesteps don't descend",
                f"{t!r} after {times[index - 1]!r} at position {index}",
                "sort them from high noise to low, each once",
            )
    return times
