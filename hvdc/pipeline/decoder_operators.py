"""Single operators of a quantised graph, as graphs of their own: for comparing two machines one operator at a time."""

from __future__ import annotations

import onnx
from onnx import helper, shape_inference

from quant.decoder.graph import MOVES

QUANTISE, DEQUANTISE = "QuantizeLinear", "DequantizeLinear"


def single_operators(model: onnx.ModelProto) -> dict[str, onnx.ModelProto]:
    """The first node of each kind that computes, by its kind, between the integers that it reads and writes.

    A node counts if all that it reads is dequantised, something of it from integers that are no constants, and one
    quantisation alone reads what it gives.
    """
    inferred = shape_inference.infer_shapes(model)
    graph = inferred.graph
    kinds = {v.name: v for v in (*graph.input, *graph.output, *graph.value_info)}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found: dict[str, onnx.ModelProto] = {}
    for node in graph.node:
        if node.op_type in (QUANTISE, DEQUANTISE, *MOVES, *found):
            continue
        before = [makers.get(name) for name in node.input if name and name not in constants]
        after = readers.get(node.output[0], [])
        if not before or any(n is None or n.op_type != DEQUANTISE for n in before):
            continue
        if [n.op_type for n in after] != [QUANTISE]:
            continue
        nodes = [*dict.fromkeys(n.name for n in before if n is not None), node.name, after[0].name]
        kept = [n for n in graph.node if n.name in nodes]
        given = [n.input[0] for n in kept if n.op_type == DEQUANTISE and n.input[0] not in constants]
        output = after[0].output[0]
        if not given or any(name not in kinds for name in (*given, output)):
            continue
        used = {name for n in kept for name in n.input}
        part = helper.make_graph(
            kept, f"operator_{node.op_type}", [kinds[name] for name in dict.fromkeys(given)], [kinds[output]],
            [constants[name] for name in sorted(used & set(constants))],
        )  # fmt: skip
        found[node.op_type] = helper.make_model(part, opset_imports=model.opset_import, ir_version=model.ir_version)
    return found
