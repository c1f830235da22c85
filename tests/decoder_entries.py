"""A small decoder as it stands in a manifest, and its files: opaque bytes, for no reader looks inside.

Each variant is cut into two graphs. Each later one reads a cache: of 8 bits, of 16.
"""

from __future__ import annotations

import hashlib

from hvdc.artifact.decoder import Backend, Binary, BinaryGraph, Decoder, Graph, Port, Quantisation, Tiles, Variant

CHANNELS = 4
CUT = Port(name="mid.out", dtype="uint8", shape=(1, 8, 1, 4, 4), scale=0.0625, zero_point=128)
FRAMES = {
    "first": Port(name="frames", dtype="uint8", shape=(1, 3, 1, 32, 32), scale=2.0**-7, zero_point=127),
    "later": Port(name="frames", dtype="uint8", shape=(1, 3, 4, 32, 32), scale=2.0**-7, zero_point=127),
}
LATENT = Port(name="latent", dtype="uint16", shape=(1, CHANNELS, 1, 4, 4), scale=2.0**-12, zero_point=32768)
CACHES = {
    "mid": Port(name="cache.mid", dtype="uint8", shape=(1, 8, 2, 4, 4), scale=0.5, zero_point=3),
    "up": Port(name="cache.up", dtype="uint16", shape=(8,), scale=2.0**-126, zero_point=65535),
}
"""By the stage that reads and writes it. The least scale and the last code are among them."""

VARIANTS: tuple[Variant, ...] = ("first", "later")
STAGES = ("mid", "up")
GRAPHS = tuple(f"decoder_{variant}-{stage}" for variant in VARIANTS for stage in STAGES)


def decoder_files(backend: Backend) -> dict[str, bytes]:
    """Path -> bytes, in the artifact's order. Their sizes are odd, below and above a page."""
    names = [f"decoder/{graph.replace('-', '_')}.onnx" for graph in GRAPHS] + ["decoder/encodings.json"]
    if backend != "onnx":
        names += ["decoder/all.bin", "decoder/last.bin"]
    sizes = (1, 4097, 333, 70, 127, 4096, 129)
    return {name: _noise(name, size) for name, size in zip(names, sizes, strict=False)}


def _noise(name: str, size: int) -> bytes:
    """Bytes that look like nothing else, among them what floats and INT8 weights may not be."""
    return (hashlib.sha256(name.encode()).digest() * (size // 32 + 1))[: size - 1] + b"\x80"


def decoder_entry(backend: Backend) -> Decoder:
    """The entry. With a compiler, three graphs share a binary and the last one has its own."""
    tensors = [path.replace("/", ".") for path in decoder_files(backend)]
    binaries = (
        (_binary(tensors[5], GRAPHS[:3], shared=True), _binary(tensors[6], GRAPHS[3:], shared=False))
        if backend != "onnx"
        else ()
    )
    return Decoder(
        backend=backend,
        vae_sha256="2" * 64,
        latents_mean=(0.5, -0.25, 0.0, 1.0),
        latents_std=(1.0, 2.0, 0.5, 3.25),
        spatial_scale=8,
        temporal_scale=4,
        tiles=Tiles(rows=4, columns=4, overlap_rows=1, overlap_columns=2),
        encodings=tensors[4],
        quantisation=Quantisation(
            calibration_latents_sha256="3" * 64, clips=2, wide_tensors=1, wide_budget=0.125, psnr_db=41.5
        ),
        graphs=tuple(_graph(i, tensors[i]) for i in range(len(GRAPHS))),
        binaries=binaries,
    )


def _graph(i: int, model: str) -> Graph:
    variant, stage = VARIANTS[i // 2], STAGES[i % 2]
    cache = CACHES[stage]
    read = (LATENT if stage == "mid" else CUT, *([cache] if variant == "later" else []))
    written = (CUT if stage == "mid" else FRAMES[variant], cache.model_copy(update={"name": f"next_{cache.name}"}))
    return Graph(name=GRAPHS[i], variant=variant, stages=(stage,), model=model, inputs=read, outputs=written)


def _binary(tensor: str, graphs: tuple[str, ...], shared: bool) -> Binary:
    return Binary(
        binary=tensor,
        build_id="v2.0.test",
        core_api="2.1.0",
        backend_api="5.2.0",
        blob_version="3.0.0",
        soc=69,
        arch=79,
        weights_shared=shared,
        graphs=tuple(
            BinaryGraph(
                graph=graph,
                name_in_binary=f"{graph}$0/x",
                optimization=3,
                vtcm_bytes=8 << 20,
                spill_fill_bytes=(1 << 33) + i,
            )
            for i, graph in enumerate(graphs)
        ),
        predicted_graph_bytes=1 << 20,
        checks=("metadata",) if shared else ("metadata", "emulator"),
    )
