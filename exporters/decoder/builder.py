"""Builds one ONNX graph of fixed shapes: every value knows its shape, every weight is read only at the end.

Shapes are Python numbers, so that no node computes one. The finished graph is checked by onnx twice over: the checker
with full shape inference must find every shape that was written here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from exporters.decoder.geometry import Shape
from exporters.tensor import Float32Array

OPSET = 21
"""The operator set: the first in which QuantizeLinear takes 16-bit codes, so that a quantised form of the same graph
may have INT8 or INT16 activations."""
IR_VERSION = 10
"""The file format that opset 21 came with."""


@dataclass(frozen=True)
class Value:
    """A float32 tensor in a graph."""

    name: str
    shape: Shape


@dataclass(frozen=True)
class Weight:
    """A float32 initialiser of ``shape`` whose values ``read`` gives."""

    shape: Shape
    read: Callable[[], Float32Array]


@dataclass
class GraphBuilder:
    """Collects nodes, weights and constants. Names are unique; a node is named as its output."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    weights: dict[str, Weight] = field(default_factory=dict)
    _constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    _shapes: dict[str, Shape] = field(default_factory=dict)

    def input(self, name: str, shape: Shape) -> Value:
        value = self._named(name, shape)
        self.inputs.append(value)
        return value

    def output(self, value: Value) -> None:
        """Declares ``value`` an output; each output must come from a node."""
        self.outputs.append(value)

    def weight(self, name: str, shape: Shape, read: Callable[[], Float32Array]) -> Value:
        """A float32 initialiser; two uses of one name are one weight."""
        if name not in self.weights:
            self._named(name, shape)
            self.weights[name] = Weight(shape, read)
        return Value(name, self.weights[name].shape)

    def numbers(self, *values: int) -> str:
        """An int64 constant, shared between its uses."""
        name = "numbers." + "_".join(map(str, values)).replace("-", "m")
        self._constants.setdefault(name, numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def floats(self, name: str, array: Float32Array) -> str:
        """A small float32 constant, shared between its uses."""
        self._constants.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, inputs: Sequence[Value | str], name: str, shape: Shape, **attributes: Any) -> Value:
        """One node with one output ``name`` of ``shape``."""
        names = [i if isinstance(i, str) else i.name for i in inputs]
        value = self._named(name, shape)
        self.nodes.append(helper.make_node(kind, names, [name], name=name, **attributes))
        return value

    # ---- operators whose shapes follow from their inputs ----

    def elementwise(self, kind: str, name: str, *inputs: Value | str) -> Value:
        """A node whose output has the shape of its first input, a `Value`; others broadcast to it."""
        first = inputs[0]
        assert isinstance(first, Value)  # noqa: S101 - a slip of this package, not of its user
        return self.op(kind, inputs, name, first.shape)

    def reshape(self, x: Value, shape: Shape, name: str) -> Value:
        """``x`` with the same elements in ``shape``."""
        assert math.prod(shape) == math.prod(x.shape), (x, shape)  # noqa: S101 - as above
        return self.op("Reshape", [x, self.numbers(*shape)], name, shape)

    def transpose(self, x: Value, order: Sequence[int], name: str) -> Value:
        """``x`` with its axes in ``order``."""
        return self.op("Transpose", [x], name, tuple(x.shape[i] for i in order), perm=list(order))

    def concat(self, values: Sequence[Value], axis: int, name: str) -> Value:
        """``values`` one after the other along ``axis``."""
        shape = list(values[0].shape)
        shape[axis] = sum(v.shape[axis] for v in values)
        return self.op("Concat", list(values), name, tuple(shape), axis=axis)

    def slice(self, x: Value, axis: int, start: int, stop: int, name: str) -> Value:
        """``x[…, start:stop, …]`` along ``axis``."""
        shape = list(x.shape)
        shape[axis] = stop - start
        ends = (self.numbers(start), self.numbers(stop), self.numbers(axis))
        return self.op("Slice", [x, *ends], name, tuple(shape))

    def pad_front(self, x: Value, axis: int, count: int, name: str) -> Value:
        """``x`` with ``count`` zeros in front of it along ``axis``."""
        shape = tuple(n + count * (i == axis) for i, n in enumerate(x.shape))
        before = [count * (i == axis) for i in range(len(shape))]
        return self.op("Pad", [x, self.numbers(*before, *[0] * len(shape))], name, shape, mode="constant")

    def conv(
        self, x: Value, weight: Value, bias: Value, name: str, *, before: Sequence[int], after: Sequence[int]
    ) -> Value:
        """A convolution of stride 1 with zeros ``before`` and ``after`` each axis of space and time."""
        kernel = weight.shape[2:]
        sides = zip(x.shape[2:], kernel, before, after, strict=True)
        shape = (x.shape[0], weight.shape[0], *(n + b + a - k + 1 for n, k, b, a in sides))
        pads = [*before, *after]
        return self.op("Conv", [x, weight, bias], name, shape, kernel_shape=list(kernel), pads=pads)

    # ---- finishing ----

    def finish(self, name: str, doc: str) -> onnx.ModelProto:
        """The graph with its weights as inputs instead of initialisers: all of it but their values.

        Raises onnx's errors where the checker or shape inference finds anything wrong: a mistake of this package.
        """
        graph = helper.make_graph(
            self.nodes,
            name,
            [_info(v.name, v.shape) for v in self.inputs] + [_info(n, w.shape) for n, w in self.weights.items()],
            [_info(v.name, v.shape) for v in self.outputs],
            list(self._constants.values()),
            doc_string=doc,
            value_info=self._intermediate(),
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="hvdc",
        )
        onnx.checker.check_model(model, full_check=True)
        return model

    def _intermediate(self) -> list[onnx.ValueInfoProto]:
        outer = {v.name for v in (*self.inputs, *self.outputs)} | set(self.weights)
        return [_info(name, shape) for name, shape in self._shapes.items() if name not in outer]

    def _named(self, name: str, shape: Shape) -> Value:
        assert name not in self._shapes, name  # noqa: S101 - as above
        assert all(n > 0 for n in shape), (name, shape)  # noqa: S101 - as above
        self._shapes[name] = shape
        return Value(name, shape)


def fill(skeleton: onnx.ModelProto, weights: dict[str, Weight]) -> onnx.ModelProto:
    """The skeleton of `GraphBuilder.finish` with the weights' values as initialisers.

    Raises:
        CheckpointError: a weight cannot be read, or holds a value that is not finite.
    """
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    inputs = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    for name, weight in weights.items():
        array = np.ascontiguousarray(weight.read(), np.float32)
        assert array.shape == weight.shape, (name, array.shape)  # noqa: S101 - as above
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def _info(name: str, shape: Shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
