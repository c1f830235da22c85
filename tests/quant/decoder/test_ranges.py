"""Observation sees every value of every tensor while frames are streamed, and graphs of another kind are refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from quant.decoder.errors import DecoderQuantError
from quant.decoder.graph import Graphs, Key, structure
from quant.decoder.ranges import Range, observe
from quant.decoder.stream import Streamer
from tests.quant.decoder.small import STAGES, clip, float_graphs, graphs, known, ranges


def with_all_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    out = onnx.ModelProto()
    out.CopyFrom(model)
    names = {value.name for value in out.graph.output}
    out.graph.output.extend(value for value in model.graph.value_info if value.name not in names)
    return out


def test_extremes_are_those_of_all_values_over_all_frames() -> None:
    latents = [clip(1), clip(2)]
    seen = observe(graphs(), latents)
    assert seen.latent_frames == 6
    everything = Graphs.of(*([with_all_outputs(m) for m in graphs().models(v)] for v in ("first", "later")))
    low: dict[Key, float] = {}
    high: dict[Key, float] = {}
    for z in latents:
        for variant, out in Streamer(everything).run(z):
            for name, value in out.items():
                key = Key(variant, name)
                low[key] = min(low.get(key, np.inf), float(value.min()))
                high[key] = max(high.get(key, -np.inf), float(value.max()))
    checked = [key for key in seen.ranges if key.name != "latent"]
    assert len(checked) > 100
    for key in checked:
        assert (seen.ranges[key].low, seen.ranges[key].high) == (low[key], high[key]), key
    z = np.stack([latents[0][:, 1:], latents[1][:, 1:]])
    assert (seen.ranges[Key("later", "latent")].low, seen.ranges[Key("later", "latent")].high) == (z.min(), z.max())


def test_stages_see_what_the_whole_sees() -> None:
    whole = observe(graphs(), [clip(1)])
    cut = observe(float_graphs(groups=STAGES), [clip(1)])
    assert set(cut.ranges) == set(whole.ranges)
    for key, r in cut.ranges.items():
        assert (r.low, r.high) == (whole.ranges[key].low, whole.ranges[key].high), key


@pytest.mark.parametrize("groups", [None, STAGES])
def test_ranges_do_not_depend_on_the_number_of_jobs(groups: list[list[str]] | None) -> None:
    latents = [clip(1), clip(2, frames=1), clip(3)]
    counted: list[tuple[int, int]] = []
    cut = float_graphs(groups=groups)
    one, three = observe(cut, latents), observe(cut, latents, jobs=3, progress=lambda *a: counted.append(a))
    assert counted == [(1, 3), (2, 3), (3, 3)]
    assert one.latent_frames == three.latent_frames == 7
    assert list(one.ranges) == list(three.ranges)
    for key, r in one.ranges.items():
        other = three.ranges[key]
        assert (r.low, r.high, r.sampled) == (other.low, other.high, other.sampled), key
        assert r.lows.tobytes() == other.lows.tobytes(), key
        assert r.highs.tobytes() == other.highs.tobytes(), key


def test_ranges_seen_apart_are_joined() -> None:
    values = np.random.default_rng(0).normal(size=(4, 5000)).astype(np.float32)
    together, apart = Range(), [Range(), Range()]
    for i, part in enumerate(values):
        together.add(float(part.min()), float(part.max()), part)
        apart[i // 2].add(float(part.min()), float(part.max()), part)
    apart[0].join(apart[1])
    assert (together.low, together.high, together.sampled) == (apart[0].low, apart[0].high, apart[0].sampled)
    assert (together.lows == apart[0].lows).all()
    assert (together.highs == apart[0].highs).all()


def test_a_percentile_leaves_out_both_tails() -> None:
    r = Range()
    values = np.random.default_rng(0).permutation(1000).astype(np.float32)
    for part in np.split(values, 4):
        r.add(float(part.min()), float(part.max()), part)
    assert r.within(100) == (0, 999)
    assert r.within(99) == (10, 989)
    r.sampled = 1 << 30
    with pytest.raises(ValueError, match="outermost"):
        r.within(99)


def test_too_little_or_strange_input_is_refused() -> None:
    with pytest.raises(DecoderQuantError, match="two frames"):
        observe(graphs(), [clip(1, frames=1)])
    with pytest.raises(DecoderQuantError, match="two frames"):
        observe(graphs(), [])
    with pytest.raises(DecoderQuantError, match=r"a latent of this graph is float32 \[4, T, 3, 4\]"):
        observe(graphs(), [clip(1, rows=4)])
    with pytest.raises(DecoderQuantError, match="float64"):
        observe(graphs(), [clip(1).astype(np.float64)])  # type: ignore[list-item]
    bad = clip(1)
    bad[0, 1, 0, 0] = np.nan
    with pytest.raises(DecoderQuantError, match="not finite"):
        observe(graphs(), [bad])


# ---- structure ----


def test_group_names_do_not_depend_on_the_tile() -> None:
    other = structure(float_graphs(2, 2))
    assert other.group_of == known().group_of
    assert list(other.groups) == list(known().groups)


def test_every_tensor_has_a_group_and_ranges() -> None:
    assert {key for group in known().groups.values() for key in group.sources} == set(ranges().ranges)
    assert len(known().roots) == 14


def graph(
    nodes: list[onnx.NodeProto], kind: int = TensorProto.FLOAT, dims: tuple[object, ...] = (1, 4)
) -> onnx.ModelProto:
    names = [name for node in nodes for name in node.output]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in names]
    latent = helper.make_tensor_value_info("latent", kind, dims)
    made = helper.make_graph(nodes, "other", [latent], values[-1:], value_info=values[:-1])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)])


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (graph([helper.make_node("Relu", ["latent"], ["y"])]), "operator Relu"),
        (graph([helper.make_node("QuantizeLinear", ["latent", "s"], ["y"])]), "operator QuantizeLinear"),
        (graph([helper.make_node("Sqrt", ["latent"], ["y"])]), "not that of a mean of squares"),
        (graph([helper.make_node("Sigmoid", ["latent"], ["y"])], TensorProto.UINT8), "not float32"),
        (graph([helper.make_node("Sigmoid", ["latent"], ["y"])], dims=("n", 4)), "not a number"),
        (graph([helper.make_node("Mul", ["latent", "z"], ["y"])]), "not known"),
    ],
)
def test_another_graph_is_refused(model: onnx.ModelProto, what: str) -> None:
    with pytest.raises(DecoderQuantError, match=what):
        structure(Graphs.of(model, model))


def test_a_cache_that_nothing_writes_is_refused() -> None:
    later = onnx.ModelProto()
    later.CopyFrom(graphs().later[0])
    strange = helper.make_tensor_value_info("cache.nowhere", TensorProto.FLOAT, (1, 4))
    later.graph.input.append(strange)
    with pytest.raises(DecoderQuantError, match=r"nothing writes a tensor.*nowhere"):
        structure(Graphs.of(graphs().first, later))
    with pytest.raises(DecoderQuantError, match="first latent frame reads a cache"):
        structure(Graphs.of(graphs().later, graphs().later))
