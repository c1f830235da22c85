"""Names looked up in an onnxruntime model that is being quantised.

onnxruntime's own ``ONNXModel`` looks at every node for each tensor that gets other readers, and at every initialiser
for each that is added: quadratic in the size of a graph, and half the time of quantising a decoder's.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import onnx


def look_up_by_name(held: Any) -> None:
    """In place: an ``ONNXModel`` whose nodes' inputs are replaced by its own methods alone finds readers and
    initialisers by name. What it computes stays the same."""
    found = _Lookups(held)
    for name in ("replace_node_input", "replace_input_of_all_nodes", "replace_input_of_nodes"):
        setattr(held, name, getattr(found, name))
    held.add_initializer, held.get_initializer = found.add_initializer, found.get_initializer


class _Lookups:
    """``readers``: nodes that read a tensor, or did: an entry is looked at again before it is believed."""

    def __init__(self, held: Any) -> None:
        self._held = held
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._nodes_seen = self._initializers_seen = 0

    def replace_node_input(self, node: onnx.NodeProto, old: str, new: str) -> None:
        for i, name in enumerate(node.input):
            if name == old:
                node.input[i] = new
                self._readers.setdefault(new, []).append(node)

    def replace_input_of_all_nodes(self, old: str, new: str) -> None:
        for node in list(self._all_readers().get(old, ())):
            self.replace_node_input(node, old, new)

    def replace_input_of_nodes(self, old: str, new: str, names: Container[str]) -> None:
        for node in list(self._all_readers().get(old, ())):
            if node.name in names:
                self.replace_node_input(node, old, new)

    def add_initializer(self, tensor: onnx.TensorProto) -> None:
        if self.get_initializer(tensor.name) is None:
            self._held.initializer().extend([tensor])

    def get_initializer(self, name: str) -> onnx.TensorProto | None:
        tensors = self._held.initializer()
        if len(tensors) < self._initializers_seen:
            self._initializers, self._initializers_seen = {}, 0
        for tensor in tensors[self._initializers_seen :]:
            self._initializers.setdefault(tensor.name, tensor)
        self._initializers_seen = len(tensors)
        return self._initializers.get(name)

    def _all_readers(self) -> dict[str, list[onnx.NodeProto]]:
        nodes = self._held.model.graph.node
        if len(nodes) < self._nodes_seen:
            self._readers, self._nodes_seen = {}, 0
        for node in nodes[self._nodes_seen :]:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._nodes_seen = len(nodes)
        return self._readers
