"""A decoder compiled by Qualcomm AI Hub, and run on a phone of its own: never tried for real, as all of that package.

On the phone the graphs themselves run, in the artifact's size and out of its binary. What they are given, and the
bounds of what they give, are those of whole graphs on the emulator: `hvdc.pipeline.decoder_trials`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters.aihub import check
from exporters.aihub.compile import Accept, AiHubCompiled, AiHubGraph, compile_graphs
from exporters.aihub.device import GraphProfile, Inference, KeptBinary, infer, profile
from exporters.aihub.errors import AiHubError
from exporters.aihub.options import AiHubOptions, Waiting
from exporters.aihub.progress import Progress as Step
from exporters.qnn.errors import QnnError
from hvdc.artifact.decoder import Binary, Check, Decoder
from hvdc.errors import HvdcError, UsageError
from hvdc.files import file_sha256
from hvdc.pipeline.decoder_encodings import Float32Array
from hvdc.pipeline.decoder_graphs import read_graphs
from hvdc.pipeline.decoder_parts import files_in
from hvdc.pipeline.decoder_trials import Emulated, Trial, compared, graph_trials
from hvdc.progress import Progress
from quant.decoder.graph import VARIANTS

Say = Callable[[str], None]

_PATIENCE = Waiting()


@dataclass(frozen=True)
class OnPhone:
    """What a hosted phone did: how long each graph takes, and each output against the exact reference."""

    profiles: tuple[GraphProfile, ...]
    compared: tuple[Emulated, ...]

    @property
    def passed(self) -> bool:
        """Whether something was compared, and all of it is within its bounds."""
        return bool(self.compared) and all(output.passed for output in self.compared)

    @property
    def checks(self) -> tuple[Check, ...]:
        """What an artifact may claim of its binaries after this."""
        return ("device",) if self.passed else ()

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "passed": self.passed,
            "profiles": [one.to_json() for one in self.profiles],
            "compared": [output.to_json() for output in self.compared],
        }


def compile_hosted(
    graphs: Sequence[tuple[str, Path]],
    output: Path,
    options: AiHubOptions,
    state: Path,
    say: Say,
    waiting: Waiting = _PATIENCE,
    accept: Accept = check.is_binary,
) -> AiHubCompiled:
    """Submits, links, waits, downloads; every graph of the result was read back. ``accept`` as in `compile_graphs`.

    Raises:
        AiHubError: as `compile_graphs`; ``too_large`` where a smaller tile may do.
        HvdcError: the binary cannot be read on this machine; it is not left at ``output``.
    """
    made = compile_graphs(graphs, output, options, state, _teller(say), waiting, accept)
    if made.metadata is None or any(graph.info is None for graph in made.graphs):
        output.unlink()
        raise HvdcError("what Qualcomm AI Hub compiled could not be read back", fix="pip install 'hvdc[qnn]'")
    return made


def run_on_phone(
    entry: Decoder,
    folder: Path,
    probe: Float32Array,
    options: AiHubOptions,
    state: Path,
    progress: Progress,
    say: Say,
    waiting: Waiting = _PATIENCE,
    accept: Accept = check.is_binary,
) -> OnPhone:
    """Times each graph of a decoder's binaries, then runs each on the probe and compares all outputs.

    ``folder`` holds the decoder's files, whose hashes were compared; ``probe`` is float32 ``[z, 2, rows, columns]``,
    used as `graph_trials` says.

    Raises:
        UsageError: the decoder has no binary.
        ArtifactError: DATA_DECODER for a graph that is not what the entry says of it.
        AiHubError: as `compile_graphs`, or the phone returned other outputs than the graph has.
        QnnError: the reference cannot be computed. OSError: a file is missing.
    """
    files = files_in(entry, folder)
    kept = [kept_binary(binary, files[binary.binary], accept) for binary in entry.binaries]
    if not kept:
        raise UsageError(
            "the decoder has no binary to run on a phone", where=str(folder), fix="--decoder-backend qnn or aihub"
        )
    graphs = read_graphs(entry, lambda name: files[name].read_bytes())
    names = [graph.name for variant in VARIANTS for graph in entry.variant(variant)]
    holder = {graph.name: binary for binary in kept for graph in binary.graphs}
    tell = _teller(say)
    profiles: list[GraphProfile] = []
    rows: list[Emulated] = []
    progress.start("timing on a hosted phone", len(holder), len(kept), unit="graphs")
    try:
        for binary in kept:
            profiles += profile(binary, options, state, tell, waiting)
            progress.advance(len(binary.graphs))
    finally:
        progress.finish()
    progress.start("comparing with a hosted phone", len(holder), len(holder), unit="graphs")
    try:
        for name, trial in zip(names, graph_trials(graphs, probe), strict=True):
            rows += _compared(trial, infer(holder[name], trial.inputs, options, state, name, tell, waiting))
            progress.advance(1)
    finally:
        progress.finish()
    return OnPhone(tuple(profiles), tuple(rows))


def kept_binary(binary: Binary, path: Path, accept: Accept = check.is_binary) -> KeptBinary:
    """A binary that an entry describes, to be uploaded; it is read where that is possible. Raises AiHubError."""
    metadata = accept(path, str(path))
    infos = {info.name: info for info in metadata.graphs} if metadata is not None else {}
    graphs = (AiHubGraph(one.graph, one.name_in_binary, infos.get(one.name_in_binary)) for one in binary.graphs)
    return KeptBinary(path, file_sha256(path), tuple(graphs))


def _compared(trial: Trial, found: Inference) -> list[Emulated]:
    """In the reference's order. Raises AiHubError for other outputs than the graph has."""
    try:
        return compared(trial, dict(found.outputs))
    except QnnError as error:
        raise AiHubError(
            f"what the phone returned is not what the graph gives: {error.what}",
            where=f"{trial.what}, job {found.job_id}, {found.url}",
            expected=error.expected,
            found=error.found,
            fix="read the job's page; report this with it",
        ) from error


def _teller(say: Say) -> Callable[[Step], None]:
    return lambda step: say(str(step))
