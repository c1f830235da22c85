"""Proofs about a decoder: its graphs are what the manifest says; its binaries too, and they compute the same.

What is about binaries needs Qualcomm's libraries. A binary holds no checksum and the libraries believe whatever it
says, so it is only given to them after its SHA-256 was compared. On the emulator the same graphs are compiled with the
same options, one binary each: it cannot load one whose graphs share weights. Nothing here says that a phone loads a
binary.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from exporters.decoder.graphs import stage_graphs
from exporters.qnn.available import toolchain, why_not
from exporters.qnn.emulate import run_graph, run_reference
from exporters.qnn.errors import QnnError
from exporters.qnn.metadata import Metadata, TensorInfo, read_metadata
from exporters.qnn.options import QnnOptions
from hvdc.artifact.codes import Code
from hvdc.artifact.decoder import Binary, Decoder, Port
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.reader import Artifact
from hvdc.errors import UsageError
from hvdc.pipeline.decoder_encodings import OBSERVED_SIDE, Float32Array, Quantised, open_same
from hvdc.pipeline.decoder_operators import single_operators
from hvdc.pipeline.progress import Progress
from quant.decoder import ports as quantised_ports
from quant.decoder.encodings import Encodings
from quant.decoder.graph import CACHE, LATENT, NEXT_CACHE, VARIANTS, Graphs
from quant.decoder.ports import ports
from quant.decoder.qdq import quantise, serialised

Codes = npt.NDArray[np.generic]

LARGEST_EMULATED_SIDE = OBSERVED_SIDE
"""Latent pixels of a tile, each way, that the emulator runs in a minute with a small decoder; the probe has so many."""
EMULATED_SIDE = 4
"""Latent pixels, each way, of the graphs that are made for the emulator where the artifact's own are too large."""

OPERATOR_LSB = 2
"""Steps that a single operator may be off by, at most."""
OPERATOR_SHARE = 0.5
"""Share of an operator's outputs that may be off by a step or more."""
GRAPH_LSB = 2.0
"""8-bit steps that any output of a whole graph may be off by, in the mean: errors of some hundred operators add up.
Single values may be far off: where a picture is black, a norm divides nearly nothing by nearly nothing."""


@dataclass(frozen=True)
class Emulated:
    """One output on the emulator against the exact reference, in 8-bit steps: of 16-bit outputs, 256 of their own.

    ``bound`` is on ``max_lsb`` for an operator, on ``mean_lsb`` for a graph."""

    what: str
    output: str
    max_lsb: float
    mean_lsb: float
    bound: float
    passed: bool


def port_findings(artifact: Artifact) -> list[ArtifactError]:
    """The ports of each ONNX graph, in their order, against the manifest's. Raises ArtifactError DATA_HASH."""
    entry = artifact.manifest.decoder
    found: list[ArtifactError] = []
    for graph in entry.graphs if entry is not None else ():
        data = artifact.opaque(graph.model)
        try:
            both = ports(onnx.load_model_from_string(data))
        except Exception as error:  # protobuf's own, DecoderQuantError
            found.append(_finding(graph.model, "an ONNX graph with quantised ports", error))
            continue
        for kind, due, held in zip(("inputs", "outputs"), (graph.inputs, graph.outputs), both, strict=True):
            ours, theirs = [_of_port(port) for port in due], [_of_quantised(port) for port in held]
            if ours != theirs:
                at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
                pair = (len(ours), len(theirs)) if at is None else (ours[at], theirs[at])
                found.append(_finding(f"{graph.model}: {kind}", *pair))
    return found


def metadata_findings(artifact: Artifact) -> list[ArtifactError]:
    """What each binary says of itself against what the manifest says of it. Raises ArtifactError DATA_HASH."""
    entry = artifact.manifest.decoder
    found: list[ArtifactError] = []
    for binary in entry.binaries if entry is not None else ():
        assert entry is not None  # noqa: S101 - it has binaries
        with tempfile.TemporaryDirectory(prefix="hvdc-") as folder:
            path = Path(folder) / "binary.bin"
            path.write_bytes(artifact.opaque(binary.binary))
            try:
                metadata = read_metadata(path)
            except QnnError as error:
                found.append(_finding(binary.binary, "a context binary", str(error.what)))
                continue
        found += [
            _finding(f"{binary.binary}: {place}", due, held)
            for place, due, held in _differences(entry, binary, metadata)
        ]
    return found


