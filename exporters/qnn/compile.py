"""Graphs become one context binary, or nothing: strict, within limits, and on one machine the same bytes each time.

The work is done in a folder beside the output and in a process of its own; only a binary that was checked against
what was asked for is moved to its name.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from exporters.durable import hash_and_sync, sync_folder
from exporters.qnn import graphs as qdq
from exporters.qnn import messages, process
from exporters.qnn.available import Toolchain, library_folder, toolchain
from exporters.qnn.errors import QnnError
from exporters.qnn.metadata import GraphInfo, Metadata, TensorInfo, read_metadata
from exporters.qnn.options import Limits, QnnOptions

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_DEFAULT_OPTIONS = QnnOptions()
_DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class CompiledGraph:
    """``name`` is the caller's, ``name_in_binary`` what a runtime asks the context for: the library makes it up."""

    name: str
    name_in_binary: str
    info: GraphInfo


@dataclass(frozen=True)
class Compiled:
    """A finished context binary. ``seconds`` and ``peak_rss_bytes`` are those of the compiling process.

    ``reproducible``: compiling again on this machine gives the same bytes; so do other numbers of CPUs, other limits of
    the shell, and other packages beside these. Under another kernel or build of Python, an address that the library
    writes into the binaries of some graphs may be another one: eight bytes, of no use to a phone. False where the
    kernel refuses to load libraries at fixed addresses, as Docker's default rules do.
    """

    path: Path
    size_bytes: int
    sha256: str
    graphs: tuple[CompiledGraph, ...]
    metadata: Metadata
    options: QnnOptions
    toolchain: Toolchain
    seconds: float
    peak_rss_bytes: int
    reproducible: bool

    def to_json(self) -> dict[str, Any]:
        """As plain values; ``path`` becomes the file's name."""
        return {**asdict(self), "path": self.path.name}


