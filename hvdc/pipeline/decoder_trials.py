"""A decoder's graphs on another machine: what they are given, and how far from the exact reference they may be.

The same trials and the same bounds hold for the emulator and for a phone.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from exporters.qnn.emulate import compare, run_reference
from exporters.qnn.options import GIB, Limits
from hvdc.pipeline.decoder_encodings import Float32Array
from quant.decoder.encodings import Encoding, shares
from quant.decoder.graph import CACHE, FRAMES, LATENT, NEXT_CACHE, VARIANTS, Graphs
from quant.decoder.ports import Port, named, ports
from quant.decoder.qdq import serialised
from quant.frames import psnr_db

Codes = npt.NDArray[np.generic]

REFERENCE_LIMITS = Limits(seconds=2 * 3600, memory_bytes=32 * GIB)
"""Of the exact reference of one graph: it keeps whole feature maps in float32, and takes minutes in full size."""

OPERATOR_LSB = 2
"""Steps that a single operator may be off by, at most."""
CLIPPED_SHARE, HALVINGS = 0.1, 6
"""Share of an operator's outputs that may be clipped in a trial, and how often its first operand is halved for that."""
OPERATOR_SHARE = 0.5
"""Share of an operator's outputs that may be off by a step or more."""
GRAPH_LSB = 2.0
"""8-bit steps that any output of a whole graph may be off by, in the mean: errors of some hundred operators add up.
Single values may be far off: where a picture is black, a norm divides nearly nothing by nearly nothing."""
FRAMES_PSNR_DB = 40.0
"""Least PSNR of a whole graph's frames: 2.5 of 255 steps, as a root mean square, in which few values that are far off
count as they are seen. Measured: 52 and 54 dB of the example; 43 to 55 of random weights with 16 bits; 33 to 39 of
random weights with 8 bits, which amplify every rounding and are out of `GRAPH_LSB` too."""


@dataclass(frozen=True)
class Emulated:
    """One output on another machine against the exact reference, in 8-bit steps: of 16-bit outputs, 256 of their own.

    ``bound`` is on ``max_lsb`` for an operator, on ``mean_lsb`` for a graph; `bounds` has all that was asked of it.
    ``psnr_db``: of frames, as pictures of [0, 1]; infinite where they are equal. ``share``: of an operator's values,
    how many are off by a step or more.
    """

    what: str
    output: str
    max_lsb: float
    mean_lsb: float
    bound: float
    passed: bool
    psnr_db: float | None = None
    share: float | None = None

    @property
    def is_operator(self) -> bool:
        """Whether it is of a single operator, not of a graph."""
        return self.what.startswith("operator ")

    @property
    def bounds(self) -> dict[str, float]:
        """By the field that it is on: the least PSNR, the most of all others."""
        if self.is_operator:
            return {"max_lsb": self.bound, "share": OPERATOR_SHARE}
        return {"mean_lsb": self.bound} | ({} if self.psnr_db is None else {"psnr_db": FRAMES_PSNR_DB})

    def to_json(self) -> dict[str, Any]:
        """As plain values; JSON has no infinity: ``"inf"`` stands for it."""
        psnr = self.psnr_db if self.psnr_db is None or math.isfinite(self.psnr_db) else str(self.psnr_db)
        return {**asdict(self), "psnr_db": psnr, "bounds": self.bounds}

    def in_words(self) -> tuple[str, str]:
        """What was asked of it, and what was found."""
        expected = f"at most {self.bound:g} steps" + ("" if self.is_operator else " in the mean")
        found = f"{self.max_lsb:.2f} at most, {self.mean_lsb:.3f} in the mean"
        if self.share is not None:
            expected += f", {OPERATOR_SHARE:.0%} of the values by one or more"
            found += f", {self.share:.0%} of the values by one or more"
        if self.psnr_db is not None:
            expected += f", {FRAMES_PSNR_DB:g} dB or more"
            found += f", {self.psnr_db:.1f} dB"
        return expected, found


@dataclass(frozen=True)
class Trial:
    """A graph, what it is given, and what the exact reference makes of it."""

    what: str
    model: onnx.ModelProto
    inputs: dict[str, Codes]
    due: dict[str, Codes]


