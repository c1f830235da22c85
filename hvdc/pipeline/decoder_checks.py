"""Proofs about a decoder: its graphs are what the manifest says; its binaries too, and they compute the same.

What is about binaries needs Qualcomm's libraries. A binary holds no checksum and the libraries believe whatever it
says, so it is only given to them after its SHA-256 was compared. On the emulator the same graphs are compiled with the
same options, one binary each: it cannot load one whose graphs share weights. Nothing here says that a phone loads a
binary.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, shape_inference

from exporters.decoder.checkpoint import DecoderCheckpoint
from exporters.decoder.graphs import stage_graphs
from exporters.qnn.available import toolchain, why_not
from exporters.qnn.emulate import Runs, run_graph
from exporters.qnn.errors import QnnError
from exporters.qnn.metadata import Metadata, TensorInfo, read_metadata
from exporters.qnn.options import Limits, QnnOptions
from hvdc.artifact.codes import Code
from hvdc.artifact.decoder import Binary, Decoder
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.reader import Artifact
from hvdc.errors import UsageError
from hvdc.pipeline.decoder_encodings import OBSERVED_SIDE, Float32Array, Quantised, open_same
from hvdc.pipeline.decoder_graphs import port_text, read_graph, read_graphs, tensor_text
from hvdc.pipeline.decoder_operators import single_operators
from hvdc.pipeline.decoder_trials import Emulated, Trial, compared, graph_trials, operator_trials, written
from hvdc.progress import Progress
from quant.decoder.encodings import CODES, Encodings
from quant.decoder.errors import DecoderQuantError
from quant.decoder.graph import VARIANTS, Graphs, Key
from quant.decoder.qdq import quantise

LARGEST_EMULATED_SIDE = OBSERVED_SIDE
"""Latent pixels of a tile, each way, that the emulator runs in a minute with a small decoder; the probe has so many."""
EMULATED_SIDE = 4
"""Latent pixels, each way, of the graphs that are made for the emulator where the artifact's own are too large."""
EMULATOR_LIMITS = Limits(seconds=3600)
"""Of one graph: in full size, 4 × 4 latent pixels of the first latent frame took it a minute."""
EMULATOR_JOBS = 4
"""Graphs that are emulated at a time, at most: each on one core, and in up to some GiB."""


def port_findings(artifact: Artifact) -> list[ArtifactError]:
    """What is wrong with each ONNX graph: the first thing that `read_graph` finds. Raises ArtifactError DATA_HASH."""
    entry = artifact.manifest.decoder
    found: list[ArtifactError] = []
    for graph in entry.graphs if entry is not None else ():
        try:
            read_graph(artifact, graph)
        except ArtifactError as error:
            if error.code is not Code.DATA_DECODER:
                raise
            found.append(error)
    return found


def metadata_findings(artifact: Artifact) -> list[ArtifactError]:
    """What each binary says of itself against what the manifest says of it.

    Raises:
        ArtifactError: DATA_HASH.
        QnnError: the libraries crashed, or reached a limit: that says nothing about the binary.
    """
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
                if not _refused(error):
                    error.where = error.where.replace(str(path), binary.binary)  # the file is gone when it is read
                    raise
                found.append(_finding(binary.binary, "a context binary", str(error.what)))
                continue
        found += [
            _finding(f"{binary.binary}: {place}", due, held)
            for place, due, held in _differences(entry, binary, metadata)
        ]
    return found


def _refused(error: QnnError) -> bool:
    """Whether `read_metadata` found fault with the file. All that it says of a file names a context binary; a crash, a
    limit and libraries that do not work are told otherwise, and so is whatever is not known yet."""
    return "context binary" in error.what


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
            ours, theirs = sorted(map(port_text, due_ports)), sorted(map(_of_tensor, tensors))
            yield from ((f"{graph.graph}.{kind}", a, b) for a, b in zip(ours, theirs, strict=False) if a != b)
            if len(ours) != len(theirs):
                yield f"{graph.graph}.{kind}", len(ours), len(theirs)


def _of_tensor(tensor: TensorInfo) -> str:
    dtype = tensor.dtype.replace("ufixed", "uint")
    return tensor_text(tensor.name, dtype, tensor.dims, tensor.scale, -(tensor.offset or 0))


