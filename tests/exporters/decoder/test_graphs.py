"""The graphs: what they read and write, which operators they are made of, and that they are diffusers' decoder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from exporters.decoder.blocks import Variant
from exporters.decoder.builder import OPSET
from exporters.decoder.geometry import caches
from exporters.decoder.graphs import DecoderGraph, first_graph, later_graph, stage_graphs, whole_graph
from exporters.tensor import Float32Array, from_array
from tests.exporters.decoder.vaes import (
    FULL,
    GEOMETRY,
    OTHERS,
    autoencoder,
    denormalised,
    in_memory,
    latent,
    without_values,
)

ort: Any = pytest.importorskip("onnxruntime")

VARIANTS: tuple[Variant, ...] = ("first", "later")

TAKEN = {
    4: {"Add", "Concat", "Conv", "Div", "MatMul", "Mul", "ReduceMean", "Reshape", "Resize", "Sigmoid", "Softmax",
        "Sqrt", "Transpose"},
    5: {"Add", "Concat", "Conv", "Div", "Mul", "Pad", "ReduceMean", "Reshape", "Sigmoid", "Slice", "Sub", "Transpose"},
}  # fmt: skip
"""Operators by the highest rank among their activations that the HTP backend took in INT8 (QAIRT 2.51, V79)."""


def run(model: onnx.ModelProto, feeds: dict[str, Float32Array]) -> dict[str, Float32Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def ranks(graph: DecoderGraph) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Every node with the highest rank among its float activations, inputs and output."""
    proto = graph.skeleton.graph
    values = (*proto.value_info, *proto.input, *proto.output)
    rank = {v.name: len(v.type.tensor_type.shape.dim) for v in values if v.name not in graph.weights}
    for node in proto.node:
        yield node, max(rank[name] for name in (*node.input, *node.output) if name in rank)


# ---- form ----


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("geometry", [GEOMETRY, FULL], ids=["small", "full"])
def test_only_operators_that_the_npu_takes_at_their_rank(variant: Variant, geometry: Any) -> None:
    graph = whole_graph(without_values(geometry), variant, 6, 5)
    for node, rank in ranks(graph):
        assert node.op_type in TAKEN.get(rank, ()), f"{node.op_type} at rank {rank}: {node.name}"
        assert node.domain == ""


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_feature_map_changes_its_rank_only_around_a_2d_convolution(variant: Variant) -> None:
    """Reshapes of more than one channel lie in the attention and in the upsamplings; the norms reshape one channel."""
    graph = whole_graph(without_values(FULL), variant, 60, 40)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.skeleton.graph.value_info}
    for node, rank in ranks(graph):
        if node.op_type == "Reshape" and rank == 5 and not node.name.startswith("mid_block.attentions.0"):
            one_channel = shapes[node.output[0]][1] == 1 and math.prod(shapes[node.output[0]]) <= 4 * 480 * 320
            assert one_channel or "upsamplers" in node.name, node.name


@pytest.mark.parametrize("variant", VARIANTS)
def test_shapes_are_fixed_and_names_unique(variant: Variant) -> None:
    graph = whole_graph(in_memory(), variant, 6, 5)
    model = graph.model()
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    for value in (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output):
        assert all(d.WhichOneof("value") == "dim_value" for d in value.type.tensor_type.shape.dim), value.name
    outputs = [name for node in model.graph.node for name in node.output]
    assert len(set(outputs)) == len(outputs)
    assert [node.name for node in model.graph.node] == outputs
    assert [(o.domain, o.version) for o in model.opset_import] == [("", OPSET)]


@pytest.mark.parametrize(("variant", "convolutions"), [("first", 37), ("later", 39)])
def test_the_full_size_graph_of_the_paper_s_tile(variant: Variant, convolutions: int) -> None:
    """Its ports and caches; no weight is read. The fused q, k, v count as one convolution."""
    graph = whole_graph(without_values(FULL), variant, 60, 40)
    shapes = {value.name: value.shape for value in (*graph.inputs, *graph.outputs)}
    assert shapes["latent"] == (1, 16, 1, 60, 40)
    assert shapes["frames"] == (1, 3, 1 if variant == "first" else 4, 480, 320)
    own = caches(FULL, 60, 40)
    assert graph.caches == own
    assert [v.name for v in graph.outputs] == ["frames", *(c.output_name for c in own)]
    expected_inputs = ["latent"] if variant == "first" else ["latent", *(c.input_name for c in own)]
    assert [v.name for v in graph.inputs] == expected_inputs
    for cache in own:
        assert shapes[cache.output_name] == cache.shape
        assert variant == "first" or shapes[cache.input_name] == cache.shape
    assert sum(node.op_type == "Conv" for node in graph.skeleton.graph.node) - 2 == convolutions
    assert sum(math.prod(cache.shape) for cache in own) == 363_187_200


def test_no_constant_is_large() -> None:
    """Zero frames and the like are computed: as constants they would be as large as the feature maps."""
    for variant in VARIANTS:
        skeleton = whole_graph(without_values(FULL), variant, 60, 40).skeleton
        assert max(math.prod(c.dims) for c in skeleton.graph.initializer) <= 16
        assert skeleton.ByteSize() < 200_000


