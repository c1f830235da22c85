"""Who turns a decoder's graphs into binaries for the phone's NPU: this machine's compiler, AI Hub, or nobody."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from exporters.aihub import service as aihub
from exporters.aihub.options import AiHubOptions
from exporters.qnn import available
from exporters.qnn import compile as local
from exporters.qnn.errors import QnnError
from exporters.qnn.metadata import GraphInfo, Metadata
from exporters.qnn.options import GIB, Limits, QnnOptions
from hvdc.artifact.decoder import Backend, Binary, BinaryGraph
from hvdc.config import CompileConfig
from hvdc.errors import UsageError
from hvdc.pipeline.decoder_hosted import compile_hosted
from hvdc.pipeline.decoder_parts import BINARY, binary_of, file_name
from hvdc.progress import Progress

Say = Callable[[str], None]

_RAISE = {"time": "--decoder-minutes", "memory": "--decoder-memory-gib"}


def limits(minutes: float, memory_gib: float) -> Limits:
    """What one process of the compiler may use. Raises QnnError for what is not above zero."""
    return Limits(seconds=60 * minutes, memory_bytes=int(memory_gib * GIB))


def require_backend(backend: Backend) -> None:
    """Before anything is computed. Raises UsageError."""
    why = available.why_not() if backend != "onnx" else ""
    if why:  # AI Hub's binaries are read back with the same libraries before they are believed
        raise UsageError(
            "this machine cannot compile for the phone's NPU, or read what was compiled elsewhere",
            where=f"--decoder-backend {backend}", found=why,
            fix="pip install 'hvdc[qnn]', or --decoder-backend onnx for an artifact that decodes on a host only",
        )  # fmt: skip
    if backend == "aihub" and (why := aihub.why_not()):
        raise UsageError("Qualcomm AI Hub cannot be used", where="--decoder-backend aihub", found=why)


def identity(config: CompileConfig) -> dict[str, Any]:
    """What of a backend decides the bytes that it makes. Raises UsageError for options that the target has not."""
    if config.decoder_backend == "qnn":
        return {"options": qnn_options(config).to_json(), "toolchain": asdict(available.toolchain())}
    return {"options": hosted_options(config).to_json()} if config.decoder_backend == "aihub" else {}


def qnn_options(config: CompileConfig) -> QnnOptions:
    """Raises UsageError: more VTCM than the target has."""
    target = config.described_target()
    most = target.vtcm_bytes.value >> 20
    vtcm_mb = most if config.decoder_vtcm_mb is None else config.decoder_vtcm_mb
    if vtcm_mb > most:
        raise UsageError(
            "the target has less VTCM",
            where="decoder_vtcm_mb",
            expected=f"at most {most} MiB",
            found=f"{vtcm_mb} MiB",
            fix="leave it out to take all",
        )
    return QnnOptions(target.soc_model, target.arch, vtcm_mb, config.decoder_optimization, config.decoder_share_weights)


def hosted_options(config: CompileConfig) -> AiHubOptions:
    """The same for a phone in Qualcomm's cloud. Raises UsageError: more VTCM than the target has."""
    own = qnn_options(config)
    return AiHubOptions(soc=own.soc, arch=own.arch, vtcm_mb=own.vtcm_mb, optimization=own.optimization)


def compile_binaries(
    config: CompileConfig,
    folder: Path,
    graph_bytes: Mapping[str, int],
    what: str,
    limits: Limits,
    progress: Progress,
    say: Say,
) -> tuple[dict[str, str], tuple[Binary, ...]]:
    """The graphs ``NAME.onnx`` of a folder as one binary beside them, or without shared weights as one for each.

    ``graph_bytes``: of each graph, in order, the memory that it is predicted to need. Returns the SHA-256 of each
    binary's file by its tensor, and the manifest's entries. Raises QnnError, HvdcError.
    """
    parts = {BINARY: list(graph_bytes)} if config.decoder_share_weights else {binary_of(n): [n] for n in graph_bytes}
    hashes, made = {}, []
    progress.start(f"compiling {what} for the NPU", len(parts), len(parts), unit="binaries")
    try:
        for tensor, names in parts.items():
            graphs = [(name, folder / f"{name}.onnx") for name in names]
            predicted = max(graph_bytes[name] for name in names)
            compiled = _hosted if config.decoder_backend == "aihub" else _local
            sha256, entry = compiled(config, graphs, tensor, folder, predicted, limits, say)
            hashes[tensor] = sha256
            made.append(entry)
            progress.advance(1)
    finally:
        progress.finish()
    return hashes, tuple(made)


def _local(
    config: CompileConfig, graphs: list[tuple[str, Path]], tensor: str, folder: Path, predicted: int, limits: Limits,
    say: Say,
) -> tuple[str, Binary]:  # fmt: skip
    options = qnn_options(config)
    try:
        made = local.compile_graphs(graphs, folder / file_name(tensor), options, limits)
    except QnnError as error:
        for name, path in graphs:  # it is gone when the error is read
            error.where = error.where.replace(f"graph {name!r}, {path}", f"graph {name}")
        error.where = error.where.replace(f"{folder}{os.sep}", "")
        if option := _RAISE.get(error.stopped):
            quicker = "" if options.optimization == 1 else "--set decoder_optimization=1 or "
            error.fix = f"raise {option}, or choose {quicker}a smaller --decoder-tile"
        raise
    say(
        f"compiled in {made.seconds:.0f} s with {made.peak_rss_bytes / GIB:.2f} GiB: {made.size_bytes:,} bytes for "
        f"soc {made.metadata.soc}, v{made.metadata.arch}"
    )
    if not made.reproducible:
        say("this kernel loads libraries at changing addresses; compiling again may give a few other bytes")
    inside = [(g.name, g.name_in_binary, g.info) for g in made.graphs]
    return made.sha256, _binary(tensor, made.metadata, inside, predicted, reproducible=made.reproducible)


def _hosted(
    config: CompileConfig, graphs: list[tuple[str, Path]], tensor: str, folder: Path, predicted: int, limits: Limits,
    say: Say,
) -> tuple[str, Binary]:  # fmt: skip
    """Submits, links, waits, downloads."""
    made = compile_hosted(graphs, folder / file_name(tensor), hosted_options(config), state_of(folder.parent), say)
    assert made.metadata is not None  # noqa: S101 - compile_hosted saw to it
    inside = [(g.name, g.name_in_binary, g.info) for g in made.graphs if g.info is not None]
    return made.sha256, _binary(tensor, made.metadata, inside, predicted, reproducible=False)


def state_of(cache: Path) -> Path:
    """The file of jobs that were submitted to AI Hub."""
    return cache / "aihub.json"


def _binary(
    tensor: str, m: Metadata, graphs: Sequence[tuple[str, str, GraphInfo]], predicted: int, *, reproducible: bool
) -> Binary:
    return Binary(
        binary=tensor, build_id=m.build_id, core_api=m.core_api, backend_api=m.backend_api,
        blob_version=m.blob_version, soc=m.soc, arch=m.arch, weights_shared=len(graphs) > 1,
        graphs=tuple(
            BinaryGraph(
                graph=name, name_in_binary=inside, optimization=info.optimization, vtcm_bytes=info.vtcm_bytes,
                spill_fill_bytes=info.spill_fill_bytes,
            )
            for name, inside, info in graphs
        ),
        predicted_graph_bytes=predicted, reproducible=reproducible, checks=("metadata",),
    )  # fmt: skip
