"""The ONNX graphs of an artifact's decoder: a hash says that a file is the recorded one, not that it can be used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx

from hvdc.artifact.codes import Code
from hvdc.artifact.decoder import Graph, Port
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.reader import Artifact
from quant.decoder import ports as quantised_ports


def read_graph(artifact: Artifact, graph: Graph) -> onnx.ModelProto:
    """A graph's model, whose ports are those of the manifest, in its order, and which holds all its weights itself.

    Raises ArtifactError DATA_DECODER for another file, DATA_HASH.
    """
    data = artifact.opaque(graph.model)
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
        ours, theirs = [_of_port(port) for port in due], [_of_quantised(port) for port in held]
        if ours != theirs:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
            yield (side, len(ours), len(theirs)) if at is None else (side, ours[at], theirs[at])


def _of_port(port: Port) -> str:
    scale = float(np.float32(port.scale))
    return f"{port.name} {port.dtype} {list(port.shape)} scale {scale} zero {port.zero_point}"


def _of_quantised(port: quantised_ports.Port) -> str:
    e = port.encoding
    return f"{port.name} {e.dtype} {list(port.shape)} scale {float(np.float32(e.scale))} zero {e.zero_point}"


def _tensors(message: Any) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model: initialisers, sparse ones, attributes, of subgraphs and functions too."""
    if isinstance(message, onnx.TensorProto):
        yield message
    elif hasattr(message, "ListFields"):
        for _, value in message.ListFields():
            for item in value if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else (value,):
                yield from _tensors(item)
