"""What a decoder adds to an artifact: the manifest's entry. The graphs and binaries themselves are opaque files.

A decoder turns the latents of a clip into frames, tile by tile and latent frame by latent frame. Its graphs have
quantised integers at every port, so that a cache that one call writes is what the next one reads, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hvdc.artifact import decoder_records, records
from hvdc.artifact.fields import Bytes, Count, Model, Sha256, Size, TensorName
from hvdc.config import DecoderBackend as Backend

Variant = Literal["first", "later"]
PortDType = Literal["uint8", "uint16"]
Check = Literal["metadata", "emulator", "device"]
"""What was done with a binary: its metadata read back and compared; run on the x86 emulator; run on a phone."""

StageName = Annotated[str, Field(pattern="^[a-z0-9_]+$", max_length=40)]
GraphName = Annotated[str, Field(pattern=f"^{decoder_records.GRAPH_PATTERN}$", max_length=decoder_records.GRAPH_LIMIT)]
Printable = Annotated[str, Field(pattern=f"^{decoder_records.PRINTABLE_PATTERN}$", max_length=records.TEXT_LIMIT)]


class Port(Model):
    """An input or output of a graph: real = (code - ``zero_point``) · ``scale``, which is a normal FP32 number."""

    name: TensorName
    dtype: PortDType
    shape: Annotated[tuple[Size, ...], Field(min_length=1, max_length=records.MAX_DIMS)]
    scale: Annotated[float, Field(gt=0)]
    zero_point: Annotated[int, Field(ge=0, lt=1 << 16)]


class Graph(Model):
    """One graph: ``first`` decodes the first latent frame of a tile, ``later`` every other one, or those stages of it.

    Graphs of one variant follow each other: the first output of one that is not the last is the first input of the
    next. Then come the caches.
    """

    name: GraphName
    variant: Variant
    stages: Annotated[tuple[StageName, ...], Field(min_length=1)]
    model: TensorName
    """The ONNX model with QuantizeLinear and DequantizeLinear nodes."""
    inputs: Annotated[tuple[Port, ...], Field(min_length=1)]
    outputs: Annotated[tuple[Port, ...], Field(min_length=1)]


class BinaryGraph(Model):
    """A graph within a context binary. ``name_in_binary`` is what a runtime asks the context for."""

    graph: GraphName
    name_in_binary: Printable
    optimization: Annotated[int, Field(ge=1, le=3)]
    vtcm_bytes: Bytes
    spill_fill_bytes: Bytes


class Binary(Model):
    """A QNN context binary. It holds no checksum of its own: a runtime compares the file's SHA-256 before it loads it.

    ``checks`` are those that passed. Nothing is said about a phone unless ``device`` is among them.
    """

    binary: TensorName
    build_id: Printable
    core_api: str
    backend_api: str
    blob_version: str
    soc: Count
    arch: Count
    weights_shared: bool
    """Its graphs store equal weights once; the x86 emulator cannot load such a binary."""
    graphs: Annotated[tuple[BinaryGraph, ...], Field(min_length=1)]
    predicted_graph_bytes: Bytes
    """Memory that its largest graph was predicted to need of what the compiler grants one. That a context of several
    graphs needs no more is assumed, not measured."""
    reproducible: bool = False
    """Compiling again on the same machine gives these bytes."""
    checks: tuple[Check, ...]


class Tiles(Model):
    """Size and least overlap of tiles, in latent pixels; `exporters.decoder.tiles` says where they lie."""

    rows: Size
    columns: Size
    overlap_rows: Count
    overlap_columns: Count


class Quantisation(Model):
    """How the graphs were quantised. PSNR in dB of the frames against the float32 decoder; ``psnr_on_unseen``: of clips
    that calibration had not seen."""

    calibration_latents_sha256: Sha256
    clips: Size
    wide_tensors: Count
    """Groups of tensors with 16 bits; all others have 8."""
    wide_budget: Annotated[float, Field(ge=0)]
    psnr_db: float | None
    psnr_on_unseen: bool = False


class Decoder(Model):
    """The VAE's decoder as it ships."""

    backend: Backend
    vae_sha256: Sha256
    """Identity of the float weights: of the canonical tensors, not of the file."""
    latents_mean: tuple[float, ...]
    latents_std: tuple[float, ...]
    spatial_scale: Size
    temporal_scale: Size
    tiles: Tiles
    encodings: TensorName
    """JSON: the encoding of every tensor, by which graphs of another tile can be quantised alike."""
    quantisation: Quantisation
    graphs: Annotated[tuple[Graph, ...], Field(min_length=2, max_length=decoder_records.MAX_DECODER_GRAPHS)]
    binaries: tuple[Binary, ...]
    """Empty with backend ``onnx``: then the artifact cannot decode on a phone yet."""

    def tensors(self) -> Iterator[str]:
        """Names of all its files, in the artifact's order."""
        yield from (graph.model for graph in self.graphs)
        yield self.encodings
        yield from (binary.binary for binary in self.binaries)

    def variant(self, variant: Variant) -> list[Graph]:
        """The graphs of a variant, in the order in which they run."""
        return [graph for graph in self.graphs if graph.variant == variant]