def require_libraries() -> None:
    """What the emulator is part of. Raises UsageError."""
    if why := why_not_read():
        raise UsageError(
            "the emulator is not available on this machine", found=why,
            fix="pip install 'hvdc[qnn]' on x86-64 Linux, or leave --emulate out: all else is checked without it",
        )  # fmt: skip


def other_build(entry: Decoder | None) -> str:
    """That an entry's binaries are of another build of the toolchain than the emulator, as a sentence; else ``""``.

    Then it proves nothing about them. Raises QnnError where the libraries do not load.
    """
    if entry is None or not entry.binaries:
        return ""
    own = toolchain().build_id
    others = sorted({binary.build_id for binary in entry.binaries} - {own})
    return f"is of build {own}, the binaries of {', '.join(others)}: it says nothing about them" if others else ""


def require_emulator(artifact: Artifact, vae: Path | None) -> None:
    """Before anything takes long. Raises UsageError: no decoder, no QNN libraries that load, or a tile that is too
    large while ``vae`` is not given."""
    entry = artifact.manifest.decoder
    if entry is None:
        raise UsageError(
            "the artifact holds no decoder to emulate",
            where=str(artifact.path),
            fix="compile it with --vae, or leave out --emulate",
        )
    require_libraries()
    if vae is None and too_large(entry):
        raise UsageError(
            "the artifact's graphs are too large for the emulator", where=str(artifact.path),
            expected=f"at most {LARGEST_EMULATED_SIDE} latent pixels each way",
            found=f"{entry.tiles.rows} × {entry.tiles.columns}",
            fix="add --vae PATH: graphs of 4 × 4 latent pixels are then made with the artifact's encodings",
        )  # fmt: skip


def emulate(artifact: Artifact, vae: Path | None, progress: Progress) -> list[Emulated]:
    """`emulate_graphs` of an artifact, compiled as its binary was: its own graphs, or with ``vae`` `small_graphs`.

    Raises:
        UsageError: as `require_emulator`.
        ArtifactError: DATA_DECODER for graphs, encodings or a probe that cannot be used; DATA_HASH.
        HvdcError: another autoencoder than the artifact's. CheckpointError, QnnError.
    """
    require_emulator(artifact, vae)
    entry = artifact.manifest.decoder
    assert entry is not None  # noqa: S101 - it was required
    quantised = read_encodings(artifact, entry)
    try:
        if vae is None:
            graphs = read_graphs(entry, artifact.opaque)
        else:
            with open_same(vae, entry.vae_sha256) as decoder:
                graphs = small_graphs(entry, quantised.encodings, decoder)
    except DecoderQuantError as error:
        raise _finding(entry.encodings, "the encodings of all tensors", error) from error
    return emulate_graphs(graphs, quantised.probe, _options(entry), progress)


def emulate_graphs(graphs: Graphs, probe: Float32Array, options: QnnOptions, progress: Progress) -> list[Emulated]:
    """Single operators and whole graphs on the x86 emulator of the HTP, against exact references.

    Operators, one of each kind of all graphs, get noise. Graphs get the probe as `graph_trials` says. They run in as
    many processes as there are cores, up to `EMULATOR_JOBS`. Raises QnnError.
    """
    models = [model for _, model in graphs]
    operators = single_operators(models)
    work = {model.graph.name: _work(model) for model in (*models, *operators.values())}
    progress.start("emulating", sum(work.values()), len(work), unit="million values")
    runs = Runs()

    def job(trial: Trial) -> list[Emulated]:
        with written(trial.model) as path:
            try:
                found = run_graph(path, trial.inputs, options, EMULATOR_LIMITS, runs)
            except QnnError as error:
                error.where = error.where.replace(str(path), trial.what)  # the file is gone when it is read
                raise
        progress.advance(work[trial.model.graph.name])
        progress.item_done(trial.what)
        return compared(trial, found)

    pool = ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), EMULATOR_JOBS), thread_name_prefix="emulator")
    try:  # graphs take longest, so they begin
        trials = chain(graph_trials(graphs, probe), operator_trials(operators))
        begun = [pool.submit(job, trial) for trial in trials]
        ended = wait(begun, return_when=FIRST_EXCEPTION).done  # all of them, or one has failed: it is asked first
        return [row for one in sorted(begun, key=lambda one: one not in ended) for row in one.result()]
    finally:
        runs.end()
        pool.shutdown(cancel_futures=True)
        progress.finish()


def emulation_findings(results: Sequence[Emulated]) -> list[ArtifactError]:
    """Those that are out of bounds."""
    return [_finding(f"{row.what}, {row.output}", *row.in_words()) for row in results if not row.passed]


