"""The integers at the ports of quantised graphs: as data, and as an adapter for callers that have floats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quant.decoder.encodings import CodeType, Encoding
from quant.decoder.errors import DecoderQuantError

_DTYPES: dict[int, CodeType] = {TensorProto.UINT8: "uint8", TensorProto.UINT16: "uint16"}


@dataclass(frozen=True)
class Port:
    """An input or output: ``shape`` and what its codes mean."""

    name: str
    shape: tuple[int, ...]
    encoding: Encoding


def ports(model: onnx.ModelProto) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Inputs and outputs of a quantised graph, in its order.

    Raises:
        DecoderQuantError: a port that is not of integers with one DQ behind or one Q before it.
    """
    scalers = {node.output[0]: node for node in model.graph.node if node.op_type == "QuantizeLinear"}
    scalers |= {node.input[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear"}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}

    def port(value: onnx.ValueInfoProto) -> Port:
        kind, node = value.type.tensor_type, scalers.get(value.name)
        if kind.elem_type not in _DTYPES or node is None or any(name not in constants for name in node.input[1:3]):
            raise DecoderQuantError(
                "a port is not a quantised integer", where=f"graph {model.graph.name!r}, {value.name!r}"
            )
        scale, zero = (numpy_helper.to_array(constants[name]).item() for name in node.input[1:3])
        encoding = Encoding(float(scale), int(zero), _DTYPES[kind.elem_type])
        return Port(value.name, tuple(d.dim_value for d in kind.shape.dim), encoding)

    return tuple(port(v) for v in model.graph.input), tuple(port(v) for v in model.graph.output)


def float_ports(model: onnx.ModelProto) -> onnx.ModelProto:
    """A quantised graph behind float32 ports of the same names, for callers that were written for the float graph.

    Inside, the codes are the same: an output's number, quantised again where the next call reads it, is its code.
    """
    inputs, outputs = ports(model)
    out = onnx.ModelProto()
    out.CopyFrom(model)
    graph = out.graph
    names = {p.name: f"{p.name}.codes" for p in (*inputs, *outputs)}
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    before = [_scaler("QuantizeLinear", p, p.name, names[p.name], out) for p in inputs]
    after = [_scaler("DequantizeLinear", p, names[p.name], p.name, out) for p in outputs]
    nodes = [*before, *graph.node, *after]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return out


def _scaler(kind: str, port: Port, source: str, target: str, model: onnx.ModelProto) -> onnx.NodeProto:
    scale, zero = f"{port.name}.port_scale", f"{port.name}.port_zero_point"
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.array(port.encoding.scale, np.float32), scale),
            numpy_helper.from_array(np.array(port.encoding.zero_point, port.encoding.dtype), zero),
        ]
    )
    return helper.make_node(kind, [source, scale, zero], [target], name=f"{port.name}.port")


def named(found: tuple[Port, ...], name: str) -> Port:
    """The port called ``name``."""
    return next(port for port in found if port.name == name)