def compile_graphs(
    graphs: Sequence[tuple[str, Path]],
    output: Path,
    options: QnnOptions = _DEFAULT_OPTIONS,
    limits: Limits = _DEFAULT_LIMITS,
) -> Compiled:
    """Compiles QDQ graphs, given as (name, ONNX file), to one context binary at ``output``.

    Several graphs need ``options.share_weights``. The same graphs, names and options give the same bytes, see
    `Compiled.reproducible`. A file that was at ``output`` is replaced when, and only when, the new one is complete.
    An operator without Q and DQ around it is compiled too, in floating point: to prevent that is up to the exporter
    of the graph.

    Raises:
        QnnError: the backend is not available, a graph or option is refused, the graph is too large, an operator
            is not supported, a limit was reached, or the binary is not what was asked for. Nothing is left behind.
    """
    models = {name: qdq.load(path) for name, path in _named(graphs, options)}
    where = {name: f"graph {name!r}, {path}" for name, path in graphs}
    signatures = {}
    for name, model in models.items():
        if qdq.is_context(model):
            raise QnnError("this graph is compiled already", where=where[name], fix="give the QDQ graph it came from")
        signatures[name] = qdq.signature(model, where[name])
    libraries, tools = library_folder(), toolchain()
    if not output.parent.is_dir():
        raise QnnError("the output's folder does not exist", where=str(output.parent), fix="make the folder")
    if output.is_dir():
        raise QnnError("the output is a folder", where=str(output), fix="give a file name")
    everything = "; ".join(where.values())
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".partial", dir=output.parent)).resolve()
        try:
            for name, model in models.items():
                (folder / f"{name}.onnx").write_bytes(qdq.serialised(model, where[name]))
            ended = process.run(
                "compile",
                {
                    "libraries": str(libraries),
                    "folder": str(folder),
                    "names": list(models),
                    "options": options.to_json(),
                },
                limits,
                keep=messages.is_wanted,
            )
            finders = [qdq.finder(model) for model in models.values()]
            messages.value_of(
                ended, "compiling", everything, lambda node: next(filter(None, (f(node) for f in finders)), None)
            )
            binary, names = _collect(folder, list(models), where)
            metadata = read_metadata(binary)
            compiled = check_as_asked(metadata, names, signatures, options, everything)
            sha256 = hash_and_sync(binary)
            size = binary.stat().st_size
            binary.replace(output)
            sync_folder(output.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise QnnError(
            f"the binary cannot be written: {error.strerror or error}",
            where=str(output),
            fix="check the folder's permissions and free space",
        ) from error
    return Compiled(
        path=output,
        size_bytes=size,
        sha256=sha256,
        graphs=compiled,
        metadata=metadata,
        options=options,
        toolchain=tools,
        seconds=round(ended.seconds, 3),
        peak_rss_bytes=ended.peak_rss_bytes,
        reproducible=ended.fixed_addresses,
    )


def _named(graphs: Sequence[tuple[str, Path]], options: QnnOptions) -> Sequence[tuple[str, Path]]:
    """The graphs, if their number and names can be used."""
    names = [name for name, _ in graphs]
    if not names:
        raise QnnError("there is no graph to compile", fix="give at least one (name, ONNX file)")
    for name in names:
        if not _NAME.fullmatch(name):
            raise QnnError(
                "this name cannot be used for a graph",
                expected="a letter, then up to 63 letters, digits, _ or -",
                found=repr(name),
                fix="choose another name",
            )
    if len({name.lower() for name in names}) != len(names):
        raise QnnError("two graphs have the same name", found=", ".join(names), fix="give each a name of its own")
    if len(names) > 1 and not options.share_weights:
        raise QnnError(
            "several graphs in one binary always share their weights",
            found=f"{len(names)} graphs without share_weights",
            fix="set share_weights, or compile each graph into a binary of its own",
        )
    if len(names) == 1 and options.share_weights:
        raise QnnError("one graph has nobody to share weights with", fix="leave share_weights off, or add a graph")
    return graphs


def _collect(folder: Path, names: Sequence[str], where: dict[str, str]) -> tuple[Path, dict[str, str]]:
    """The one binary of the folder, and each graph's name in it."""
    parts = {}
    for name in names:
        path = folder / f"{name}.context.onnx"
        if not path.is_file():
            raise QnnError("the compiler wrote no context", where=where[name], fix="see the log")
        parts[name] = qdq.wrapper_parts(qdq.load(path), where[name])
    files = {file for file, _ in parts.values()}
    found = sorted(path.name for path in folder.glob("*.bin"))
    if len(files) != 1 or found != sorted(files):
        raise QnnError(
            "the compiler wrote another number of binaries than one",
            where="; ".join(where.values()),
            expected="one binary that every graph refers to",
            found=", ".join(found) or "none",
            fix="give graphs that share weights, or compile them one by one",
        )
    return folder / files.pop(), {name: inside for name, (_, inside) in parts.items()}


def check_as_asked(
    metadata: Metadata, names: dict[str, str], signatures: dict[str, qdq.Signature], options: QnnOptions, where: str
) -> tuple[CompiledGraph, ...]:
    """Compares what the binary says of itself with what was asked for: the library takes wrong options silently.

    ``names`` gives each of our graphs its name in the binary; ``signatures`` are by our names. Raises QnnError.
    """
    by_name = {graph.name: graph for graph in metadata.graphs}
    pairs: list[tuple[str, Any, Any]] = [
        ("SoC", options.soc, metadata.soc),
        ("architecture", options.arch, metadata.arch),
        ("graphs", sorted(names.values()), sorted(by_name)),
    ]
    for name, inside in names.items():
        if inside not in by_name:
            continue
        graph = by_name[inside]
        pairs += [
            (f"VTCM bytes of {name}", options.vtcm_mb << 20, graph.vtcm_bytes),
            (f"optimisation level of {name}", options.optimization, graph.optimization),
            (f"inputs of {name}", *_described(signatures[name].inputs, graph.inputs)),
            (f"outputs of {name}", *_described(signatures[name].outputs, graph.outputs)),
        ]
    for what, expected, found in pairs:
        if expected != found:
            raise QnnError(
                f"the binary is not what was asked for: {what}",
                where=where,
                expected=str(expected),
                found=str(found),
                fix="this is a fault of the compiler or of this package: report it with the graph",
            )
    return tuple(CompiledGraph(name, inside, by_name[inside]) for name, inside in names.items())


def _described(ports: Sequence[qdq.Port], tensors: Sequence[TensorInfo]) -> tuple[list[str], list[str]]:
    """Ports as the model and as the binary have them, by name: the order in the binary is not ONNX's.

    Scale and zero point are compared where the model has them; QNN's offset is the zero point with the other sign.
    """
    scaled = {port.name for port in ports if port.scale is not None}

    def phrase(name: str, dtype: str, dims: tuple[int, ...], scale: float | None, zero_point: int | None) -> str:
        return f"{name} {dtype} {list(dims)}" + (f" scale {scale} zero {zero_point}" if name in scaled else "")

    return (
        sorted(phrase(p.name, p.dtype, p.dims, p.scale, p.zero_point) for p in ports),
        sorted(phrase(t.name, t.dtype.replace("ufixed", "uint"), t.dims, t.scale, -(t.offset or 0)) for t in tensors),
    )