def why_not_read() -> str:
    """Why metadata cannot be read on this machine; empty where it can."""
    if why := why_not():
        return why
    try:
        toolchain()
    except QnnError as error:  # the libraries are there but do not load: that is no fault of the artifact
        return f"{error.what} (found: {error.found})"
    return ""


def _differences(entry: Decoder, binary: Binary, metadata: Metadata) -> Iterator[tuple[str, object, object]]:
    for field in ("build_id", "core_api", "backend_api", "blob_version", "soc", "arch"):
        if getattr(binary, field) != getattr(metadata, field):
            yield field, getattr(binary, field), getattr(metadata, field)
    inside = {graph.name: graph for graph in metadata.graphs}
    due = sorted(graph.name_in_binary for graph in binary.graphs)
    if due != sorted(inside):
        yield "graphs", due, sorted(inside)
        return
    by_name = {graph.name: graph for graph in entry.graphs}
    for graph in binary.graphs:
        held, described = inside[graph.name_in_binary], by_name[graph.graph]
        for field in ("optimization", "vtcm_bytes", "spill_fill_bytes"):
            if getattr(graph, field) != getattr(held, field):
                yield f"{graph.graph}.{field}", getattr(graph, field), getattr(held, field)
        for kind, due_ports, tensors in (
            ("inputs", described.inputs, held.inputs), ("outputs", described.outputs, held.outputs)
        ):  # fmt: skip
            ours, theirs = sorted(map(_of_port, due_ports)), sorted(map(_of_tensor, tensors))
            yield from ((f"{graph.graph}.{kind}", a, b) for a, b in zip(ours, theirs, strict=False) if a != b)
            if len(ours) != len(theirs):
                yield f"{graph.graph}.{kind}", len(ours), len(theirs)


def _of_port(port: Port) -> str:
    scale = float(np.float32(port.scale))
    return f"{port.name} {port.dtype} {list(port.shape)} scale {scale} zero {port.zero_point}"


def _of_quantised(port: quantised_ports.Port) -> str:
    e = port.encoding
    return f"{port.name} {e.dtype} {list(port.shape)} scale {float(np.float32(e.scale))} zero {e.zero_point}"


def _of_tensor(tensor: TensorInfo) -> str:
    dtype = tensor.dtype.replace("ufixed", "uint")
    return f"{tensor.name} {dtype} {list(tensor.dims)} scale {tensor.scale} zero {-(tensor.offset or 0)}"


def emulate(artifact: Artifact, vae: Path | None, progress: Progress) -> list[Emulated]:
    """Run single operators and whole graphs on the x86 emulator of the HTP, against exact references.

    The artifact's own graphs where their tile is small; with ``vae``, graphs of 4 × 4 latent pixels that are quantised
    with the artifact's encodings. Operators get noise; graphs get the artifact's probe, latents of its own model, and a
    `later` graph the caches that the reference of `first` wrote.

    Raises:
        UsageError: no decoder, no QNN libraries here, or a tile that is too large while ``vae`` is not given.
        HvdcError: another autoencoder than the artifact's. QnnError, ArtifactError.
    """
    entry = artifact.manifest.decoder
    if entry is None:
        raise UsageError("the artifact holds no decoder to emulate", where=str(artifact.path))
    if why := why_not():
        raise UsageError("the emulator is not available on this machine", found=why, fix="pip install 'hvdc[qnn]'")
    quantised = Quantised.from_json(artifact.opaque(entry.encodings).decode("utf-8"))
    graphs = _small(entry, quantised.encodings, vae) if vae is not None else _own(artifact, entry)
    level = entry.binaries[0].graphs[0].optimization if entry.binaries else 3
    options = QnnOptions(optimization=level)
    operators = single_operators(graphs.first[0])
    total = len(operators) + len(graphs.first) + len(graphs.later)
    progress.start("emulating", total, total, unit="graphs")
    results: list[Emulated] = []
    try:
        with tempfile.TemporaryDirectory(prefix="hvdc-") as name:
            path = Path(name) / "graph.onnx"
            rng = np.random.default_rng(0)
            for operator, model in operators.items():
                path.write_bytes(serialised(model))
                inputs = {p.name: _noise(rng, p, apart=operator == "Div") for p in ports(model)[0]}
                results += _compared(f"operator {operator}", path, inputs, options, single=True)[0]
                progress.advance(1)
            results += _whole(graphs, path, quantised.probe, options, progress)
    finally:
        progress.finish()
    return results


