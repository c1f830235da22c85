"""What values the tensors of a decoder take while it decodes calibration latents as it will be used.

The float graphs run frame by frame with their caches. Each tensor is reduced inside the graph to its minimum, its
maximum and an even sample of its values, so that memory stays near that of decoding, however large a frame is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quant.decoder.errors import DecoderQuantError
from quant.decoder.graph import Graphs, Key, Structure, Variant, float_shapes, structure
from quant.decoder.stream import Float32Array, Progress, Streamer, spread

SAMPLES = 1 << 14
"""Values of one tensor that are looked at in one call, at most."""
TAIL = 1 << 12
"""The smallest and the largest sampled values that are kept of a tensor."""

_LOW, _HIGH, _SAMPLE, _FLAT = "hvdc.low:", "hvdc.high:", "hvdc.sample:", "hvdc.flat:"


@dataclass
class Range:
    """Values seen of one tensor. ``low`` and ``high``: the extremes of all. ``lows`` and ``highs``: the outermost
    `TAIL` of ``sampled`` values, float32, in ascending order."""

    low: float = math.inf
    high: float = -math.inf
    sampled: int = 0
    lows: Float32Array = field(default_factory=lambda: np.zeros(0, np.float32))
    highs: Float32Array = field(default_factory=lambda: np.zeros(0, np.float32))

    def add(self, low: float, high: float, sample: Float32Array) -> None:
        """One call's extremes and sample."""
        self.join(Range(low, high, sample.size, sample, sample))

    def join(self, other: Range) -> None:
        """Values seen elsewhere of the same tensor."""
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.sampled += other.sampled
        self.lows = np.sort(np.concatenate([self.lows, other.lows]))[:TAIL]
        self.highs = np.sort(np.concatenate([self.highs, other.highs]))[-TAIL:]

    def within(self, percentile: float) -> tuple[float, float]:
        """The range without the share ``1 - percentile / 100`` of the values at either end.

        Raises ValueError for a percentile that is not in (50, 100], or lies inside of what was kept of the values.
        """
        if not 50 < percentile <= 100:
            raise ValueError(f"a percentile is above 50 and at most 100, not {percentile}")
        if percentile == 100 or not self.sampled:
            return self.low, self.high
        outside = int((1 - percentile / 100) * self.sampled)
        if outside >= len(self.lows):
            raise ValueError(f"percentile {percentile} of {self.sampled} values is not among the outermost {TAIL} kept")
        return float(self.lows[outside]), float(self.highs[-1 - outside])


@dataclass(frozen=True)
class Ranges:
    """Of every computed or given tensor of both variants. ``latent_frames`` were decoded."""

    ranges: Mapping[Key, Range]
    latent_frames: int


def observe(
    graphs: Graphs,
    latents: Iterable[Float32Array],
    known: Structure | None = None,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Ranges:
    """Decodes ``latents``, each float32 [z, T, h, w] of the graphs' tile.

    ``jobs`` of them at a time, each on one thread and with activations of its own in memory: the ranges do not depend
    on it. ``progress`` counts latents.

    Raises:
        DecoderQuantError: graphs of something else; no latent, or none of more than one frame; a latent of another
            shape; a value that is not finite.
    """
    known = known or structure(graphs)
    wanted = {key for group in known.groups.values() for key in group.sources}
    streamer = Streamer(Graphs.of(*([_watched(m, v, wanted) for m in graphs.models(v)] for v in ("first", "later"))))

    def seen(latent: Float32Array) -> dict[Key, Range]:
        found = {key: Range() for key in sorted(wanted)}
        for variant, out in streamer.run(latent):
            for name, low in out.items():
                if name.startswith(_LOW):
                    _add(found, Key(variant, name.removeprefix(_LOW)), low, out)
        return found

    clips = list(latents)
    each = spread(seen, clips, jobs, progress)
    if not any(clip.shape[1] > 1 for clip in clips):
        raise DecoderQuantError("calibration needs a latent of two frames or more", where="latents")
    ranges = each[0]
    for other in each[1:]:
        for key, found in other.items():
            ranges[key].join(found)
    return Ranges(ranges, sum(clip.shape[1] for clip in clips))


def _add(ranges: dict[Key, Range], key: Key, low: Float32Array, out: Mapping[str, Float32Array]) -> None:
    high, sample = out[_HIGH + key.name], out[_SAMPLE + key.name]
    if not (np.isfinite(low).all() and np.isfinite(high).all() and np.isfinite(sample).all()):
        raise DecoderQuantError("a value is not finite", where=f"{key.name!r} of the {key.variant} graph")
    ranges[key].add(float(low.item()), float(high.item()), sample)


def _watched(model: onnx.ModelProto, variant: Variant, wanted: set[Key]) -> onnx.ModelProto:
    """The model with three more outputs for each of its ``wanted`` tensors."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    graph = out.graph
    made = {name for node in graph.node for name in node.output} | {value.name for value in graph.input}
    added = {"hvdc.minus_one": [-1], "hvdc.zero": [0], "hvdc.end": [np.iinfo(np.int64).max]}
    for name, shape in float_shapes(model).items():
        if Key(variant, name) not in wanted or name not in made:
            continue
        count = math.prod(shape)
        step = -(-count // SAMPLES) | 1  # odd, so that it does not fall into step with rows of even width
        added[f"hvdc.step.{step}"] = [step]
        graph.node.extend(
            [
                helper.make_node("ReduceMin", [name], [_LOW + name], keepdims=0),
                helper.make_node("ReduceMax", [name], [_HIGH + name], keepdims=0),
                helper.make_node("Reshape", [name, "hvdc.minus_one"], [_FLAT + name]),
                helper.make_node(
                    "Slice", [_FLAT + name, "hvdc.zero", "hvdc.end", "hvdc.zero", f"hvdc.step.{step}"], [_SAMPLE + name]
                ),
            ]
        )
        graph.output.extend(
            [
                helper.make_tensor_value_info(_LOW + name, TensorProto.FLOAT, []),
                helper.make_tensor_value_info(_HIGH + name, TensorProto.FLOAT, []),
                helper.make_tensor_value_info(_SAMPLE + name, TensorProto.FLOAT, [-(-count // step)]),
            ]
        )
    graph.initializer.extend(numpy_helper.from_array(np.array(v, np.int64), n) for n, v in added.items())
    return out
