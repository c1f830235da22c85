"""A decoder compiled by Qualcomm AI Hub, and run on a phone of its own: never tried for real, as all of that package.

On the phone the graphs themselves run, in the artifact's size and out of its binary. What they give is held against
the exact reference, within the bounds that hold for whole graphs on the emulator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from exporters.aihub import check
from exporters.aihub.compile import Accept, AiHubCompiled, AiHubGraph, compile_graphs
from exporters.aihub.device import GraphProfile, Inference, KeptBinary, infer, profile
from exporters.aihub.errors import AiHubError
from exporters.aihub.options import AiHubOptions, Waiting
from exporters.aihub.progress import Progress as Step
from exporters.qnn.emulate import compare, run_reference
from exporters.qnn.errors import QnnError
from exporters.qnn.options import GIB, Limits
from hvdc.artifact.decoder import Binary, Check, Decoder, Graph, Port
from hvdc.errors import HvdcError, UsageError
from hvdc.pipeline.decoder_checks import GRAPH_LSB, Emulated
from hvdc.pipeline.decoder_encodings import Float32Array
from hvdc.pipeline.decoder_parts import parts_in
from hvdc.pipeline.progress import Progress
from quant.decoder.encodings import Encoding
from quant.decoder.graph import CACHE, LATENT, NEXT_CACHE, VARIANTS

Say = Callable[[str], None]
Codes = npt.NDArray[Any]

REFERENCE = Limits(seconds=2 * 3600, memory_bytes=32 * GIB)
"""Of the exact reference of one graph: it keeps whole feature maps in float32, and takes minutes in full size."""

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
            "compared": [asdict(output) for output in self.compared],
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

    ``folder`` holds the decoder's files, whose hashes were compared; ``probe`` is float32 ``[z, 2, rows, columns]``.
    Latent frame 0 goes through `first`, frame 1 through `later` with the caches that the reference of `first` wrote:
    no graph's errors are another's. Where the tile is larger than the probe, its edges are repeated.

    Raises:
        UsageError: the decoder has no binary.
        AiHubError: as `compile_graphs`, or the phone returned other outputs than the graph has.
        QnnError: the reference cannot be computed. OSError: a file is missing.
    """
    files = parts_in(entry, folder).files
    kept = [kept_binary(binary, files[binary.binary], accept) for binary in entry.binaries]
    if not kept:
        raise UsageError(
            "the decoder has no binary to run on a phone", where=str(folder), fix="--decoder-backend qnn or aihub"
        )
    holder = {graph.name: binary for binary in kept for graph in binary.graphs}
    tell = _teller(say)
    profiles: list[GraphProfile] = []
    compared: list[Emulated] = []
    progress.start("timing on a hosted phone", len(holder), len(kept), unit="graphs")
    try:
        for binary in kept:
            profiles += profile(binary, options, state, tell, waiting)
            progress.advance(len(binary.graphs))
    finally:
        progress.finish()
    progress.start("comparing with a hosted phone", len(holder), len(holder), unit="graphs")
    try:
        for name, inputs, reference in _references(entry, files, probe):
            compared += _compared(infer(holder[name], inputs, options, state, name, tell, waiting), reference)
            progress.advance(1)
    finally:
        progress.finish()
    return OnPhone(tuple(profiles), tuple(compared))


def kept_binary(binary: Binary, path: Path, accept: Accept = check.is_binary) -> KeptBinary:
    """A binary that an entry describes, to be uploaded; it is read where that is possible. Raises AiHubError."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    metadata = accept(path, str(path))
    infos = {info.name: info for info in metadata.graphs} if metadata is not None else {}
    graphs = (AiHubGraph(one.graph, one.name_in_binary, infos.get(one.name_in_binary)) for one in binary.graphs)
    return KeptBinary(path, sha256, tuple(graphs))


def _references(
    entry: Decoder, files: Mapping[str, Path], probe: Float32Array
) -> Iterator[tuple[str, dict[str, Codes], dict[str, Codes]]]:
    """Of each graph, in the order in which they run: its name, its inputs, and the outputs of the exact reference."""
    values: dict[str, Codes] = {}
    for t, variant in enumerate(VARIANTS):
        graphs: list[Graph] = entry.variant(variant)
        [latent] = [port for port in graphs[0].inputs if port.name == LATENT]
        values[LATENT] = _quantised(latent, probe[None, :, t : t + 1])
        for graph in graphs:
            inputs = {port.name: values[port.name] for port in graph.inputs}
            reference = run_reference(files[graph.model], inputs, REFERENCE)
            yield graph.name, inputs, reference
            values |= reference
        values |= {CACHE + n.removeprefix(NEXT_CACHE): v for n, v in values.items() if n.startswith(NEXT_CACHE)}


def _quantised(port: Port, latent: Float32Array) -> Codes:
    """``[1, z, 1, rows, columns]``, cut or continued to the port's size."""
    rows, columns = port.shape[3:]
    cut = latent[..., :rows, :columns]
    missing = [(0, 0)] * 3 + [(0, rows - cut.shape[3]), (0, columns - cut.shape[4])]
    return Encoding(port.scale, port.zero_point, port.dtype).quantise(np.pad(cut, missing, mode="edge"))


def _compared(found: Inference, reference: Mapping[str, Codes]) -> Iterator[Emulated]:
    """In the reference's order."""
    try:
        differences = compare(reference, found.outputs)
    except QnnError as error:
        raise AiHubError(
            f"what the phone returned is not what the graph gives: {error.what}",
            where=f"graph {found.graph!r}, job {found.job_id}, {found.url}",
            expected=error.expected,
            found=error.found,
            fix="read the job's page; report this with it",
        ) from error
    for name, apart in differences.items():
        steps = 1 if reference[name].dtype == np.uint8 else 256
        mean = apart.mean_lsb / steps
        yield Emulated(f"graph {found.graph}", name, apart.max_lsb / steps, mean, GRAPH_LSB, mean <= GRAPH_LSB)


def _teller(say: Say) -> Callable[[Step], None]:
    return lambda step: say(str(step))