def _whole(
    graphs: Graphs, path: Path, probe: Float32Array, options: QnnOptions, progress: Progress
) -> Iterator[Emulated]:
    values: dict[str, Codes] = {}
    for t, variant in enumerate(VARIANTS):
        latent = next(port for port in ports(graphs.models(variant)[0])[0] if port.name == LATENT)
        rows, columns = latent.shape[3:]
        values[LATENT] = latent.encoding.quantise(probe[None, :, t : t + 1, :rows, :columns])
        for model in graphs.models(variant):
            path.write_bytes(serialised(model))
            found, reference = _compared(
                f"graph {model.graph.name}",
                path,
                {p.name: values[p.name] for p in ports(model)[0]},
                options,
                single=False,
            )
            values |= reference
            progress.advance(1)
            yield from found
        values |= {CACHE + n.removeprefix(NEXT_CACHE): v for n, v in values.items() if n.startswith(NEXT_CACHE)}


def _compared(
    what: str, path: Path, inputs: dict[str, Codes], options: QnnOptions, *, single: bool
) -> tuple[list[Emulated], dict[str, Codes]]:
    reference, found = run_reference(path, inputs), run_graph(path, inputs, options)
    rows = []
    for name, due in reference.items():
        apart = np.abs(due.astype(np.int64) - found[name].astype(np.int64)) / (1 if due.dtype == np.uint8 else 256)
        largest, mean = float(apart.max()), float(apart.mean())
        good = largest <= OPERATOR_LSB and float((apart >= 1).mean()) <= OPERATOR_SHARE if single else mean <= GRAPH_LSB
        rows.append(Emulated(what, name, largest, mean, OPERATOR_LSB if single else GRAPH_LSB, good))
    return rows, reference


def emulation_findings(results: Sequence[Emulated]) -> list[ArtifactError]:
    """Those that are out of bounds."""
    return [
        _finding(
            f"{r.what}, {r.output}",
            f"at most {r.bound:g} steps"
            + (", and half of the values less than one" if r.what.startswith("operator") else " in the mean"),
            f"{r.max_lsb:.2f} at most, {r.mean_lsb:.3f} in the mean",
        )
        for r in results
        if not r.passed
    ]


def _finding(where: str, expected: object, found: object) -> ArtifactError:
    return ArtifactError(Code.DATA_DECODER, where=where, expected=str(expected), found=str(found))


def _own(artifact: Artifact, entry: Decoder) -> Graphs:
    if max(entry.tiles.rows, entry.tiles.columns) > LARGEST_EMULATED_SIDE:
        raise UsageError(
            "the artifact's graphs are too large for the emulator", where=str(artifact.path),
            expected=f"at most {LARGEST_EMULATED_SIDE} latent pixels each way",
            found=f"{entry.tiles.rows} × {entry.tiles.columns}",
            fix="add --vae PATH: graphs of 4 × 4 latent pixels are then made with the artifact's encodings",
        )  # fmt: skip
    return Graphs(
        *(tuple(onnx.load_model_from_string(artifact.opaque(g.model)) for g in entry.variant(v)) for v in VARIANTS)
    )


def _small(entry: Decoder, encodings: Encodings, vae: Path) -> Graphs:
    with open_same(vae, entry.vae_sha256) as decoder:
        floats = [
            tuple(
                graph.model()
                for graph in stage_graphs(
                    decoder, v, EMULATED_SIDE, EMULATED_SIDE, [g.stages for g in entry.variant(v)]
                )
            )
            for v in VARIANTS
        ]
    return quantise(Graphs(*floats), encodings)


def _noise(rng: np.random.Generator, port: quantised_ports.Port, *, apart: bool) -> Codes:
    """All codes, each as likely. ``apart``: those well above zero only, for what x / 0 gives is nobody's promise."""
    last = np.iinfo(port.encoding.dtype).max
    least = min(port.encoding.zero_point + last // 8, last) if apart else 0
    return rng.integers(least, last + 1, port.shape).astype(port.encoding.dtype)
