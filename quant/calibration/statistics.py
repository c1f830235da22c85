"""What calibration remembers: it can be merged in any order and grouping with the same result, to the bit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quant.calibration.histogram import BINS
from quant.gemms import GemmInput, gemm_inputs, gemm_outputs
from quant.source import Shape, Step

Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Statistics:
    """Statistics of a set of trajectories.

    - ``channel_absmax``: GEMM input -> float32 ``[steps, layers, channels]``, the largest magnitude of each channel;
    - ``histogram``: int64 ``[steps, layers, inputs, bins]`` (`quant.calibration.histogram`), of a sample of the tokens;
    - ``output_absmax``: float32 ``[steps, layers, outputs]``, of the GEMMs' outputs and the hidden state.

    Zeros where an input does not exist. An input that is the expert's has the same numbers in all its steps.
    """

    inputs: tuple[GemmInput, ...]
    outputs: tuple[str, ...]
    channel_absmax: Mapping[str, Float32Array]
    histogram: Int64Array
    output_absmax: Float32Array

    @property
    def absmax(self) -> Float32Array:
        """float32 ``[steps, layers, inputs]``."""
        return np.stack([self.channel_absmax[i.name].max(axis=-1) for i in self.inputs], axis=-1)

    def merged(self, other: Statistics) -> Statistics:
        """Of both sets of trajectories: maxima and sums."""
        return Statistics(
            self.inputs,
            self.outputs,
            {name: np.maximum(a, other.channel_absmax[name]) for name, a in self.channel_absmax.items()},
            self.histogram + other.histogram,
            np.maximum(self.output_absmax, other.output_absmax),
        )

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """By name, as a file holds them."""
        channels = {f"channel_absmax.{name}": a for name, a in self.channel_absmax.items()}
        return {**channels, "histogram": self.histogram, "output_absmax": self.output_absmax}

    def sha256(self) -> str:
        """Identity of the numbers."""
        digest = hashlib.sha256()
        for name, array in sorted(self.arrays().items()):
            digest.update(f"{name} {array.shape} {array.dtype}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def empty(shape: Shape, steps: int) -> Statistics:
    """Of no trajectory: what merging begins with."""
    inputs, outputs = gemm_inputs(shape), gemm_outputs(shape)
    return Statistics(
        inputs,
        outputs,
        {i.name: np.zeros((steps, shape.layers, i.channels), np.float32) for i in inputs},
        np.zeros((steps, shape.layers, len(inputs), BINS), np.int64),
        np.zeros((steps, shape.layers, len(outputs)), np.float32),
    )


def from_arrays(shape: Shape, steps: int, arrays: Mapping[str, npt.NDArray[np.generic]]) -> Statistics:
    """The inverse of `Statistics.arrays`. Raises ValueError for arrays that are not this model's."""
    due = empty(shape, steps)
    for name, array in due.arrays().items():
        found = arrays.get(name)
        if found is None or found.shape != array.shape or found.dtype != array.dtype:
            held = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
            raise ValueError(f"{name}: {array.dtype} {list(array.shape)} expected, {held} found")
    channels = {i.name: np.asarray(arrays[f"channel_absmax.{i.name}"], np.float32) for i in due.inputs}
    histogram = np.asarray(arrays["histogram"], np.int64)
    return Statistics(due.inputs, due.outputs, channels, histogram, np.asarray(arrays["output_absmax"], np.float32))


def exists(inputs: tuple[GemmInput, ...], steps: tuple[Step, ...]) -> npt.NDArray[np.bool_]:
    """``[steps, inputs]``: which GEMM inputs there are in which steps."""
    return np.array([[step.expert in i.experts for i in inputs] for step in steps], np.bool_)
