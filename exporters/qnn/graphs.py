"""What a graph must be to become a context binary, and the small ONNX wrapper that holds a finished one.

A graph has quantised integers (uint8 or uint16) at its inputs and outputs. With floats there, the HTP drops the
quantisation around pure data moves, and a cache that is handed from one run to the next is no longer exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from exporters.qnn.errors import QnnError
from exporters.qnn.messages import Node
from exporters.qnn.metadata import GraphInfo

DTYPES: dict[int, str] = {TensorProto.UINT8: "uint8", TensorProto.UINT16: "uint16"}
QNN_DTYPES = {"ufixed8": TensorProto.UINT8, "ufixed16": TensorProto.UINT16}
EP_CONTEXT = "EPContext"
_IR_VERSION = 10
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


@dataclass(frozen=True)
class Port:
    """An input or output of a graph. ``dtype`` is NumPy's name; real = (stored - ``zero_point``) × ``scale``.

    Scale and zero point are None where no single Q or DQ node stands at the port.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    scale: float | None = None
    zero_point: int | None = None


@dataclass(frozen=True)
class Signature:
    """What goes in and comes out, in the model's order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def load(path: Path) -> onnx.ModelProto:
    """An ONNX model with its external data inside.

    Raises:
        QnnError: no such file, not ONNX, or data that lies elsewhere cannot be read.
    """
    if not path.is_file():
        raise QnnError("there is no such file", where=str(path), fix="check the path")
    try:
        model = onnx.load(path)
    except Exception as error:  # protobuf's, OSError and ValueError
        raise QnnError(
            "this is not a readable ONNX model",
            where=str(path),
            found=str(error).splitlines()[0],
            fix="export it again",
        ) from error
    if not model.graph.node:
        raise QnnError("the ONNX model holds no graph", where=str(path), fix="export it again")
    return model


def serialised(model: onnx.ModelProto, where: str) -> bytes:
    """A model as one file.

    Raises:
        QnnError: above protobuf's 2 GiB.
    """
    try:
        return bytes(model.SerializeToString())
    except Exception as error:  # protobuf's own, ValueError: depends on its version
        raise QnnError(
            "the model is too large for one ONNX file",
            where=where,
            expected="below 2 GiB with its weights",
            found=str(error).splitlines()[0],
            fix="cut it into stages",
        ) from error


def is_context(model: onnx.ModelProto) -> bool:
    """Whether a model wraps a compiled context."""
    return any(node.op_type == EP_CONTEXT for node in model.graph.node)


def signature(model: onnx.ModelProto, where: str) -> Signature:
    """Inputs and outputs of a graph.

    Raises:
        QnnError: a dtype other than uint8 or uint16, or a dimension that is not a number.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    after, before = {}, {}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear":
            after[node.input[0]] = node
        if node.op_type == "QuantizeLinear":
            before[node.output[0]] = node
    inputs = [value for value in model.graph.input if value.name not in constants]
    return Signature(
        tuple(_port(value, after.get(value.name), constants, where) for value in inputs),
        tuple(_port(value, before.get(value.name), constants, where) for value in model.graph.output),
    )


def _port(
    value: onnx.ValueInfoProto, scaler: onnx.NodeProto | None, constants: Mapping[str, onnx.TensorProto], where: str
) -> Port:
    kind = value.type.tensor_type
    if kind.elem_type not in DTYPES:
        known = kind.elem_type in TensorProto.DataType.values()
        raise QnnError(
            f"'{value.name}' is not a quantised integer",
            where=where,
            expected="uint8 or uint16 at every input and output of the graph",
            found=TensorProto.DataType.Name(kind.elem_type).lower() if known else f"type {kind.elem_type}",
            fix="move the QuantizeLinear of an input, and the DequantizeLinear of an output, out of the graph"
            if kind.elem_type in _FLOATS
            else "export it with uint8 or uint16",
        )
    dims = tuple(d.dim_value if d.HasField("dim_value") else 0 for d in kind.shape.dim)
    if not kind.HasField("shape") or any(d <= 0 for d in dims):
        raise QnnError(
            f"the shape of '{value.name}' is not fixed",
            where=where,
            expected="a number for every dimension",
            found=str([d.dim_value or d.dim_param or "?" for d in kind.shape.dim]),
            fix="export the graph with fixed shapes",
        )
    names = list(scaler.input[1:3]) if scaler is not None else []
    arrays = [numpy_helper.to_array(constants[n]) for n in names if n in constants]
    if len(arrays) == 2 and all(array.size == 1 for array in arrays):
        return Port(value.name, DTYPES[kind.elem_type], dims, float(arrays[0].item()), int(arrays[1].item()))
    return Port(value.name, DTYPES[kind.elem_type], dims)


def finder(model: onnx.ModelProto) -> Callable[[str], Node | None]:
    """Gives the operator type and first input's shape of a node, by the node's name. Shapes are inferred when asked."""
    nodes = {node.name: node for node in model.graph.node if node.name}
    shapes: dict[str, tuple[int, ...]] = {}

    def find(name: str) -> Node | None:
        node = nodes.get(name)
        if node is None:
            return None
        if not shapes:
            inferred = onnx.shape_inference.infer_shapes(model).graph
            for value in (*inferred.input, *inferred.value_info, *inferred.output):
                shapes[value.name] = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        return Node(node.op_type, shapes.get(node.input[0], ()) if node.input else ())

    return find


def wrapper_parts(model: onnx.ModelProto, where: str) -> tuple[str, str]:
    """File name of the binary, and the graph's name in it, of a wrapper.

    Raises:
        QnnError: it is not exactly one node, EPContext, that refers to a file.
    """
    found = [node.op_type for node in model.graph.node]
    if found != [EP_CONTEXT]:
        raise QnnError(
            "the graph did not become one context",
            where=where,
            expected="exactly one node, EPContext",
            found=f"{len(found)} nodes: {', '.join(found[:6])}",
            fix="use operators that the HTP supports, with Q and DQ around each",
        )
    values: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in model.graph.node[0].attribute}
    if values.get("embed_mode", 1) != 0:
        raise QnnError(
            "the wrapper holds the binary inside itself", where=where, fix="compile with ep.context_embed_mode 0"
        )
    return values.get("ep_cache_context", b"").decode(), values.get("partition_name", b"").decode()


def write_wrapper(path: Path, binary: str, graph: GraphInfo) -> None:
    """An ONNX model that runs one graph of a binary lying beside it, made from the binary's metadata.

    ``EPContext`` is the operator of ONNX Runtime's "EP context design" page.
    """

    def values(tensors: Any) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(t.name, QNN_DTYPES[t.dtype], t.dims) for t in tensors]

    inputs, outputs = values(graph.inputs), values(graph.outputs)
    node = helper.make_node(
        EP_CONTEXT,
        [value.name for value in inputs],
        [value.name for value in outputs],
        name=graph.name,
        domain="com.microsoft",
        main_context=1,
        embed_mode=0,
        ep_cache_context=binary,
        partition_name=graph.name,
        source="QNNExecutionProvider",
    )
    model = helper.make_model(
        helper.make_graph([node], "context", inputs, outputs),
        opset_imports=[helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("", 19)],
        ir_version=_IR_VERSION,
    )
    path.write_bytes(model.SerializeToString())