def faults(decoder: Decoder) -> Iterator[tuple[str, object, object]]:
    """Place, expected and found of what an entry gets wrong about itself."""
    names = [graph.name for graph in decoder.graphs]
    if len(set(names)) != len(names):
        yield "decoder.graphs", "each name once", names
    variants = [graph.variant for graph in decoder.graphs]
    if variants != sorted(variants) or set(variants) != {"first", "later"}:
        yield "decoder.graphs", "those of the first latent frame, then those of the later ones", variants
    tensors = list(decoder.tensors())
    if len(set(tensors)) != len(tensors):
        yield "decoder", "each file once", tensors
    channels = len(decoder.latents_mean)
    if not channels or channels != len(decoder.latents_std) or min(decoder.latents_std, default=0.0) <= 0:
        yield "decoder.latents_std", f"{channels} positive numbers", decoder.latents_std
    for axis in ("rows", "columns"):
        size, overlap = getattr(decoder.tiles, axis), getattr(decoder.tiles, f"overlap_{axis}")
        if 2 * overlap > size:
            yield f"decoder.tiles.overlap_{axis}", f"at most half of {size}", overlap
    held = [graph.graph for binary in decoder.binaries for graph in binary.graphs]
    due = [] if decoder.backend == "onnx" else sorted(names)
    if sorted(held) != due:
        yield "decoder.binaries", f"with backend {decoder.backend}: {due}", held
    for binary in decoder.binaries:
        if len(binary.graphs) > 1 and not binary.weights_shared:
            yield f"decoder.binaries: {binary.binary}", "one graph, or shared weights", len(binary.graphs)
        inside = [graph.name_in_binary for graph in binary.graphs]
        if len(set(inside)) != len(inside):
            yield f"decoder.binaries: {binary.binary}", "each name in it once", inside
        if len(set(binary.checks)) != len(binary.checks) or "metadata" not in binary.checks:
            yield f"decoder.binaries: {binary.binary}", "checks, each once, with metadata", binary.checks
    yield from _port_faults(decoder)
    yield from _shape_faults(decoder)


def _port_faults(decoder: Decoder) -> Iterator[tuple[str, object, object]]:
    """Each port by itself, then caches and cuts: the same integers on both sides."""
    ports = sum(len(graph.inputs) + len(graph.outputs) for graph in decoder.graphs)
    if ports > decoder_records.MAX_DECODER_PORTS:
        yield "decoder.graphs", f"at most {decoder_records.MAX_DECODER_PORTS} inputs and outputs", ports
    for graph in decoder.graphs:
        place = f"decoder.graphs: {graph.name}"
        names = [port.name for port in (*graph.inputs, *graph.outputs)]
        if len(set(names)) != len(names):
            yield place, "each input and output once", names
        if graph.variant == "first" and len(graph.inputs) != 1:
            yield place, "one input, for nothing was cached before", [port.name for port in graph.inputs]
        for port in (*graph.inputs, *graph.outputs):
            limit = 1 << (8 if port.dtype == "uint8" else 16)
            if port.zero_point >= limit:
                yield f"{place}.{port.name}", f"a zero point below {limit}", port.zero_point
            if not _is_scale(port.scale):
                yield f"{place}.{port.name}", "a scale that is a normal FP32 number", port.scale
    for variant in ("first", "later"):
        graphs = decoder.variant(variant)
        written = [port.name for graph in graphs for port in graph.outputs]
        if len(set(written)) != len(written):
            yield f"decoder.graphs: {variant}", "each output once", written
        for before, after in pairwise(graphs):
            if before.outputs[0] != after.inputs[0]:
                yield f"decoder.graphs: {after.name}", f"to read {before.outputs[0]}", after.inputs[0]
        outputs = {port.name: port for graph in graphs for port in graph.outputs}
        for graph in decoder.variant("later"):
            for port in graph.inputs[1:]:
                cache = outputs.get(f"next_{port.name}")
                if cache is None or cache != port.model_copy(update={"name": cache.name}):
                    yield f"decoder.graphs: {graph.name}.{port.name}", f"what {variant} writes", cache


def _shape_faults(decoder: Decoder) -> Iterator[tuple[str, object, object]]:
    """A runtime cuts latents into tiles and puts frames together by the entry's numbers: the ports have those sizes."""
    tiles, scale = decoder.tiles, decoder.spatial_scale
    latent = (1, len(decoder.latents_mean), 1, tiles.rows, tiles.columns)
    counts: tuple[tuple[Variant, int], ...] = (("first", 1), ("later", decoder.temporal_scale))
    for variant, count in counts:
        frames = (1, decoder_records.FRAME_CHANNELS, count, tiles.rows * scale, tiles.columns * scale)
        graphs = decoder.variant(variant)
        ends = [(graphs[0], graphs[0].inputs[0], latent), (graphs[-1], graphs[-1].outputs[0], frames)] if graphs else []
        for graph, port, due in ends:
            if port.shape != due:
                yield f"decoder.graphs: {graph.name}.{port.name}", f"the shape {list(due)}", list(port.shape)


def _is_scale(scale: float) -> bool:
    """Whether ``index.bin`` holds the very number, and an engine may divide by it."""
    limits = np.finfo(np.float32)
    return float(limits.smallest_normal) <= scale <= float(limits.max) and float(np.float32(scale)) == scale