def graph_trials(graphs: Graphs, probe: Float32Array, limits: Limits = REFERENCE_LIMITS) -> Iterator[Trial]:
    """Every graph in the order in which they run, on ``probe``, float32 ``[z, 2, rows, columns]``.

    Its frame 0 goes through `first`, its frame 1 through `later` with the caches that the reference of `first` wrote:
    no graph's errors are another's. Its first rows and columns are taken; where the tile has more, its edges go on.

    Raises:
        QnnError: the probe has other channels or fewer frames, or the reference cannot be computed.
    """
    values: dict[str, Codes] = {}
    for t, variant in enumerate(VARIANTS):
        latent = named(ports(graphs.models(variant)[0])[0], LATENT)
        rows, columns = latent.shape[3:]
        cut = probe[None, :, t : t + 1, :rows, :columns]
        more = [(0, rows - cut.shape[3]), (0, columns - cut.shape[4])]
        values[LATENT] = latent.encoding.quantise(np.pad(cut, [(0, 0)] * 3 + more, mode="edge"))
        for model in graphs.models(variant):
            inputs = {port.name: values[port.name] for port in ports(model)[0]}
            trial = _trial(f"graph {model.graph.name}", model, inputs, limits)
            values |= trial.due
            yield trial
        values |= {CACHE + n.removeprefix(NEXT_CACHE): v for n, v in values.items() if n.startswith(NEXT_CACHE)}


def operator_trials(operators: Mapping[str, onnx.ModelProto]) -> Iterator[Trial]:
    """Single operators by their kind, on noise.

    The first operand is brought nearer to zero while much of what comes out is clipped: what a machine does far outside
    of a tensor's range, where the steps of the operands are coarse against those of the result, says nothing.
    """
    rng = np.random.default_rng(0)
    for kind, model in operators.items():
        first, *others = ports(model)[0]
        inputs = {port.name: noise(rng, port, kind.split()[0]) for port in (first, *others)}
        for _ in range(HALVINGS):
            trial = _trial(f"operator {kind}", model, inputs, REFERENCE_LIMITS)
            if all(_clipped(codes) <= CLIPPED_SHARE for codes in trial.due.values()):
                break
            zero = first.encoding.zero_point
            nearer = zero + (inputs[first.name].astype(np.int64) - zero) // 2
            inputs = {**inputs, first.name: nearer.astype(first.encoding.dtype)}
        yield trial


def _clipped(codes: npt.NDArray[Any]) -> float:
    """Share of the least and the greatest code."""
    return float(np.isin(codes, [0, np.iinfo(codes.dtype).max]).mean())


def _trial(what: str, model: onnx.ModelProto, inputs: dict[str, Codes], limits: Limits) -> Trial:
    with written(model) as path:
        return Trial(what, model, inputs, run_reference(path, inputs, limits))


def compared(trial: Trial, found: dict[str, Codes]) -> list[Emulated]:
    """All outputs, in the reference's order. Raises QnnError for others than it has."""
    single = trial.what.startswith("operator ")
    outputs = ports(trial.model)[1]
    rows = []
    for name, apart in compare(trial.due, found).items():
        due, steps = trial.due[name], 1 if trial.due[name].dtype == np.uint8 else 256
        largest, mean = apart.max_lsb / steps, apart.mean_lsb / steps
        if single:
            far = np.abs(due.astype(np.int64) - found[name].astype(np.int64)) >= steps
            share = float(far.mean())
            good = largest <= OPERATOR_LSB and share <= OPERATOR_SHARE
            rows.append(Emulated(trial.what, name, largest, mean, OPERATOR_LSB, good, share=share))
            continue
        psnr = _psnr_db(named(outputs, name).encoding, found[name], due) if name == FRAMES else None
        good = mean <= GRAPH_LSB and (psnr is None or psnr >= FRAMES_PSNR_DB)
        rows.append(Emulated(trial.what, name, largest, mean, GRAPH_LSB, good, psnr_db=psnr))
    return rows


def _psnr_db(encoding: Encoding, *codes: Codes) -> float:
    """Of two clips ``[1, 3, T, H, W]`` as they are shown: -1 is black, 1 is white."""
    clips = (encoding.dequantise(c)[0].transpose(1, 2, 3, 0) * np.float32(0.5) + np.float32(0.5) for c in codes)
    return psnr_db(*(np.clip(clip, 0, 1) for clip in clips))


@contextlib.contextmanager
def written(model: onnx.ModelProto) -> Iterator[Path]:
    """As a file, while it is needed."""
    with tempfile.TemporaryDirectory(prefix="hvdc-") as folder:
        path = Path(folder) / "graph.onnx"
        path.write_bytes(serialised(model))
        yield path


def noise(rng: np.random.Generator, port: Port, operator: str) -> Codes:
    """All codes, each as likely, but for two operators.

    A softmax's shares, by which a MatMul weighs, sum to one in each row, in any way, each as likely: with sums of a
    hundred, nearly all that comes out is clipped, and the rest says nothing. A Div gets codes well above zero: what
    x / 0 gives is nobody's promise.
    """
    encoding, last = port.encoding, np.iinfo(port.encoding.dtype).max
    if operator == "MatMul" and encoding == shares(encoding.dtype):
        return encoding.quantise(rng.dirichlet([1] * port.shape[-1], port.shape[:-1]).astype(np.float32))
    least = min(encoding.zero_point + last // 8, last) if operator == "Div" else 0
    return rng.integers(least, last + 1, port.shape).astype(encoding.dtype)
