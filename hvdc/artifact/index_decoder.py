"""The checks of a decoder's own sections of ``index.bin``, in the order of docs/FORMAT.md."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from hvdc.artifact import decoder_records, records
from hvdc.artifact.codes import Code
from hvdc.artifact.index_tables import GRAPH, NAME, PRINTABLE, Index, is_text, refuse, string_at
from hvdc.artifact.records import NONE, DecoderBackend, DecoderVariant, PortDType, TensorKind


def check_decoder(index: Index) -> None:
    """Raises ArtifactError; nothing to check without a decoder."""
    if index.decoder is not None:
        _check_record(index, index.decoder)
        _check_graphs(index, index.decoder)
        _check_ports(index)
        _check_tensors(index, index.decoder)
        _check_binaries(index, index.decoder)
        _check_names(index)
        _check_shapes(index, index.decoder)
        _check_cuts(index)
        _check_caches(index)


def _check_record(index: Index, d: np.void) -> None:
    """The record agrees with the other sections and the model, and its tiles are possible."""
    counts = [int(d[f]) for f in ("graphs", "ports", "binaries")]
    sizes = ("tile_rows", "tile_columns", "spatial_scale", "temporal_scale")
    _, rows, columns = index.geometry["latent"]
    if (
        int(d["backend"]) not in list(DecoderBackend)
        or not 2 <= counts[0] <= decoder_records.MAX_DECODER_GRAPHS
        or counts[1] > decoder_records.MAX_DECODER_PORTS
        or counts[:2] != [len(index.graphs), len(index.ports)]
        or (counts[2] == 0) != (int(d["backend"]) == DecoderBackend.ONNX)
        or d["channels"] != index.geometry["out_channels"]
        or not all(d[size] > 0 for size in sizes)
        or d["tile_rows"] > rows
        or d["tile_columns"] > columns
        or any(2 * int(d[f"overlap_{axis}"]) > int(d[f"tile_{axis}"]) for axis in ("rows", "columns"))
    ):
        due = f"{len(index.graphs)} graphs, {len(index.ports)} ports, fields that fit together"
        refuse(Code.INDEX_DECODER, "decoder", due, f"{d}")


def _check_graphs(index: Index, d: np.void) -> None:
    """First graphs, then later ones, each with its ports behind those of the one before."""
    names: list[bytes] = []
    variant, first = int(DecoderVariant.FIRST), 0
    for i, g in enumerate(index.graphs):
        place = f"decoder graph {i}"
        name = string_at(index, g["name"], place)
        if not is_text(name, GRAPH, decoder_records.GRAPH_LIMIT):
            refuse(Code.INDEX_STRING, place, "the name of a graph", name)
        if name in names:
            refuse(Code.INDEX_DECODER, place, "each name once", name)
        names.append(name)
        if int(g["variant"]) not in list(DecoderVariant) or int(g["variant"]) < variant:
            refuse(Code.INDEX_DECODER, place, "first graphs, then later ones", g["variant"])
        if i == 0 and int(g["variant"]) != DecoderVariant.FIRST:
            refuse(Code.INDEX_DECODER, place, "a graph of the first latent frame", g["variant"])
        variant = int(g["variant"])
        _check_binary(index, g, place, compiled=int(d["backend"]) != DecoderBackend.ONNX)
        inputs, outputs = int(g["inputs"]), int(g["outputs"])
        if (
            int(g["first_port"]) != first
            or inputs < 1
            or outputs < 1
            or inputs + outputs > len(index.ports) - first
            or (variant == DecoderVariant.FIRST and inputs != 1)
        ):
            found = f"{inputs} inputs and {outputs} outputs from {g['first_port']}"
            refuse(Code.INDEX_DECODER, place, f"ports from {first}, one input if it is the first", found)
        first += inputs + outputs
    if first != len(index.ports):
        refuse(Code.INDEX_DECODER, "decoder graphs", f"{len(index.ports)} ports in all", first)
    if variant != DecoderVariant.LATER:
        refuse(Code.INDEX_DECODER, "decoder graphs", "one of the later latent frames", "none")


def _check_binary(index: Index, g: np.void, place: str, compiled: bool) -> None:
    """What a graph says of its binary. Which tensors are binaries is checked later."""
    if compiled and int(g["binary"]) != NONE:
        name = string_at(index, g["name_in_binary"], place)
        if not is_text(name, PRINTABLE):
            refuse(Code.INDEX_STRING, place, "a name in the binary", name)
        good = 1 <= int(g["optimization"]) <= 3
    else:
        sizes = ("vtcm_bytes", "spill_fill_bytes", "optimization")
        good = not compiled and int(g["binary"]) == NONE and int(g["name_in_binary"]) == NONE
        good = good and not any(int(g[size]) for size in sizes)
    if not good or int(g["reserved"]):
        due = "a binary, and its optimization from 1 to 3" if compiled else "nothing of a binary"
        refuse(Code.INDEX_DECODER, place, due, f"binary {g['binary']}, optimization {g['optimization']}")


def _check_ports(index: Index) -> None:
    for i, p in enumerate(index.ports):
        place = f"decoder port {i}"
        name = string_at(index, p["name"], place)
        if not is_text(name, NAME):
            refuse(Code.INDEX_STRING, place, "a canonical name", name)
        dims, shape = int(p["dims"]), [int(v) for v in p["shape"]]
        if (
            int(p["dtype"]) not in list(PortDType)
            or not 1 <= dims <= records.MAX_DIMS
            or not all(shape[:dims])
            or any(shape[dims:])
            or int(p["zero_point"]) >= 1 << (8 if int(p["dtype"]) == PortDType.UINT8 else 16)
            or not (math.isfinite(p["scale"]) and float(p["scale"]) >= records.SMALLEST_NORMAL)
        ):
            refuse(Code.INDEX_DECODER, place, "a known dtype, sizes, a code as zero point, a normal scale", f"{p}")


def _check_tensors(index: Index, d: np.void) -> None:
    """Tensors of the kind are, by id: the model of each graph, the encodings, then the binaries, each of some graph."""
    ids = [i for i, t in enumerate(index.tensors) if int(t["kind"]) == TensorKind.DECODER]
    models, binaries = [int(model) for model in index.graphs["model"]], int(d["binaries"])
    if len(ids) != len(models) + 1 + binaries:
        refuse(Code.INDEX_DECODER, "decoder", f"{len(models) + 1 + binaries} files", len(ids))
    for i, due in zip(ids, [*models, int(d["encodings"])], strict=False):
        if i != due:
            refuse(Code.INDEX_DECODER, f"tensor {i}", "models in the order of graphs, then the encodings", due)
    named = {int(binary) for binary in index.graphs["binary"]} - {NONE}
    if named != set(ids[len(models) + 1 :]):
        refuse(Code.INDEX_DECODER, "decoder", f"binaries {ids[len(models) + 1 :]}", sorted(named))


def _check_binaries(index: Index, d: np.void) -> None:
    """Each binary by its id, in order, with a build that can be read. Before 1.3 there are no records."""
    if int(index.header["minor"]) < records.BINARIES_MINOR:
        return
    if len(index.binaries) != int(d["binaries"]):
        refuse(Code.INDEX_DECODER, "decoder binaries", f"{d['binaries']} records", len(index.binaries))
    ids = [i for i, t in enumerate(index.tensors) if int(t["kind"]) == TensorKind.DECODER]
    for i, (b, due) in enumerate(zip(index.binaries, ids[len(index.graphs) + 1 :], strict=True)):
        if int(b["binary"]) != due:
            refuse(Code.INDEX_DECODER, f"decoder binary {i}", f"tensor {due}", b["binary"])
        build = string_at(index, b["build_id"], f"decoder binary {i}")
        if not is_text(build, PRINTABLE):
            refuse(Code.INDEX_STRING, f"decoder binary {i}", "a build", build)


def _inputs(index: Index, graph: int) -> list[np.void]:
    g = index.graphs[graph]
    return list(index.ports[int(g["first_port"]) : int(g["first_port"]) + int(g["inputs"])])


def _outputs(index: Index, graph: int) -> list[np.void]:
    g = index.graphs[graph]
    start = int(g["first_port"]) + int(g["inputs"])
    return list(index.ports[start : start + int(g["outputs"])])


def _of(index: Index, variant: DecoderVariant) -> list[int]:
    return [i for i, g in enumerate(index.graphs) if int(g["variant"]) == variant]


def _check_names(index: Index) -> None:
    """No name twice in a graph, among all that a variant writes, or in a binary: else nobody knows which is meant."""
    for graph in range(len(index.graphs)):
        _refuse_twice(index, [*_inputs(index, graph), *_outputs(index, graph)], f"decoder graph {graph}")
    for variant in DecoderVariant:
        written = [port for graph in _of(index, variant) for port in _outputs(index, graph)]
        _refuse_twice(index, written, f"decoder graphs {variant.name}")
    held = [(int(g["binary"]), index.text(int(g["name_in_binary"]))) for g in index.graphs if int(g["binary"]) != NONE]
    if len(set(held)) != len(held):
        refuse(Code.INDEX_DECODER, "decoder graphs", "each name in a binary once", held)


def _refuse_twice(index: Index, ports: list[np.void], place: str) -> None:
    names = [index.text(int(port["name"])) for port in ports]
    if len(set(names)) != len(names):
        refuse(Code.INDEX_DECODER, place, "each name once", names)


def _check_shapes(index: Index, d: np.void) -> None:
    """A variant reads a tile of one latent frame, and writes that tile's frames."""
    rows, columns, scale = (int(d[field]) for field in ("tile_rows", "tile_columns", "spatial_scale"))
    for variant, count in ((DecoderVariant.FIRST, 1), (DecoderVariant.LATER, int(d["temporal_scale"]))):
        graphs = _of(index, variant)
        latent = [1, int(d["channels"]), 1, rows, columns]
        frames = [1, decoder_records.FRAME_CHANNELS, count, rows * scale, columns * scale]
        for graph, port, due in (
            (graphs[0], _inputs(index, graphs[0])[0], latent),
            (graphs[-1], _outputs(index, graphs[-1])[0], frames),
        ):
            if [int(v) for v in port["shape"]] != due:  # no size of these is 0: so many dimensions, too
                refuse(Code.INDEX_DECODER, f"decoder graph {graph}", f"{due} of {index.text(int(port['name']))}", port)


