"""Who turns a decoder's graphs into a binary for the phone's NPU: this machine's compiler, AI Hub, or nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from exporters.aihub import compile as hosted
from exporters.aihub import device as phone
from exporters.aihub import service as aihub
from exporters.aihub.options import AiHubOptions
from exporters.qnn import available
from exporters.qnn import compile as local
from exporters.qnn.metadata import GraphInfo, Metadata
from exporters.qnn.options import Limits, QnnOptions
from hvdc.artifact.decoder import Backend, Binary, BinaryGraph, Check
from hvdc.config import CompileConfig
from hvdc.errors import HvdcError, UsageError
from hvdc.pipeline.decoder_parts import BINARY, file_name
from hvdc.pipeline.progress import Progress

Say = Callable[[str], None]

LIMITS = Limits(seconds=2 * 3600)
"""The full-size decoder takes minutes at optimisation level 1, and up to ten for each graph at level 3."""


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
    """What of a backend decides the bytes that it makes."""
    if config.decoder_backend == "qnn":
        return {"options": _options(config).to_json(), "toolchain": asdict(available.toolchain())}
    return {"options": _hosted_options(config).to_json()} if config.decoder_backend == "aihub" else {}


def compile_binary(
    config: CompileConfig, folder: Path, names: Sequence[str], what: str, graph_bytes: int, progress: Progress, say: Say
) -> Binary:
    """The graphs ``NAME.onnx`` of a folder as one binary beside them. Raises QnnError, HvdcError."""
    graphs = [(name, folder / f"{name}.onnx") for name in names]
    output = folder / file_name(BINARY)
    progress.start(f"compiling {what} for the NPU", 1, 1, unit="binaries")
    try:
        if config.decoder_backend == "aihub":
            return _hosted(config, graphs, output, folder.parent / "aihub.json", graph_bytes, say)
        made = local.compile_graphs(graphs, output, _options(config), LIMITS)
        progress.advance(1)
    finally:
        progress.finish()
    say(
        f"compiled in {made.seconds:.0f} s with {made.peak_rss_bytes / 2**30:.2f} GiB: {made.size_bytes:,} bytes for "
        f"soc {made.metadata.soc}, v{made.metadata.arch}"
    )
    inside = [(g.name, g.name_in_binary, g.info) for g in made.graphs]
    return _binary(made.metadata, inside, graph_bytes, ("metadata",))


def _options(config: CompileConfig) -> QnnOptions:
    return QnnOptions(optimization=config.decoder_optimization, share_weights=True)


def _hosted_options(config: CompileConfig) -> AiHubOptions:
    return AiHubOptions(optimization=config.decoder_optimization)


def _hosted(
    config: CompileConfig, graphs: list[tuple[str, Path]], output: Path, state: Path, graph_bytes: int, say: Say
) -> Binary:
    """Submits, links, waits, downloads; with `aihub_profile` also runs each graph on a hosted phone."""
    options = _hosted_options(config)
    made = hosted.compile_graphs(graphs, output, options, state, lambda step: say(str(step)))
    if made.metadata is None or any(graph.info is None for graph in made.graphs):
        raise HvdcError("what Qualcomm AI Hub compiled could not be read back", fix="pip install 'hvdc[qnn]'")
    checks: tuple[Check, ...] = ("metadata",)
    if config.aihub_profile:
        for result in phone.profile(made, options, state, lambda step: say(str(step))):
            say(f"{result.graph} takes {result.inference_us / 1000:.1f} ms on {result.device}: {result.url}")
        checks += ("device",)
    inside = [(g.name, g.name_in_binary, g.info) for g in made.graphs if g.info is not None]
    return _binary(made.metadata, inside, graph_bytes, checks)


def _binary(
    m: Metadata, graphs: Sequence[tuple[str, str, GraphInfo]], graph_bytes: int, checks: tuple[Check, ...]
) -> Binary:
    return Binary(
        binary=BINARY, build_id=m.build_id, core_api=m.core_api, backend_api=m.backend_api,
        blob_version=m.blob_version, soc=m.soc, arch=m.arch, weights_shared=True,
        graphs=tuple(
            BinaryGraph(
                graph=name, name_in_binary=inside, optimization=info.optimization, vtcm_bytes=info.vtcm_bytes,
                spill_fill_bytes=info.spill_fill_bytes,
            )
            for name, inside, info in graphs
        ),
        predicted_graph_bytes=graph_bytes, checks=checks,
    )  # fmt: skip
