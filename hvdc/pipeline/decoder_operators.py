"""Single operators of quantised graphs, as graphs of their own: for comparing two machines one operator at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
from onnx import TensorProto, helper, shape_inference

from quant.decoder.graph import MOVES

QUANTISE, DEQUANTISE = "QuantizeLinear", "DequantizeLinear"

_DTYPES: dict[int, str] = {TensorProto.UINT8: "uint8", TensorProto.UINT16: "uint16"}
"""Of activations."""


def single_operators(models: Iterable[onnx.ModelProto]) -> dict[str, onnx.ModelProto]:
    """The first node of each kind that computes, by its kind, between the integers that it reads and writes.

    A kind is an operator with the dtypes of the activations that it reads and writes, such as ``Conv uint8→uint8``,
    for a machine may compute the same operator in another way with 16 bits. A node counts if all that it reads is
    dequantised, something of it from integers that are no constants, and one quantisation alone reads what it gives.
    """
    found: dict[str, onnx.ModelProto] = {}
    for model in models:
        for kind, part in _parts(model, found):
            found[kind] = helper.make_model(part, opset_imports=model.opset_import, ir_version=model.ir_version)
    return found


def _parts(model: onnx.ModelProto, known: dict[str, onnx.ModelProto]) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Those whose kind is not ``known`` when their turn comes."""
    graph = shape_inference.infer_shapes(model).graph
    values = {v.name: v for v in (*graph.input, *graph.output, *graph.value_info)}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for node in graph.node:
        if node.op_type in (QUANTISE, DEQUANTISE, *MOVES):
            continue
        before = [makers.get(name) for name in node.input if name and name not in constants]
        after = readers.get(node.output[0], [])
        if not before or any(n is None or n.op_type != DEQUANTISE for n in before):
            continue
        if [n.op_type for n in after] != [QUANTISE]:
            continue
        given = list(dict.fromkeys(n.input[0] for n in before if n is not None and n.input[0] not in constants))
        output = after[0].output[0]
        if not given or any(_dtype(values, name) is None for name in (*given, output)):
            continue
        reads = "+".join(sorted({str(_dtype(values, name)) for name in given}))
        kind = f"{node.op_type} {reads}→{_dtype(values, output)}"
        if kind in known:
            continue
        nodes = {*(n.name for n in before if n is not None), node.name, after[0].name}
        kept = [n for n in graph.node if n.name in nodes]
        used = {name for n in kept for name in n.input}
        yield kind, helper.make_graph(
            kept, f"operator_{node.op_type}_{reads}_{_dtype(values, output)}",
            [values[name] for name in given], [values[output]],
            [constants[name] for name in sorted(used & set(constants))],
        )  # fmt: skip


def _dtype(values: dict[str, onnx.ValueInfoProto], name: str) -> str | None:
    """Of an activation; None where nothing is known of it, or where it is something else than codes."""
    return _DTYPES.get(values[name].type.tensor_type.elem_type) if name in values else None
