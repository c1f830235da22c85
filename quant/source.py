"""Where the numbers of a model come from: the protocol that a checkpoint and an artifact both satisfy.

The numeric paths and the calibration take any `TensorSource`, so that what is judged can be the checkpoint or
the very bytes that ship.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int8Array = npt.NDArray[np.int8]


class Shape(Protocol):
    """Sizes of a DCM-Wan2.1-shaped model, in channels unless a unit is named."""

    @property
    def layers(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def ffn_width(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def text_width(self) -> int: ...
    @property
    def text_tokens(self) -> int: ...
    @property
    def in_channels(self) -> int: ...
    @property
    def out_channels(self) -> int: ...
    @property
    def patch(self) -> tuple[int, int, int]: ...
    @property
    def cross_attn_norm(self) -> bool: ...
    @property
    def eps(self) -> float: ...
    @property
    def rank(self) -> int: ...
    @property
    def rope_max_positions(self) -> int: ...


class Step(Protocol):
    """One denoising step: ``x += v · step_size`` with v by ``expert``."""

    @property
    def timestep(self) -> float: ...
    @property
    def step_size(self) -> float: ...
    @property
    def expert(self) -> str: ...


class Tables(Protocol):
    """What depends on the schedule alone.

    ``adaln`` float32 [steps, layers, 6, width] (shift, scale, gate of attention, then of the feed-forward),
    ``head`` float32 [steps, 2, width] (shift, scale), ``rope_frequencies`` float64 radians per position, for the
    frame, row and column axis.
    """

    @property
    def adaln(self) -> Float32Array: ...
    @property
    def head(self) -> Float32Array: ...
    @property
    def rope_frequencies(self) -> tuple[Float64Array, Float64Array, Float64Array]: ...


class TensorSource(Protocol):
    """A model's numbers by canonical name. The arrays handed out are not written to."""

    @property
    def shape(self) -> Shape: ...
    @property
    def steps(self) -> Sequence[Step]: ...
    @property
    def tables(self) -> Tables: ...

    def values(self, name: str) -> Float32Array:
        """A tensor in float32. `lora_B` comes multiplied by alpha / rank, as the model applies it.

        From a checkpoint these are its own values; from an artifact a weight is ``q · s``.
        """
        ...

    def quantized(self, name: str) -> tuple[Int8Array, Float32Array]:
        """A weight as ``(q [n, k] INT8, s [n] FP32)``, alpha / rank folded into the scales of `lora_B`."""
        ...
