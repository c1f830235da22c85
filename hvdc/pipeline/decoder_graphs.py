"""The ONNX graphs of an artifact's decoder: a hash says that a file is the recorded one, not that it can be used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx

from hvdc.artifact.codes import Code
from hvdc.artifact.decoder import Decoder, Graph, Port
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.reader import Artifact
from quant.decoder import ports as quantised_ports
from quant.decoder.graph import VARIANTS, Graphs


def read_graph(artifact: Artifact, graph: Graph) -> onnx.ModelProto:
    """A graph's model, whose ports are those of the manifest, in its order, and which holds all its weights itself.

    Raises ArtifactError DATA_DECODER for another file, DATA_HASH.
    """
    return parse_graph(graph, artifact.opaque(graph.model))


def read_graphs(entry: Decoder, read: Callable[[str], bytes]) -> Graphs:
    """All graphs of a decoder, whose files ``read`` gives by the names of their tensors.

    Raises ArtifactError as `parse_graph`, and whatever ``read`` raises.
    """
    return Graphs(*(tuple(parse_graph(graph, read(graph.model)) for graph in entry.variant(v)) for v in VARIANTS))


def parse_graph(graph: Graph, data: bytes) -> onnx.ModelProto:
    """`read_graph` of a file's bytes. Raises ArtifactError DATA_DECODER."""
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's own
        raise graph_fault(graph, "is no ONNX model", f"ONNX of {len(data)} bytes", error) from error
    for tensor in _tensors(model):  # before anything looks at values: onnx would open the file that is named
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            file = next((entry.value for entry in tensor.external_data if entry.key == "location"), "another file")
            found = f"{tensor.name} in {file}"
            raise graph_fault(graph, "refers to external data", "all weights in its own file", found)
    try:
        differences = list(port_differences(graph, model))
    except Exception as error:  # DecoderQuantError, and whatever numpy makes of a strange scale
        raise graph_fault(graph, "has other ports", "quantised integers", error) from error
    for side, due, held in differences:
        raise graph_fault(graph, f"has other {side} than the manifest says", due, held)
    return model


def graph_fault(graph: Graph, what: str, expected: object, found: object) -> ArtifactError:
    """DATA_DECODER: ``what`` goes on from "a graph of the decoder"."""
    return ArtifactError(
        Code.DATA_DECODER,
        what=f"a graph of the decoder {what}",
        where=graph.name,
        expected=str(expected),
        found=str(found),
        fix="compile the artifact again",
    )


def port_differences(graph: Graph, model: onnx.ModelProto) -> Iterator[tuple[str, object, object]]:
    """``"inputs"`` or ``"outputs"``, and the first ports that differ: the manifest's, the model's.

    Raises DecoderQuantError for ports that are no quantised integers, ValueError for scales that are no numbers.
    """
    both = quantised_ports.ports(model)
    for side, due, held in zip(("inputs", "outputs"), (graph.inputs, graph.outputs), both, strict=True):
        ours, theirs = [port_text(port) for port in due], [_of_quantised(port) for port in held]
        if ours != theirs:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
            yield (side, len(ours), len(theirs)) if at is None else (side, ours[at], theirs[at])


def port_text(port: Port) -> str:
    """A port of the manifest, to compare and to show."""
    return tensor_text(port.name, port.dtype, port.shape, float(np.float32(port.scale)), port.zero_point)


def _of_quantised(port: quantised_ports.Port) -> str:
    e = port.encoding
    return tensor_text(port.name, e.dtype, port.shape, float(np.float32(e.scale)), e.zero_point)


def tensor_text(name: str, dtype: str, shape: Sequence[int], scale: float | None, zero_point: int) -> str:
    """The same, of anything: ``scale`` is float32's value, None where there is none."""
    return f"{name} {dtype} {list(shape)} scale {scale} zero {zero_point}"


def _tensors(message: Any) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model: initialisers, sparse ones, attributes, of subgraphs and functions too."""
    if isinstance(message, onnx.TensorProto):
        yield message
    elif hasattr(message, "ListFields"):
        for _, value in message.ListFields():
            for item in value if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else (value,):
                yield from _tensors(item)