def _finding(where: str, expected: object, found: object) -> ArtifactError:
    return ArtifactError(Code.DATA_DECODER, where=where, expected=str(expected), found=str(found))


def read_encodings(artifact: Artifact, entry: Decoder) -> Quantised:
    """What was measured of an artifact's decoder. Raises ArtifactError DATA_DECODER if it cannot be used, DATA_HASH."""
    data = artifact.opaque(entry.encodings)
    try:
        held = Quantised.from_json(data.decode("utf-8"))
        strange = next(_strange(entry, held.encodings), None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # whatever else JSON may hold
        found = f"{type(error).__name__}: {error}"
        raise _finding(entry.encodings, "encodings and a probe, as hvdc compile writes them", found) from error
    if strange is not None:
        raise _finding(f"{entry.encodings}: {strange[0]}", *strange[1:])
    channels, probe = len(entry.latents_mean), held.probe
    if probe.ndim != 4 or probe.shape[0] != channels or probe.shape[1] < 2 or not probe.size:
        due = f"[{channels}, 2, rows, columns]"
        raise _finding(f"{entry.encodings}: probe", due, list(probe.shape))
    if not np.isfinite(probe).all():
        raise _finding(f"{entry.encodings}: probe", "finite numbers", "NaN or Inf")
    return held


def _strange(entry: Decoder, encodings: Encodings) -> Iterator[tuple[str, object, object]]:
    """Tensors whose encoding nobody can use, and ports that have another. Raises KeyError, TypeError, ValueError."""
    scales = np.finfo(np.float32)
    for name, group in encodings.group_of.items():
        for e in (encodings.pairs[group].stored, encodings.pairs[group].other):
            if e.zero_point not in range(CODES[e.dtype]) or not scales.smallest_normal <= e.scale <= scales.max:
                yield name.name, "an encoding", e
    for graph in entry.graphs:
        for port in (*graph.inputs, *graph.outputs):
            e = encodings.stored(Key(graph.variant, port.name))
            if (e.scale, e.zero_point, e.dtype) != (port.scale, port.zero_point, port.dtype):
                yield f"{graph.name}.{port.name}", f"{port.dtype} scale {port.scale} zero {port.zero_point}", e


def _options(entry: Decoder) -> QnnOptions:
    """Those of the binary; without one, those that `hvdc compile` has by default. Raises QnnError: an unknown SoC."""
    if not entry.binaries:
        return QnnOptions()
    binary, graph = entry.binaries[0], entry.binaries[0].graphs[0]
    return QnnOptions(binary.soc, binary.arch, graph.vtcm_bytes >> 20, graph.optimization)


def emulated_graphs(
    entry: Decoder, encodings: Encodings, decoder: DecoderCheckpoint, read: Callable[[str], bytes]
) -> Graphs:
    """What the emulator runs in proof of an entry: its own graphs, whose files ``read`` gives, or where those are too
    large `small_graphs`."""
    return small_graphs(entry, encodings, decoder) if too_large(entry) else read_graphs(entry, read)


def too_large(entry: Decoder) -> bool:
    """Whether the emulator would need too long for a tile."""
    return max(entry.tiles.rows, entry.tiles.columns) > LARGEST_EMULATED_SIDE


def small_graphs(entry: Decoder, encodings: Encodings, decoder: DecoderCheckpoint) -> Graphs:
    """The graphs of an entry with tiles of 4 × 4 latent pixels, in the same stages and with the same integers.

    ``decoder`` is the entry's. Raises DecoderQuantError: a tensor without an encoding.
    """
    floats = [
        tuple(
            graph.model()
            for graph in stage_graphs(decoder, v, EMULATED_SIDE, EMULATED_SIDE, [g.stages for g in entry.variant(v)])
        )
        for v in VARIANTS
    ]
    return quantise(Graphs(*floats), encodings)


def _work(model: onnx.ModelProto) -> int:
    """How long the emulator needs, to compare by: the codes that a graph computes, in millions. One for its start."""
    types = [value.type.tensor_type for value in shape_inference.infer_shapes(model).graph.value_info]
    codes = [t for t in types if t.elem_type in (TensorProto.UINT8, TensorProto.UINT16)]
    return 1 + sum(math.prod(int(d.dim_value) for d in t.shape.dim) for t in codes) // 10**6
