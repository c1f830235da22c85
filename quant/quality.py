"""How far a numeric path is from a reference: along the trajectory, block execution by block execution, and at its
end."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from quant.paths.trajectory import State, Trajectory


def sqnr_db(signal: float, noise: float) -> float:
    """10 · log10(signal / noise) of two sums of squares; inf without noise, nan without either."""
    if noise == 0.0:
        return math.inf if signal else math.nan
    return 10.0 * math.log10(signal / noise) if signal else -math.inf


class NonFinitePathError(ValueError):
    """The reference computed NaN or Inf in block execution ``position``."""

    def __init__(self, position: int) -> None:
        super().__init__(f"NaN or Inf in block execution {position}")
        self.position = position


@dataclass
class Curve:
    """Sums over trajectories, for each block execution: hidden states of a path against the reference's."""

    signal: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    cosine: list[float] = field(default_factory=list)
    """Sum of the cosines."""
    latent_signal: float = 0.0
    latent_noise: float = 0.0
    latent_error: list[float] = field(default_factory=list)
    """‖z − z_ref‖ / ‖z_ref‖ of each trajectory."""
    failed: int | None = None
    """The block execution in which the path first computed NaN or Inf: it is not run any further, on no clip."""

    @property
    def sqnr_db(self) -> list[float]:
        """After each block execution, energies summed over the trajectories."""
        return [sqnr_db(s, n) for s, n in zip(self.signal, self.noise, strict=True)]

    @property
    def mean_cosine(self) -> list[float]:
        """After each block execution."""
        return [total / len(self.latent_error) for total in self.cosine]

    @property
    def latent_sqnr_db(self) -> float:
        """Of the final latents."""
        return sqnr_db(self.latent_signal, self.latent_noise)


def compare(
    reference: Trajectory,
    paths: dict[str, Trajectory],
    noise: Tensor,
    curves: dict[str, Curve],
    advance: Callable[[int], None] = lambda executions: None,
) -> dict[str, Tensor]:
    """Run a reference and other paths side by side on one prompt and noise; add to ``curves``.

    Only one hidden state of each is alive. A path that computes NaN or Inf is marked in its curve and left out, here
    and in later calls. Returns the final latents ``[C, T, H, W]`` by name, the reference's under its own path's name.

    Raises:
        NonFinitePathError: the reference itself is not finite.
    """
    alive = {name: path for name, path in paths.items() if curves.setdefault(name, Curve()).failed is None}
    states = {name: path.start(noise) for name, path in alive.items()}
    mine = reference.start(noise)
    for position in range(reference.executions):
        mine, hidden = _advance(reference, mine)
        if not _finite(hidden, mine):
            raise NonFinitePathError(position)
        for name, path in list(alive.items()):
            states[name], other = _advance(path, states[name])
            if _finite(other, states[name]):
                _add(curves[name], position, hidden, other)
            else:
                curves[name].failed = position
                del alive[name]
        advance(1 + len(paths))
    final = reference.finish(mine)
    out = {reference.path.name: final}
    for name, path in alive.items():
        out[name] = path.finish(states[name])
        signal, error = _energy(final), _energy(out[name] - final)
        curve = curves[name]
        curve.latent_signal += signal
        curve.latent_noise += error
        curve.latent_error.append(math.sqrt(error / signal))
    return out


def _advance(trajectory: Trajectory, state: State) -> tuple[State, Tensor]:
    """One block execution: the state after it, and the hidden state that it ended with."""
    kept: list[Tensor] = []
    state = trajectory.run(state, 1, lambda done, hidden: kept.append(hidden))
    return state, kept[0]


def _finite(hidden: Tensor, state: State) -> bool:
    return bool(hidden.isfinite().all()) and bool(state.latent.isfinite().all())


def _add(curve: Curve, position: int, reference: Tensor, other: Tensor) -> None:
    while len(curve.signal) <= position:
        curve.signal.append(0.0)
        curve.noise.append(0.0)
        curve.cosine.append(0.0)
    a, b = reference.flatten().double(), other.flatten().double()
    signal = float(a @ a)
    curve.signal[position] += signal
    curve.noise[position] += _energy(b - a)
    curve.cosine[position] += float((a @ b) / math.sqrt(signal * float(b @ b))) if signal else math.nan


def _energy(x: Tensor) -> float:
    flat = x.flatten().double()
    return float(torch.dot(flat, flat))
