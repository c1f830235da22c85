"""The measured disturbance of each group, and a choice that stays within its budget and pays."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from quant.decoder.encodings import Encoding, choose_encodings
from quant.decoder.graph import Graphs, structure
from quant.decoder.qdq import quantise, raise_epsilons
from quant.decoder.ranges import observe
from quant.decoder.sensitivity import Sensitivity, choose_wide, measure
from quant.decoder.stream import decode
from tests.quant.decoder.small import (
    STAGES,
    behind_floats,
    clip,
    float_graphs,
    graphs,
    known,
    psnr_db,
    quantised,
    ranges,
)


@pytest.fixture(scope="module")
def measured() -> Sensitivity:
    calls: list[tuple[int, int]] = []
    found = measure(graphs(), ranges(), [clip(10, frames=2)], known=known(), progress=lambda *a: calls.append(a))
    count = len(known().groups)
    assert calls == [(i + 1, count) for i in range(count)]
    return found


def test_every_group_is_measured(measured: Sensitivity) -> None:
    assert list(measured.noise) == list(measured.values) == list(known().groups)
    assert all(math.isfinite(noise) and noise >= 0 for noise in measured.noise.values())
    assert measured.frames == 3
    assert sum(noise > 0 for noise in measured.noise.values()) > 0.9 * len(measured.noise)


def rounded(model: onnx.ModelProto, computed: set[str], given: set[str], encoding: Encoding) -> onnx.ModelProto:
    """The whole model, weights and all, with Q and DQ written behind the tensors of one group."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    raise_epsilons(out, dict.fromkeys(computed, encoding.scale))
    out.graph.initializer.append(numpy_helper.from_array(np.array(encoding.scale, np.float32), "s"))
    out.graph.initializer.append(numpy_helper.from_array(np.array(encoding.zero_point, encoding.dtype), "z"))

    def pair(source: str, target: str) -> list[onnx.NodeProto]:
        codes = f"{target}/codes"
        return [
            helper.make_node("QuantizeLinear", [source, "s", "z"], [codes]),
            helper.make_node("DequantizeLinear", [codes, "s", "z"], [target]),
        ]

    nodes = [node for name in sorted(given) for node in pair(name, f"{name}/read")]
    for node in out.graph.node:
        node.input[:] = [f"{name}/read" if name in given else name for name in node.input]
        name = node.output[0]
        node.output[0] = f"{name}/exact" if name in computed else name
        nodes += [node, *(pair(node.output[0], name) if name in computed else [])]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del out.graph.node[:]
    out.graph.node.extend(copies)
    onnx.checker.check_model(out)
    return out


@pytest.mark.parametrize(("jobs", "groups"), [(1, None), (3, STAGES)])
def test_the_noise_is_that_of_whole_graphs_with_one_group_rounded(groups: list[list[str]] | None, jobs: int) -> None:
    """Over three frames, so that caches are carried from `first` to `later` and from `later` to `later`."""
    whole, latents = float_graphs(groups=groups), [clip(10), clip(11)]
    names = structure(whole)
    seen = observe(whole, latents, names)
    chosen = choose_encodings(names, seen)
    reference = np.concatenate(decode(whole, latents)).astype(np.float64)
    found = measure(whole, seen, latents, jobs=jobs)
    for group in list(names.groups.values())[::7]:
        sources = {(key.variant, key.name) for key in group.sources}
        encoding = chosen.pairs[group.name].stored
        models: dict[str, list[onnx.ModelProto]] = {"first": [], "later": []}
        for variant, model in whole:
            of_group = {name for v, name in sources if v == variant}
            given = of_group & {value.name for value in model.graph.input}
            models[variant].append(rounded(model, of_group - given, given, encoding))
        other = np.concatenate(decode(Graphs.of(models["first"], models["later"]), latents))
        assert found.noise[group.name] == pytest.approx(np.square(other - reference).mean(), rel=1e-12, abs=0), group


def test_frames_alone_disturb_by_a_uniform_error(measured: Sensitivity) -> None:
    """One step is 1/127 of [-1, 1], which is 1/254 of [0, 1]: its mean square is step²/12."""
    assert measured.noise["frames"] == pytest.approx((1 / 254) ** 2 / 12, rel=0.15)


def test_it_is_text_and_back(measured: Sensitivity) -> None:
    again = Sensitivity.from_json(measured.to_json())
    assert again == measured
    assert again.to_json() == measured.to_json()
    lines = measured.lines(5)
    assert len(lines) == 6
    assert max(measured.noise, key=lambda n: measured.noise[n]) in lines[1]


def test_sixteen_bits_where_it_pays_give_better_frames(measured: Sensitivity) -> None:
    chosen = choose_wide(measured, 0.2)
    assert 0 < chosen.share <= 0.2
    assert chosen.chosen_db > chosen.narrow_db
    assert len(chosen.lines()) == 1
    held_out = [clip(seed) for seed in (30, 31)]
    reference = np.concatenate(decode(graphs(), held_out))
    mixed = quantise(graphs(), choose_encodings(known(), ranges(), chosen.wide))
    better = psnr_db(np.concatenate(decode(behind_floats(mixed), held_out)), reference)
    assert better > psnr_db(np.concatenate(decode(behind_floats(quantised(frozenset())), held_out)), reference) + 1


groups = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 1000)), min_size=1, max_size=12)


@given(groups, st.floats(0, 1))
def test_the_budget_holds(pairs: list[tuple[float, int]], budget: float) -> None:
    names = [f"g{i}" for i in range(len(pairs))]
    found = Sensitivity(
        {n: p[0] for n, p in zip(names, pairs, strict=True)},
        {n: p[1] for n, p in zip(names, pairs, strict=True)},
        (),
        1,
    )
    chosen = choose_wide(found, budget)
    assert chosen.share <= budget + 1e-9
    assert chosen.share == pytest.approx(sum(found.values[n] for n in chosen.wide) / sum(found.values.values()))
    assert chosen.chosen_db >= chosen.narrow_db
    assert choose_wide(found, budget) == chosen


def test_what_has_sixteen_bits_anyway_is_free_and_frames_keep_eight() -> None:
    found = Sensitivity(
        {"a": 1.0, "b": 0.5, "c": 0.0, "frames": 0.9}, {"a": 10, "b": 10, "c": 70, "frames": 10}, ("c",), 1
    )
    assert choose_wide(found, 0.1).wide == ("a", "c")
    assert choose_wide(found, 0.1, never=["a"]).wide == ("c", "frames")
    assert choose_wide(found, 1.0).wide == ("a", "b", "c")
    assert choose_wide(found, 0.0).share == 0
    with pytest.raises(ValueError, match="budget"):
        choose_wide(found, -0.1)