def test_both_graphs_share_their_weights() -> None:
    """But for the time convolutions, which the first frame skips."""
    first, later = first_graph(in_memory(), 6, 5), later_graph(in_memory(), 6, 5)
    more = set(later.weights) - set(first.weights)
    assert set(first.weights) < set(later.weights)
    assert all(".time_conv." in name for name in more)
    values = [{i.name: i.raw_data for i in graph.model().graph.initializer} for graph in (first, later)]
    assert all(values[0][name] == values[1][name] for name in first.weights)


def test_equal_decoders_write_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        later_graph(in_memory(), 6, 5).write(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    onnx.checker.check_model(tmp_path / "a", full_check=True)


# ---- values ----


@pytest.mark.parametrize("name", ["small", *OTHERS])
def test_frames_and_caches_are_diffusers(name: str) -> None:
    """Four latent frames: every frame before clamping, and every cache, against diffusers' decoder and `feat_map`."""
    geometry = GEOMETRY if name == "small" else OTHERS[name]
    decoder, model = in_memory(geometry), autoencoder(geometry)
    z = latent(4, 3, 4, geometry)
    graphs = {variant: whole_graph(decoder, variant, 3, 4) for variant in VARIANTS}
    models = {variant: graph.model() for variant, graph in graphs.items()}
    model.clear_cache()
    x = model.post_quant_conv(denormalised(z, decoder.weights))
    feeds: dict[str, Float32Array] = {}
    for t in range(4):
        variant = VARIANTS[min(t, 1)]
        slots = [0]
        expected = model.decoder(x[:, :, t : t + 1], feat_cache=model._feat_map, feat_idx=slots, first_chunk=t == 0)
        out = run(models[variant], feeds | {"latent": z[None, :, t : t + 1]})
        np.testing.assert_allclose(out["frames"], expected.numpy(), atol=1e-5, rtol=0)
        own = graphs[variant].caches
        for cache, slot in zip(own, model._feat_map[: slots[0]], strict=True):
            np.testing.assert_allclose(
                out[cache.output_name], two_frames(slot, cache.shape), atol=3e-5, rtol=0, err_msg=f"{t} {cache.name}"
            )
        feeds = {cache.input_name: out[cache.output_name] for cache in own}


def two_frames(slot: Any, shape: tuple[int, ...]) -> Float32Array:
    """A slot of diffusers' cache, which may be 'Rep' or one frame, as two frames."""
    if isinstance(slot, str):
        return np.zeros(shape, np.float32)
    assert isinstance(slot, torch.Tensor)
    return torch.cat([torch.zeros(shape)[:, :, slot.shape[2] :], slot], 2).numpy()


def test_a_pixel_without_any_signal_stays_finite() -> None:
    """`normalize` gives 0 for a pixel whose channels are all 0; here a decoder makes nothing else."""
    weights = in_memory().weights
    zeros = {name: from_array(name, np.zeros(t.shape, np.float32)) for name, t in weights.tensors.items()}
    decoder = replace(in_memory(), weights=replace(weights, tensors=zeros))
    out = run(first_graph(decoder, 3, 4).model(), {"latent": latent(1, 3, 4)[None]})
    assert all(not values.any() and np.isfinite(values).all() for values in out.values())


# ---- stages ----


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("groups", [None, [("mid", "up0"), ("up1",), ("up2", "up3")]], ids=["each", "groups"])
def test_stages_together_are_the_whole(variant: Variant, groups: Any) -> None:
    decoder = in_memory()
    whole = whole_graph(decoder, variant, 4, 3)
    parts = stage_graphs(decoder, variant, 4, 3, groups)
    assert [c for part in parts for c in part.caches] == list(whole.caches)
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in whole.inputs}
    expected, values = run(whole.model(), feeds), dict(feeds)
    for part in parts:
        values |= run(part.model(), {v.name: values[v.name] for v in part.inputs})
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def test_names_of_stages_and_of_the_values_between_them() -> None:
    parts = stage_graphs(without_values(), "later", 60, 40)
    assert [part.stages for part in parts] == [("mid",), ("up0",), ("up1",), ("up2",), ("up3",)]
    assert [part.name for part in parts] == [f"decoder_later_{s}" for s in ("mid", "up0", "up1", "up2", "up3")]
    assert [(part.inputs[0].name, part.inputs[0].shape) for part in parts] == [
        ("latent", (1, 16, 1, 60, 40)),
        ("mid_block.resnets.1", (1, 384, 1, 60, 40)),
        ("up_blocks.0.upsamplers.0", (1, 192, 2, 120, 80)),
        ("up_blocks.1.upsamplers.0", (1, 192, 4, 240, 160)),
        ("up_blocks.2.upsamplers.0", (1, 96, 4, 480, 320)),
    ]
    whole = later_graph(without_values(), 60, 40)
    assert whole.name == "decoder_later"
    inside = {node.output[0] for node in whole.skeleton.graph.node}
    assert {part.inputs[0].name for part in parts[1:]} <= inside


@pytest.mark.parametrize("groups", [[("mid",)], [("up0", "mid"), ("up1", "up2", "up3")], [(), ("mid", "up0")], []])
def test_groups_that_are_not_all_stages_in_order(groups: Any) -> None:
    with pytest.raises(ValueError, match="mid, up0, up1, up2, up3"):
        stage_graphs(without_values(), "first", 6, 5, groups)


@pytest.mark.parametrize(("rows", "columns"), [(0, 5), (5, -1)])
def test_a_tile_without_pixels(rows: int, columns: int) -> None:
    with pytest.raises(ValueError, match="at least one latent pixel"):
        first_graph(without_values(), rows, columns)
