"""Builds the quantised graphs: QDQ ONNX with integer inputs and outputs.

onnxruntime's own ``QDQQuantizer`` quantises weights (INT8, symmetric, one scale an output channel), biases (INT32,
scale s_x · s_w, a weight's scale being raised where its bias would overflow) and puts Q and DQ around every tensor.
It is told every encoding. What it lacks is done here: which width a node has and where its inputs change theirs, the
epsilon of the norms, integers at the ports, and an order and names that depend on nothing but the input.

A node has the width of what it writes, and reads everything in that width, as the HTP wants it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quant.decoder.encodings import CodeType, Encoding, Encodings, affine
from quant.decoder.errors import DecoderQuantError
from quant.decoder.graph import MOVES, Graphs, Key, Variant, constant
from quant.decoder.lookups import look_up_by_name

_TYPES: Mapping[CodeType, int] = {"uint8": TensorProto.UINT8, "uint16": TensorProto.UINT16}

_EMPTY = 127 * 2.0**-60
"""What stands for the largest weight of a channel that has none."""


def quantise(graphs: Graphs, encodings: Encodings) -> Graphs:
    """The same graphs with integers: each in its place.

    Raises:
        DecoderQuantError: a tensor without an encoding; a graph of something else.
    """
    return Graphs(
        tuple(quantise_model(model, "first", encodings) for model in graphs.first),
        tuple(quantise_model(model, "later", encodings) for model in graphs.later),
    )


def quantise_model(model: onnx.ModelProto, variant: Variant, encodings: Encodings) -> onnx.ModelProto:
    """One float graph as QDQ with integer ports; equal inputs give equal bytes.

    Raises:
        DecoderQuantError: as above.
    """
    prepared = onnx.ModelProto()
    prepared.CopyFrom(model)
    helper.set_model_props(prepared, {"onnx.infer": "onnxruntime.quant"})  # all shapes are there: nothing to infer
    roots = [node.input[0] for node in model.graph.node if node.op_type == "Sqrt"]
    raise_epsilons(prepared, {name: encodings.stored(Key(variant, name)).scale for name in roots})
    out = _Quantiser(prepared, variant, encodings).run()
    _integer_ports(out)
    _tidy(out, model)
    onnx.checker.check_model(out, full_check=True)
    return out


def raise_epsilons(model: onnx.ModelProto, steps: Mapping[str, float]) -> None:
    """In place: what is added before a square root becomes the step of the sum, if that is more."""
    makers = {node.output[0]: node for node in model.graph.node}
    for node in model.graph.node:
        step = steps.get(node.input[0]) if node.op_type == "Sqrt" else None
        if step is None:
            continue
        added = makers.get(node.input[0])
        eps = constant(model, added.input[1]) if added is not None and added.op_type == "Add" else None
        if added is None or eps is None or eps.size != 1:
            raise DecoderQuantError("a square root has no epsilon before it", where=f"node {node.name!r}")
        tensor = next(t for t in model.graph.initializer if t.name == added.input[1])
        raised = np.maximum(eps, np.float32(step)).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(raised, tensor.name))


class _Quantiser:
    """Prepares what onnxruntime's quantiser is told of one model."""

    def __init__(self, model: onnx.ModelProto, variant: Variant, encodings: Encodings) -> None:
        self.model = model
        self.variant = variant
        self.encodings = encodings
        self.constants = {
            t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type == TensorProto.FLOAT
        }
        self.width = {node.name: self._stored(node.output[0]).dtype for node in model.graph.node}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for name in dict.fromkeys(self._read(node)):
                self.readers.setdefault(name, []).append(node)

    def _stored(self, name: str) -> Encoding:
        return self.encodings.stored(Key(self.variant, name))

    def _read(self, node: onnx.NodeProto) -> Sequence[str]:
        """The float inputs of a node."""
        return node.input[MOVES[node.op_type]] if node.op_type in MOVES else [name for name in node.input if name]

    def run(self) -> onnx.ModelProto:
        package: Any = importlib.import_module("onnxruntime.quantization.qdq_quantizer")
        utils: Any = importlib.import_module("onnxruntime.quantization.quant_utils")
        calibrate: Any = importlib.import_module("onnxruntime.quantization.calibrate")
        self._types = {"uint8": utils.QuantType.QUInt8, "uint16": utils.QuantType.QUInt16}
        activations = self._activations()
        overrides: dict[str, list[dict[str, Any]]] = {name: [self._override(name)] for name in activations}
        weights, gains = self._weights(), self._gains()
        overrides |= self._empty_channels([name for _, name, _ in weights.values()])
        overrides |= {name: [self._told(encoding)] for name, encoding in gains.items()}
        nothing = (np.float32(0), np.float32(1))
        quantiser = package.QDQQuantizer(
            self.model,
            per_channel=True,
            reduce_range=False,
            weight_qType=utils.QuantType.QInt8,
            activation_qType=utils.QuantType.QUInt8,
            tensors_range={name: calibrate.TensorData(lowest=nothing[0], highest=nothing[1]) for name in activations},
            nodes_to_quantize=[],
            nodes_to_exclude=[],
            op_types_to_quantize=[],  # nothing by type: every tensor is named below
            extra_options={"TensorQuantOverrides": overrides},
        )
        look_up_by_name(quantiser.model)
        quantiser.tensor_to_its_receiving_nodes = {name: list(nodes) for name, nodes in self.readers.items()}
        for name in (*activations, *gains):
            quantiser.quantize_activation_tensor(name)
        for node, weight in weights.items():
            quantiser.quantize_weight_tensor_per_channel(weight[1], 0)
            quantiser.quantize_bias_tensor(node, weight[2], weight[0], weight[1])
        result: onnx.ModelProto = quantiser.quantize_model()
        return result

    def _activations(self) -> list[str]:
        """All float tensors but initialisers, in order."""
        names = [v.name for v in self.model.graph.input if v.name not in self.constants]
        return names + [node.output[0] for node in self.model.graph.node]

    def _told(self, encoding: Encoding) -> dict[str, Any]:
        zero_point: np.ndarray = np.array(encoding.zero_point, encoding.dtype)
        return {
            "quant_type": self._types[encoding.dtype],
            "scale": np.array(encoding.scale, np.float32),
            "zero_point": zero_point,
        }

    def _override(self, name: str) -> dict[str, Any]:
        """A tensor's encoding as it is written, and the one for nodes of the other width."""
        pair = self.encodings.pair(Key(self.variant, name))
        others = [n.name for n in self.readers.get(name, []) if self.width[n.name] != pair.stored.dtype]
        told = self._told(pair.stored)
        if others:
            told["convert"] = {**self._told(pair.other), "recv_nodes": set(others)}
        return told

    def _weights(self) -> dict[str, Sequence[str]]:
        """Convolutions by name, with input, weight and bias."""
        found: dict[str, Sequence[str]] = {}
        for node in self.model.graph.node:
            if node.op_type != "Conv":
                continue
            if len(node.input) != 3 or any(name not in self.constants for name in node.input[1:]):
                raise DecoderQuantError("a convolution has no constant weight and bias", where=f"node {node.name!r}")
            found[node.name] = node.input
        return found

    def _empty_channels(self, weights: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Scales for output channels without weights: onnxruntime's own, 1, would round the bias to whole s_x.

        They are nearly nothing; onnxruntime raises them until the bias fits.
        """
        found: dict[str, list[dict[str, Any]]] = {}
        for name in weights:
            peaks = np.abs(self.constants[name]).reshape(len(self.constants[name]), -1).max(axis=1)
            if (peaks > 0).all():
                continue
            limits = np.where(peaks > 0, peaks, _EMPTY).astype(np.float32)
            found[name] = [{"axis": 0, "rmin": -limit, "rmax": limit} for limit in limits]
        return found

    def _gains(self) -> dict[str, Encoding]:
        """Other float constants: the gains and epsilons of the norms, in the width of their node."""
        found: dict[str, Encoding] = {}
        for node in self.model.graph.node:
            if node.op_type in MOVES or node.op_type == "Conv":
                continue
            for name in node.input:
                if name not in self.constants:
                    continue
                value = self.constants[name]
                encoding = affine(float(value.min()), float(value.max()), self.width[node.name])
                if found.setdefault(name, encoding) != encoding:
                    raise DecoderQuantError("nodes of two widths share a constant", where=repr(name))
        return found


def _integer_ports(model: onnx.ModelProto) -> None:
    """Inputs and outputs become the integers themselves: their Q and DQ go, their names stay."""
    graph = model.graph
    constants = {t.name: t for t in graph.initializer}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    makers = {name: node for node in graph.node for name in node.output}
    drop: list[str] = []
    for value in graph.input:
        (node,) = readers[value.name]
        for reader in readers[node.output[0]]:
            reader.input[0] = value.name
        value.type.tensor_type.elem_type = constants[node.input[2]].data_type
        drop.append(node.name)
    for value in graph.output:
        node = makers[value.name]
        source = makers[node.input[0]]
        value.type.tensor_type.elem_type = constants[node.input[2]].data_type
        drop.append(node.name)
        inside = source.output[0]
        # An output that is also read inside: what it was dequantised to gets a name of its own.
        if inner := [r for r in readers.get(value.name, []) if r.name != node.name]:
            node.output[0] = f"{value.name}_DequantizeLinear_Output"
            drop.pop()
            for reader in inner:
                reader.input[:] = [node.output[0] if name == value.name else name for name in reader.input]
        for reader in readers[inside]:
            reader.input[:] = [value.name if name == inside else name for name in reader.input]
        source.output[0] = value.name
    kept = [node for node in graph.node if node.name not in set(drop)]
    del graph.node[:]
    graph.node.extend(kept)


def _tidy(model: onnx.ModelProto, source: onnx.ModelProto) -> None:
    """Nodes in an order of computation, constants by name, the source's operator set and producer."""
    graph = model.graph
    nodes = in_order(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    constants = sorted((t for t in graph.initializer if t.name in used), key=lambda t: t.name)
    constants = [numpy_helper.from_array(numpy_helper.to_array(t), t.name) for t in constants]
    del graph.initializer[:]
    graph.initializer.extend(constants)
    del graph.value_info[:]
    del model.metadata_props[:]
    del model.opset_import[:]
    model.opset_import.extend(source.opset_import)
    model.ir_version = source.ir_version
    model.producer_name, model.producer_version = source.producer_name, source.producer_version
    graph.doc_string = f"{source.graph.doc_string}, INT8"


def in_order(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Copies of ``nodes`` in an order of computation that depends on the given one only."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    makers = {name: i for i, node in enumerate(copies) for name in node.output}
    order: list[onnx.NodeProto] = []
    done: set[int] = set()
    stack = list(reversed(range(len(copies))))
    while stack:
        i = stack[-1]
        before = [makers[name] for name in copies[i].input if name in makers and makers[name] not in done]
        if i not in done and before:
            stack += reversed(before)
            continue
        stack.pop()
        if i not in done:
            done.add(i)
            order.append(copies[i])
    return order


def serialised(model: onnx.ModelProto) -> bytes:
    """A model's bytes, the same each time."""
    return bytes(model.SerializeToString(deterministic=True))
