"""The two float graphs of a streaming decoder, and which of their tensors must share one encoding.

``first`` decodes the first latent frame and ``later`` each other one; each is one ONNX model, or several that follow
each other. A model reads ``latent`` or what the one before it wrote, and in ``later`` the caches ``cache.NAME``; it
writes ``frames`` or the value for the one after it, and the caches ``next_cache.NAME``. Names are the contract:
nothing here depends on a tile's size, so that encodings measured on one size serve graphs of another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from quant.decoder.errors import DecoderQuantError

Variant = Literal["first", "later"]
VARIANTS: tuple[Variant, ...] = ("first", "later")

LATENT, FRAMES = "latent", "frames"
CACHE, NEXT_CACHE = "cache.", "next_cache."

MOVES: Mapping[str, slice] = {
    "Reshape": slice(0, 1),
    "Transpose": slice(0, 1),
    "Slice": slice(0, 1),
    "Resize": slice(0, 1),
    "Pad": slice(0, 1),
    "Concat": slice(None),
}
"""Operators that only move values, and which of their inputs those are."""

COMPUTES = {"Conv", "Add", "Sub", "Mul", "Div", "Sigmoid", "Softmax", "MatMul", "ReduceMean", "Sqrt"}
"""Operators that compute new values."""

FIXED = {"Sigmoid", "Softmax"}
"""Operators whose results lie in [0, 1] whatever goes in."""


@dataclass(frozen=True, order=True)
class Key:
    """One float tensor: ``name`` in the graphs of ``variant``."""

    variant: Variant
    name: str


@dataclass(frozen=True)
class Graphs:
    """The models of both variants, in the order in which they run."""

    first: tuple[onnx.ModelProto, ...]
    later: tuple[onnx.ModelProto, ...]

    @staticmethod
    def of(
        first: onnx.ModelProto | Sequence[onnx.ModelProto], later: onnx.ModelProto | Sequence[onnx.ModelProto]
    ) -> Graphs:
        """Of one model each, or of one for each stage."""
        return Graphs(*(tuple([m] if isinstance(m, onnx.ModelProto) else m) for m in (first, later)))

    def models(self, variant: Variant) -> tuple[onnx.ModelProto, ...]:
        return self.first if variant == "first" else self.later

    def __iter__(self) -> Iterator[tuple[Variant, onnx.ModelProto]]:
        for variant in VARIANTS:
            for model in self.models(variant):
                yield variant, model


@dataclass(frozen=True)
class Group:
    """Tensors that share one encoding.

    ``name`` is that of its first tensor. ``keys`` are all of them; ``sources`` those whose values come from outside or
    are computed, so that the others hold nothing else but zeros. ``fixed``: the values are shares of one.
    ``values`` is how many numbers all its tensors hold in the `later` graphs, or in `first` if it occurs only there.
    """

    name: str
    keys: tuple[Key, ...]
    sources: tuple[Key, ...]
    fixed: bool
    values: int


@dataclass(frozen=True)
class Structure:
    """What both variants' graphs say about encodings.

    ``groups`` by name, in the order of the computation; ``group_of`` finds a tensor's. ``roots``: of each square root,
    the groups that lie between the squares and it: the squares, their mean, the root itself.
    """

    groups: Mapping[str, Group]
    group_of: Mapping[Key, str]
    roots: tuple[tuple[str, ...], ...]
    attention: tuple[str, ...]
    """Groups of a softmax's shares, and of the sums that they weigh. A share of one among N pixels is near 1/N, which
    8 bits round to 0 from 512 pixels on, so they always have 16."""

    @property
    def root_groups(self) -> frozenset[str]:
        """All groups of ``roots``: the first candidates for 16 bits."""
        return frozenset(name for root in self.roots for name in root)


def structure(graphs: Graphs) -> Structure:
    """Reads the graphs.

    Raises:
        DecoderQuantError: an operator that is not known here, a dimension that is not a number, a value that is not
            float32, caches that don't pair up, a square root that isn't of a mean of squares: another graph than a
            decoder's.
    """
    found = _Reader()
    for variant, model in graphs:
        found.read(variant, model)
    return found.result()


class _Reader:
    """Union-find over tensors while the graphs are walked."""

    def __init__(self) -> None:
        self.parent: dict[Key, Key] = {}
        self.sources: set[Key] = set()
        self.sizes: dict[Key, int] = {}
        self.fixed: set[Key] = set()
        self.roots: list[list[Key]] = []
        self.attention: list[Key] = []

    def read(self, variant: Variant, model: onnx.ModelProto) -> None:
        where = f"graph {model.graph.name!r}"
        constants = {tensor.name for tensor in model.graph.initializer}
        shapes = float_shapes(model)
        self._ports(variant, model, where)
        for node in model.graph.node:
            if node.op_type not in MOVES and node.op_type not in COMPUTES:
                raise DecoderQuantError(
                    f"the operator {node.op_type} is not one of a decoder's float graph",
                    where=f"{where}, node {node.name!r}",
                    fix="give the float32 graphs of exporters.decoder",
                )
            out = self._add(Key(variant, node.output[0]), shapes, where)
            if node.op_type in MOVES:
                for name in node.input[MOVES[node.op_type]]:
                    self._join(self._add(Key(variant, name), shapes, where), out)
                continue
            for name in node.input:
                if name and name not in constants:
                    self._add(Key(variant, name), shapes, where)
            self.sources.add(out)
            if node.op_type == "Softmax" or any(Key(variant, name) in self.attention for name in node.input):
                self.attention.append(out)
            if node.op_type in FIXED:
                self.fixed.add(out)
        self._find_roots(variant, model, where)

    def _ports(self, variant: Variant, model: onnx.ModelProto, where: str) -> None:
        shapes = float_shapes(model)
        constants = {tensor.name for tensor in model.graph.initializer}
        for value in model.graph.input:
            if value.name in constants:
                continue
            key = self._add(Key(variant, value.name), shapes, where)
            if value.name == LATENT:
                self.sources.add(key)
                self._across(key, LATENT)
            elif value.name.startswith(CACHE):
                if variant == "first":
                    raise DecoderQuantError(
                        "a graph of the first latent frame reads a cache", where=f"{where}, {value.name!r}"
                    )
                self._across(key, f"{NEXT_CACHE}{value.name.removeprefix(CACHE)}")
        for value in model.graph.output:
            key = self._add(Key(variant, value.name), shapes, where)
            if value.name == FRAMES or value.name.startswith(NEXT_CACHE):
                self._across(key, value.name)

    def _across(self, key: Key, name: str) -> None:
        """One encoding for both variants: what one call writes the next reads."""
        for variant in VARIANTS:
            other = Key(variant, name)
            self.parent.setdefault(other, other)
            self._join(key, other)

    def _add(self, key: Key, shapes: Mapping[str, tuple[int, ...]], where: str) -> Key:
        if key.name not in shapes:
            raise DecoderQuantError(
                "a tensor's shape is not known", where=f"{where}, {key.name!r}", fix="infer the shapes"
            )
        self.parent.setdefault(key, key)
        self.sizes[key] = math.prod(shapes[key.name])
        return key

    def _join(self, one: Key, other: Key) -> None:
        a, b = self._root(one), self._root(other)
        if a != b:
            self.parent[b] = a

    def _root(self, key: Key) -> Key:
        while self.parent[key] != key:
            self.parent[key] = self.parent[self.parent[key]]
            key = self.parent[key]
        return key

    def _find_roots(self, variant: Variant, model: onnx.ModelProto, where: str) -> None:
        makers = {node.output[0]: node for node in model.graph.node}
        for node in model.graph.node:
            if node.op_type == "Sqrt":
                chain = [Key(variant, node.output[0])]
                name = node.input[0]
                while name in makers and makers[name].op_type in ("Add", "Reshape"):
                    chain.append(Key(variant, name))
                    name = makers[name].input[0]
                mean = makers.get(name)
                square = makers.get(mean.input[0]) if mean is not None and mean.op_type == "ReduceMean" else None
                if mean is None or square is None or square.op_type != "Mul" or square.input[0] != square.input[1]:
                    raise DecoderQuantError(
                        "a square root is not that of a mean of squares", where=f"{where}, node {node.name!r}"
                    )
                chain += [Key(variant, name), Key(variant, mean.input[0])]
                self.roots.append(chain)
                self._join(Key(variant, name), chain[1])  # the mean with and without its epsilon: one encoding

    def result(self) -> Structure:
        for key in sorted(self.sources):  # what both variants compute under one name has one encoding, so one bias
            if (other := Key("later", key.name)) in self.sources:
                self._join(other, key)
        members: dict[Key, list[Key]] = {}
        for key in self.parent:
            members.setdefault(self._root(key), []).append(key)
        groups: dict[str, Group] = {}
        group_of: dict[Key, str] = {}
        taken: set[str] = set()
        ordered: list[Group] = []
        for keys in members.values():
            sources = tuple(k for k in keys if k in self.sources)
            if not sources:
                raise DecoderQuantError("nothing writes a tensor", where=", ".join(repr(k.name) for k in keys[:3]))
            name = next((k.name for k in sources if k.variant == "later"), sources[0].name)
            name = name if name not in taken else f"first.{name}"
            taken.add(name)
            counted = [k for k in keys if k.variant == "later"] or keys
            fixed = all(k in self.fixed for k in sources)
            ordered.append(Group(name, tuple(keys), sources, fixed, sum(self.sizes.get(k, 0) for k in counted)))
            group_of |= dict.fromkeys(keys, name)
        groups = {group.name: group for group in ordered}
        roots = dict.fromkeys(tuple(dict.fromkeys(group_of[k] for k in chain)) for chain in self.roots)
        attention = dict.fromkeys(group_of[k] for k in self.attention)
        return Structure(groups, group_of, tuple(roots), tuple(attention))


def float_shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes of all float32 tensors but initialisers, as the model states them.

    Raises:
        DecoderQuantError: a dimension that is not a number; an input or output that is not float32.
    """
    graph = model.graph
    shapes: dict[str, tuple[int, ...]] = {}
    ports = {value.name for value in (*graph.input, *graph.output)}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if kind.elem_type != TensorProto.FLOAT:
            if value.name in ports:
                raise DecoderQuantError(
                    "an input or output is not float32", where=f"graph {graph.name!r}, {value.name!r}",
                    fix="give the float graph, not a quantised one",
                )  # fmt: skip
            continue
        dims = tuple(d.dim_value for d in kind.shape.dim)
        if not all(d > 0 for d in dims):
            raise DecoderQuantError("a dimension is not a number", where=f"graph {graph.name!r}, {value.name!r}")
        shapes[value.name] = dims
    return shapes


def constant(model: onnx.ModelProto, name: str) -> np.ndarray | None:
    """An initialiser's value, or None if ``name`` is none."""
    found = next((tensor for tensor in model.graph.initializer if tensor.name == name), None)
    return None if found is None else numpy_helper.to_array(found)
