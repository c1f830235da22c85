"""Where 16 bits pay: how much each group of tensors in 8 bits disturbs the decoded frames, and a choice under a budget.

Each group is rounded to 8 bits on its own while the rest of the decoder stays in float32. Disturbances of different
groups are nearly independent, so their mean squares add up; 16 bits leave next to nothing of one. The choice takes
groups by what they save for a byte. Names do not depend on the tile, so a small one will do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from quant.decoder.encodings import Encoding, Encodings, Settings, choose_encodings
from quant.decoder.graph import FRAMES, Graphs, Structure, Variant, structure
from quant.decoder.qdq import in_order, raise_epsilons
from quant.decoder.ranges import Ranges
from quant.decoder.stream import Float32Array, Progress, Streamer, spread

DEFAULT_BUDGET = 0.25
"""Of the activation bytes of a `later` pass in 8 bits, how many more may be spent on 16 bits."""
LEAST_SHARE = 2e-3
"""A group that causes a smaller share of the disturbance that is left is not worth the conversions around it."""


@dataclass(frozen=True)
class Sensitivity:
    """``noise``: by group, the mean square error of the frames, RGB in [0, 1], when it alone has 8 bits.
    ``values``: by group, the numbers it holds in a `later` pass. ``always``: groups that have 16 bits anyway, and had
    them here. ``frames`` were compared."""

    noise: Mapping[str, float]
    values: Mapping[str, int]
    always: tuple[str, ...]
    frames: int

    def to_json(self) -> str:
        """As text, the same for equal values."""
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> Sensitivity:
        """What `to_json` wrote."""
        content = json.loads(text)
        return Sensitivity(content["noise"], content["values"], tuple(content["always"]), content["frames"])

    def lines(self, count: int = 20) -> list[str]:
        """The ``count`` most disturbing groups, for a terminal or a log."""
        ranked = sorted(self.noise, key=lambda name: (-self.noise[name], name))
        total, values = sum(self.noise.values()) or 1.0, sum(self.values.values())
        return [f"{'group':48} {'PSNR dB':>8} {'of noise':>8} {'of bytes':>8}"] + [
            f"{name:48} {psnr(self.noise[name]):8.2f} {self.noise[name] / total:8.2%} {self.values[name] / values:8.2%}"
            for name in ranked[:count]
        ]


@dataclass(frozen=True)
class Choice:
    """``wide`` groups get 16 bits, which takes ``share`` more activation bytes. Predicted PSNR in dB of activations
    alone, weights apart: of 8 bits everywhere, and of this choice."""

    wide: tuple[str, ...]
    share: float
    narrow_db: float
    chosen_db: float

    def lines(self) -> list[str]:
        """For a terminal or a log."""
        return [
            f"16 bits for {len(self.wide)} groups of tensors, {self.share:.1%} more activation bytes: "
            f"{self.narrow_db:.1f} -> {self.chosen_db:.1f} dB by the activations alone"
        ]


def measure(
    graphs: Graphs,
    ranges: Ranges,
    latents: Sequence[Float32Array],
    *,
    settings: Settings | None = None,
    known: Structure | None = None,
    progress: Progress | None = None,
    jobs: int = 1,
) -> Sensitivity:
    """Decodes ``latents``, each float32 [z, T, h, w] of the graphs' tile with two frames or more, once for each group.

    ``jobs`` groups at a time, each on one thread; they share the weights, and the numbers do not depend on it.
    ``progress`` counts groups.

    Raises:
        DecoderQuantError: graphs of something else, or ranges that are not theirs.
    """
    known = known or structure(graphs)
    encodings = choose_encodings(known, ranges, (), settings)
    light, weights = _weights_as_inputs(graphs)

    def decoded(graphs: Graphs) -> list[Float32Array]:
        streamer = Streamer(graphs, constants=weights)
        return [streamer.decode(latent) for latent in latents]

    reference = decoded(light)

    def disturbed(group: str) -> float:
        return _mean_square(decoded(_rounded(light, known, encodings, group)), reference)

    names = list(known.groups)
    noise = dict(zip(names, spread(disturbed, names, jobs, progress), strict=True))
    frames = sum(len(clip) for clip in reference)
    return Sensitivity(noise, {group.name: group.values for group in known.groups.values()}, known.attention, frames)


def choose_wide(found: Sensitivity, budget: float = DEFAULT_BUDGET, never: Collection[str] = (FRAMES,)) -> Choice:
    """The groups that save most for a byte, while ``budget`` lasts: a share of the activation bytes of 8 bits.

    Those that have 16 bits anyway don't count. ``never`` are not taken: by default the frames, which become 8-bit
    pixels anyway. Raises ValueError for a budget below 0.
    """
    values = sum(found.values.values())
    left = budget * values
    if not budget >= 0:
        raise ValueError(f"a budget is a share of the activation bytes, not {budget}")
    wide = list(found.always)
    rest = math.fsum(noise for name, noise in found.noise.items() if name not in wide)
    for name in sorted(found.noise, key=lambda n: (-found.noise[n] / max(found.values[n], 1), n)):
        if name not in {*wide, *never} and found.noise[name] > LEAST_SHARE * rest and found.values[name] <= left:
            wide.append(name)
            left -= found.values[name]
            rest = math.fsum(noise for other, noise in found.noise.items() if other not in wide)
    share = sum(found.values[name] for name in wide if name not in found.always) / values
    return Choice(tuple(sorted(wide)), share, psnr(math.fsum(found.noise.values())), psnr(rest))


def psnr(mean_square: float) -> float:
    """10 · log10(1 / ``mean_square``) dB."""
    return -10 * math.log10(mean_square) if mean_square > 0 else math.inf


def _mean_square(found: Sequence[Float32Array], reference: Sequence[Float32Array]) -> float:
    squares = sum(float(np.square(a.astype(np.float64) - b).sum()) for a, b in zip(found, reference, strict=True))
    return squares / sum(clip.size for clip in reference)


def _weights_as_inputs(graphs: Graphs) -> tuple[Graphs, list[Mapping[str, Float32Array]]]:
    """The graphs with the weights of their convolutions as inputs, and those weights, for each model in order.

    They are nearly all of a model's bytes. onnxruntime copies initialisers into each session but reads inputs where
    they are, so that a session for each group takes little time and memory.
    """
    parts: dict[Variant, list[onnx.ModelProto]] = {"first": [], "later": []}
    weights: list[Mapping[str, Float32Array]] = []
    for variant, model in graphs:
        out = onnx.ModelProto()
        out.CopyFrom(model)
        read = {node.input[1] for node in out.graph.node if node.op_type == "Conv"}
        taken = [tensor for tensor in model.graph.initializer if tensor.name in read]
        weights.append({tensor.name: numpy_helper.to_array(tensor) for tensor in taken})
        out.graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in taken)
        del out.graph.initializer[:]
        out.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name not in read)
        parts[variant].append(out)
    return Graphs.of(parts["first"], parts["later"]), weights


def _rounded(graphs: Graphs, known: Structure, encodings: Encodings, group: str) -> Graphs:
    """The float graphs with the tensors of one group rounded to 8 bits."""
    encoding = encodings.pairs[group].stored
    parts: dict[Variant, list[onnx.ModelProto]] = {"first": [], "later": []}
    for variant, model in graphs:
        out = onnx.ModelProto()
        out.CopyFrom(model)
        summed = {key.name for key in known.groups[group].keys if key.variant == variant}
        raise_epsilons(out, dict.fromkeys(summed, encoding.scale))
        _round(out, {key.name for key in known.groups[group].sources if key.variant == variant}, encoding)
        parts[variant].append(out)
    return Graphs.of(parts["first"], parts["later"])


def _round(model: onnx.ModelProto, names: Collection[str], encoding: Encoding) -> None:
    """In place: Q and DQ behind each of ``names`` that the model computes or is given as the first."""
    graph = model.graph
    made = {node.output[0] for node in graph.node}
    given = {value.name for value in graph.input} & set(names)
    read = {name: f"{name}.rounded" for name in given}
    written = {name: f"{name}.exact" for name in set(names) & made}
    scalers = []
    for source, target in sorted([(n, read[n]) for n in read] + [(written[n], n) for n in written]):
        codes = f"{target}.codes"
        scalers.append(helper.make_node("QuantizeLinear", [source, "hvdc.scale", "hvdc.zero_point"], [codes]))
        scalers.append(helper.make_node("DequantizeLinear", [codes, "hvdc.scale", "hvdc.zero_point"], [target]))
    if not scalers:
        return
    for node in graph.node:
        node.input[:] = [read.get(name, name) for name in node.input]
        node.output[:] = [written.get(name, name) for name in node.output]
    graph.initializer.extend(
        [
            numpy_helper.from_array(np.array(encoding.scale, np.float32), "hvdc.scale"),
            numpy_helper.from_array(np.array(encoding.zero_point, encoding.dtype), "hvdc.zero_point"),
        ]
    )
    nodes = in_order([*(onnx.NodeProto.FromString(n.SerializeToString()) for n in graph.node), *scalers])
    del graph.node[:]
    graph.node.extend(nodes)
