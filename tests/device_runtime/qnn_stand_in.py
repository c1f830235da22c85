"""The stand-in for QNN's libraries: builds it, writes its binaries, and computes what its graphs compute."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from device_runtime.build import INCLUDE, SOURCE
from exporters.decoder.blending import Mosaic
from exporters.decoder.tiles import TileSettings, plan_tiles
from exporters.qnn.available import BACKEND, SYSTEM
from hvdc.artifact.decoder import Binary, BinaryGraph, Decoder, Graph, Port
from hvdc.pipeline.videos import pixels_of
from tests.artifacts import add_opaque, read_manifest, replace_opaque, write_manifest

HERE = Path(__file__).resolve().parent
DTYPES = {"uint8": 0x0408, "uint16": 0x0416}
BUILD = "v2.50.0.test"
"""Of the compiler that wrote the binaries; older than the runtime that the stand-in says it is."""

Codes = npt.NDArray[np.integer]
Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Says:
    """What a binary says of itself, and what an artifact says of its binaries."""

    build: str = BUILD
    soc: int = 69
    arch: int = 79
    version: int = 3
    """Of the binary's description of itself."""


def build_stand_in(folder: Path, *, sanitized: bool = True, compiler: str = "cc") -> Path:
    """Both libraries under their real names, with the sanitizers of the programs that load them; returns their
    folder."""
    library = folder / BACKEND
    flags = ["-std=c11", "-O2", "-shared", "-fPIC", "-g"]
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"] if sanitized else []
    warnings = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
    headers = ["-I", str(SOURCE / "decoder" / "src"), "-I", str(INCLUDE)]
    sources = [str(HERE / name) for name in ("qnn_stand_in.c", "qnn_stand_in_system.c")]
    command = [compiler, *flags, *warnings, *headers, *sources, "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shutil.copy(library, folder / SYSTEM)
    return folder


def write_binaries(
    root: Path,
    says: Says | None = None,
    recorded: Says | None = None,
    replace: Mapping[str, str] | None = None,
) -> None:
    """Give an artifact of `tests.artifacts` binaries that the stand-in executes, with all hashes right.

    ``recorded``: what the artifact says of them, and they of themselves unless ``says``. ``replace``: text in them ->
    other text, each of which must be there.
    """
    manifest, recorded = read_manifest(root), recorded or Says()
    assert manifest.decoder is not None
    facts = {"build_id": recorded.build, "soc": recorded.soc, "arch": recorded.arch}
    binaries = tuple(binary.model_copy(update=facts) for binary in manifest.decoder.binaries)
    entry = manifest.decoder.model_copy(update={"binaries": binaries})
    write_manifest(root, manifest.model_copy(update={"decoder": entry}))
    texts = {binary.binary: binary_text(entry, binary.binary, says or recorded) for binary in entry.binaries}
    for before, after in (replace or {}).items():
        assert any(before in text for text in texts.values()), before
        texts = {name: text.replace(before, after) for name, text in texts.items()}
    for name, text in texts.items():
        replace_opaque(root, name.replace("decoder.", "decoder/", 1), text.encode("ascii"))


def add_binaries(root: Path, *, shared: bool = False) -> None:
    """Give an artifact whose decoder is ONNX graphs alone binaries that the stand-in executes: one of each graph, or
    ``shared`` by all of them."""
    entry = read_manifest(root).decoder
    assert entry is not None
    parts = [entry.graphs] if shared else [(graph,) for graph in entry.graphs]
    paths = [f"decoder/{'all' if shared else part[0].name}.bin" for part in parts]
    binaries = tuple(_binary_of(path, part) for path, part in zip(paths, parts, strict=True))
    held = entry.model_copy(update={"backend": "qnn", "binaries": binaries})
    add_opaque(root, dict.fromkeys(paths, b"none yet"), held)
    write_binaries(root)


def _binary_of(path: str, graphs: Sequence[Graph]) -> Binary:
    return Binary(
        binary=path.replace("/", "."), build_id=BUILD, core_api="2.40.0", backend_api="5.40.0", blob_version="3.3.3",
        soc=69, arch=79, weights_shared=len(graphs) > 1, predicted_graph_bytes=1 << 20, checks=("metadata",),
        graphs=tuple(
            BinaryGraph(
                graph=graph.name, name_in_binary=graph.name, optimization=3, vtcm_bytes=8 << 20, spill_fill_bytes=0
            )
            for graph in graphs
        ),
    )  # fmt: skip


def binary_text(entry: Decoder, name: str, says: Says) -> str:
    """A binary: its graphs, and their tensors in another order than the artifact's, with ids that say nothing."""
    lines = [f"binary {says.build} {says.soc} {says.arch} {says.version}"]
    binary = next(b for b in entry.binaries if b.binary == name)
    for held in reversed(binary.graphs):
        graph = next(g for g in entry.graphs if g.name == held.graph)
        lines.append(f"graph {held.name_in_binary} {held.vtcm_bytes} {held.optimization} {held.spill_fill_bytes}")
        for side, ports in (("in", graph.inputs), ("out", graph.outputs)):
            lines += [tensor_text(entry, side, graph, port) for port in reversed(ports)]
    return "\n".join(lines) + "\n"


def tensor_text(entry: Decoder, side: str, graph: Graph, port: Port) -> str:
    identity = 1 + 7 * [p for g in entry.graphs for p in (*g.inputs, *g.outputs)].index(port) + len(graph.name)
    facts = [f"{DTYPES[port.dtype]:x}", f"{port.scale:.17g}", -port.zero_point, number(graph, port), *port.shape]
    return " ".join([side, port.name, str(identity), *map(str, facts)])


def number(graph: Graph, port: Port) -> int:
    """An input's factor, an output's first value: different for each port of each graph."""
    return 1 + 2 * (sum(map(ord, graph.name + port.name)) % 100)


def run_graph(graph: Graph, values: Mapping[str, Codes]) -> dict[str, Codes]:
    """As qnn_stand_in.c says."""
    out = {}
    for port in graph.outputs:
        j = np.arange(np.prod(port.shape), dtype=np.uint64)
        total = number(graph, port) + 5 * j
        for read in graph.inputs:
            flat = values[read.name].reshape(-1).astype(np.uint64)
            total += np.uint64(number(graph, read)) * np.resize(flat, j.size)
        out[port.name] = total.astype(port.dtype).reshape(port.shape)
    return out


def quantise(values: Float32Array, port: Port) -> Codes:
    """ONNX's QuantizeLinear."""
    limit = np.iinfo(port.dtype).max
    codes: Codes = np.clip(np.rint(values / np.float32(port.scale)) + port.zero_point, 0, limit).astype(port.dtype)
    return codes


def dequantise(codes: Codes, port: Port) -> Float32Array:
    return (codes.astype(np.int32) - port.zero_point).astype(np.float32) * np.float32(port.scale)


def decoded(entry: Decoder, latent: Float32Array) -> npt.NDArray[np.uint8]:
    """uint8 [frames, height, width, 3]: the host decoder's tiles and blending around the stand-in's graphs."""
    t = entry.tiles
    settings = TileSettings(t.rows, t.columns, t.overlap_rows, t.overlap_columns)
    count = 1 + entry.temporal_scale * (latent.shape[1] - 1)
    plan = plan_tiles(latent.shape[2], latent.shape[3], settings)
    mosaic = Mosaic(plan, frames=count, scale=entry.spatial_scale, channels=3)
    for tile in plan:
        part = latent[None, :, :, tile.rows.start : tile.rows.stop, tile.columns.start : tile.columns.stop]
        caches: dict[str, Codes] = {}
        for frame in range(latent.shape[1]):
            graphs = entry.variant("later" if frame else "first")
            latent_port, frames_port = graphs[0].inputs[0], graphs[-1].outputs[0]
            values = {**caches, latent_port.name: quantise(part[:, :, frame : frame + 1], latent_port)}
            for graph in graphs:
                values |= run_graph(graph, values)
            caches = {name.removeprefix("next_"): v for name, v in values.items() if name.startswith("next_")}
            frames = dequantise(values[frames_port.name], frames_port)[0].transpose(1, 2, 3, 0)
            mosaic.put(tile, 1 + entry.temporal_scale * (frame - 1) if frame else 0, frames)
    return pixels_of(np.clip((mosaic.frames + np.float32(1)) * np.float32(0.5), 0, 1), "clip")
