"""Small QDQ graphs, written node by node: integers at inputs and outputs, weights in INT8 for each output channel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

WEIGHT_SCALE = 0.0005


class Graph:
    """A graph under construction. Values are named by the caller or counted; all activations share one scale."""

    def __init__(self, dtype: type[np.unsignedinteger[Any]] = np.uint8, seed: int = 0) -> None:
        self.dtype = np.dtype(dtype)
        self.bits = 8 * self.dtype.itemsize
        self.scale = 8 / (2**self.bits - 1)
        self.zero = 2 ** (self.bits - 1)
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        output = output or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], name=name, **attributes))
        return output

    def _parameters(self) -> list[str]:
        return [self.constant(np.float32(self.scale)), self.constant(np.asarray(self.zero, self.dtype))]

    def quantised(self, value: str, output: str = "") -> str:
        return self.node("QuantizeLinear", [value, *self._parameters()], output)

    def real(self, value: str) -> str:
        return self.node("DequantizeLinear", [value, *self._parameters()])

    def rounded(self, value: str) -> str:
        """Through a Q and a DQ, as every activation is."""
        return self.real(self.quantised(value))

    def input(self, name: str, shape: Sequence[int | str]) -> str:
        kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return self.real(name)

    def output(self, value: str, name: str, shape: Sequence[int]) -> None:
        kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))
        self.quantised(value, name)

    def conv(self, value: str, channels: tuple[int, int], kernel: Sequence[int], pads: Sequence[int]) -> str:
        """``channels`` are those in and out."""
        ins, outs = channels
        scales = np.full(outs, WEIGHT_SCALE, np.float32)
        weight = self.random.integers(-127, 128, (outs, ins, *kernel)).astype(np.int8)
        bias = self.random.integers(-500, 500, outs).astype(np.int32)
        parts = [
            self.node(
                "DequantizeLinear", [self.constant(a), self.constant(s), self.constant(np.zeros(outs, a.dtype))], axis=0
            )
            for a, s in ((weight, scales), (bias, scales * np.float32(self.scale)))
        ]
        return self.node("Conv", [value, *parts], kernel_shape=list(kernel), pads=list(pads))

    def save(self, path: Path) -> Path:
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, self.constants)
        opset = 19 if self.bits == 8 else 21  # 16-bit Q and DQ came with opset 21
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        onnx.checker.check_model(model)
        onnx.save(model, path)
        return path


CONV2D = {"x": (1, 8, 16, 16)}
CAUSAL = {"x": (1, 16, 2, 12, 12), "cache_in": (1, 16, 2, 12, 12)}


def conv2d(path: Path) -> Path:
    """3×3, 8 to 16 channels, on 16×16."""
    g = Graph()
    g.output(g.conv(g.input("x", CONV2D["x"]), (8, 16), (3, 3), (1, 1, 1, 1)), "y", (1, 16, 16, 16))
    return g.save(path)


def causal(path: Path, dtype: type[np.unsignedinteger[Any]] = np.uint8) -> Path:
    """Causal 3×3×3 convolution of two frames, the two before them in a cache; the last two go out as the next cache."""
    g = Graph(dtype)
    x, cache = (g.input(name, shape) for name, shape in CAUSAL.items())
    frames = g.rounded(g.node("Concat", [cache, x], axis=2))
    y = g.conv(frames, (16, 24), (3, 3, 3), (0, 1, 1, 0, 1, 1))
    g.output(y, "y", (1, 24, 2, 12, 12))
    ends = [g.constant(np.array([n])) for n in (2, 4, 2)]
    g.output(g.node("Slice", [frames, *ends]), "cache_out", CAUSAL["cache_in"])
    return g.save(path)


def first_chunk(path: Path) -> Path:
    """`causal` without a cache before it, with the same weights."""
    g = Graph()
    frames = g.rounded(g.input("x", CAUSAL["x"]))
    y = g.conv(frames, (16, 24), (3, 3, 3), (2, 1, 1, 0, 1, 1))
    g.output(y, "y", (1, 24, 2, 12, 12))
    return g.save(path)


def channel_mean(path: Path) -> Path:
    """The mean over the channels at rank 5, as in an RMS norm of video features."""
    g, shape = Graph(), (1, 8, 2, 8, 8)
    axes = g.constant(np.array([1]))
    g.output(g.node("ReduceMean", [g.input("x", shape), axes], keepdims=1), "y", (1, 1, 2, 8, 8))
    return g.save(path)


def unary(path: Path, kind: str, shape: Sequence[int], out: Sequence[int] | None = None) -> Path:
    """One operator with one input."""
    g = Graph()
    g.output(g.node(kind, [g.input("x", shape)]), "y", out or shape)
    return g.save(path)


def above_vtcm(path: Path) -> Path:
    """A whole feature map of 147 MiB that changes its rank: it is not cut into pieces. Fails in half a second at
    optimisation 3; at 1 it compiles.
    """
    g, shape, flat = Graph(), (1, 96, 4, 480, 832), (1, 384, 480, 832)
    x = g.input("x", shape)
    square = g.rounded(g.node("Mul", [x, x]))
    g.output(g.node("Reshape", [square, g.constant(np.array(flat))]), "y", flat)
    return g.save(path)


def above_the_graph_limit(path: Path) -> Path:
    """24 inputs and outputs of 80 MiB: 3,932,168 KB by QNN's count. Fails in half a second at optimisation 1."""
    g, shape = Graph(), (1, 32, 2048, 1280)
    for i in range(24):
        g.output(g.node("Sigmoid", [g.input(f"x{i}", shape)]), f"y{i}", shape)
    return g.save(path)


def above_four_gib(path: Path) -> Path:
    """Two inputs and an output of 1 GiB."""
    g, shape = Graph(), (1, 32, 8192, 4096)
    g.output(g.node("Add", [g.input(f"x{i}", shape) for i in range(2)]), "y", shape)
    return g.save(path)


def values(shapes: dict[str, tuple[int, ...]], dtype: Any = np.uint8, seed: int = 1) -> dict[str, np.ndarray]:
    """Random inputs over the whole range of the dtype."""
    random = np.random.default_rng(seed)
    return {name: random.integers(0, np.iinfo(dtype).max + 1, shape, dtype) for name, shape in shapes.items()}
