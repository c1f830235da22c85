"""The streaming decoder of one tile: a graph for the first latent frame and one for each later frame.

The decoder is causal in time: every convolution over three frames sees the two before. Wan keeps those in caches that
are absent, of one frame or of two; here a cache always holds two frames, [1, C, 2, h, w], zero where there was none.
Then both graphs have fixed shapes and no conditions. The `first` graph must be its own, because the decoder skips its
temporal upsampling there, and zero caches do not make up for that.

| graph | reads | writes |
|---|---|---|
| first | ``latent`` [1, z, 1, H, W] | ``frames`` [1, 3, 1, 8H, 8W], ``next_cache.*`` |
| later | ``latent``, ``cache.*`` | ``frames`` [1, 3, 4, 8H, 8W], ``next_cache.*`` |

The latent is normalised, as the transformer leaves it. Frames are RGB around [-1, 1] and not clamped, because tiles
are blended first. A graph may be cut between the decoder's stages (`stage_graphs`); the value at a cut has the same
name in both graphs, and in the whole one. `first` and `later` graphs have equal weights under equal names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from exporters.decoder.blocks import Blocks, Variant
from exporters.decoder.builder import GraphBuilder, Value, Weight, fill
from exporters.decoder.checkpoint import DecoderCheckpoint
from exporters.decoder.geometry import Cache, Stage, caches, stages

LATENT, FRAMES = "latent", "frames"


@dataclass(frozen=True)
class DecoderGraph:
    """One graph, checked, with its weights still to be read.

    ``stages`` are those that it computes. ``inputs`` and ``outputs`` are in the model's order: the latent, or the value
    at the cut, and then the caches; the frames, or the value at the cut, and then the caches. ``caches`` are those that
    it writes and, if ``variant`` is ``later``, reads.
    """

    variant: Variant
    stages: tuple[str, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    caches: tuple[Cache, ...]
    skeleton: onnx.ModelProto = field(repr=False)
    weights: dict[str, Weight] = field(repr=False)

    @property
    def name(self) -> str:
        """Such as ``decoder_later`` or ``decoder_later_up0``."""
        return str(self.skeleton.graph.name)

    def model(self) -> onnx.ModelProto:
        """The ONNX model with its weights, float32.

        Raises:
            CheckpointError: a weight cannot be read.
        """
        return fill(self.skeleton, self.weights)

    def write(self, path: Path) -> None:
        """Writes the model into one file; equal decoders give equal bytes.

        Raises:
            CheckpointError: a weight cannot be read.
        """
        path.write_bytes(self.model().SerializeToString(deterministic=True))


def first_graph(decoder: DecoderCheckpoint, rows: int, columns: int) -> DecoderGraph:
    """The whole decoder for the first latent frame of a tile of ``rows`` × ``columns`` latent pixels."""
    return whole_graph(decoder, "first", rows, columns)


def later_graph(decoder: DecoderCheckpoint, rows: int, columns: int) -> DecoderGraph:
    """The whole decoder for each later latent frame of such a tile."""
    return whole_graph(decoder, "later", rows, columns)


def whole_graph(decoder: DecoderCheckpoint, variant: Variant, rows: int, columns: int) -> DecoderGraph:
    """One graph of all stages."""
    everything = tuple(stage.name for stage in stages(decoder.geometry))
    return stage_graphs(decoder, variant, rows, columns, groups=[everything])[0]


def stage_graphs(
    decoder: DecoderCheckpoint,
    variant: Variant,
    rows: int,
    columns: int,
    groups: Iterable[Sequence[str]] | None = None,
) -> tuple[DecoderGraph, ...]:
    """The decoder as several graphs, each of which reads what the one before it wrote.

    ``groups`` are the stages (``mid``, ``up0``, …) of each graph, in order; by default every stage is a graph.

    Raises:
        ValueError: ``rows`` or ``columns`` is not positive; ``groups`` are not all stages in their order.
    """
    if rows < 1 or columns < 1:
        raise ValueError(f"a tile has at least one latent pixel each way, not {rows} × {columns}")
    plan = stages(decoder.geometry)
    names = [stage.name for stage in plan]
    cut = [tuple(group) for group in groups] if groups is not None else [(name,) for name in names]
    if [name for group in cut for name in group] != names or not all(cut):
        raise ValueError(f"the graphs must be the stages {', '.join(names)} in this order, not {cut}")
    by_name = {stage.name: stage for stage in plan}
    graphs: list[DecoderGraph] = []
    value = Value(LATENT, (1, decoder.geometry.z_dim, 1, rows, columns))
    for group in cut:
        graph = _graph(decoder, variant, [by_name[n] for n in group], value, (rows, columns), whole=len(cut) == 1)
        graphs.append(graph)
        value = graph.outputs[0]
    return tuple(graphs)


def _graph(
    decoder: DecoderCheckpoint, variant: Variant, group: list[Stage], entry: Value, tile: tuple[int, int], whole: bool
) -> DecoderGraph:
    b = GraphBuilder()
    all_caches = {cache.name: cache for cache in caches(decoder.geometry, *tile)}
    blocks = Blocks(b, decoder.weights, variant, all_caches)
    x = b.input(entry.name, entry.shape)
    for stage in group:
        for step in stage.steps:
            x = blocks.step(x, step)
    b.outputs.insert(0, x)
    shapes = {output.name: output.shape for output in b.outputs}
    own = tuple(cache for cache in all_caches.values() if cache.output_name in shapes)
    assert all(shapes[cache.output_name] == cache.shape for cache in own)  # noqa: S101 - two descriptions of one fact
    names = tuple(stage.name for stage in group)
    name = f"decoder_{variant}" if whole else f"decoder_{variant}_{'_'.join(names)}"
    doc = f"Wan 2.1 VAE decoder, {variant} latent frame, tile of {tile[0]} x {tile[1]} latent pixels"
    return DecoderGraph(variant, names, tuple(b.inputs), tuple(b.outputs), own, b.finish(name, doc), b.weights)