def _check_cuts(index: Index) -> None:
    """A graph that is not the first of its variant reads what the one before it writes first."""
    for graph in range(1, len(index.graphs)):
        if index.graphs[graph]["variant"] == index.graphs[graph - 1]["variant"]:
            written, read = _outputs(index, graph - 1)[0], _inputs(index, graph)[0]
            name = index.text(int(written["name"]))
            if index.text(int(read["name"])) != name or not _same(written, read):
                refuse(Code.INDEX_DECODER, f"decoder graph {graph}", f"to read {name}", read)


def _check_caches(index: Index) -> None:
    """What a later graph reads beside its first input was written before, by either variant, under next_<name>."""
    writers = [{index.text(int(port["name"])): port for port in _written(index, variant)} for variant in DecoderVariant]
    for graph in _of(index, DecoderVariant.LATER):
        for port in _inputs(index, graph)[1:]:
            name = index.text(int(port["name"]))
            for written in writers:
                if f"next_{name}" not in written or not _same(written[f"next_{name}"], port):
                    refuse(Code.INDEX_DECODER, f"decoder graph {graph}", f"next_{name}, by either variant", port)


def _written(index: Index, variant: DecoderVariant) -> Iterator[np.void]:
    for graph in _of(index, variant):
        yield from _outputs(index, graph)


def _same(a: np.void, b: np.void) -> bool:
    """Whether two ports hold the same integers for the same numbers, whatever they are called."""
    return all(np.array_equal(a[field], b[field]) for field in ("dtype", "dims", "zero_point", "scale", "shape"))
