"""What calibration remembers: maxima and counts of exactly the tensors that enter a GEMM, mergeable in any order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from exporters.model import TINY, Geometry
from quant.calibration.histogram import BINS
from quant.calibration.statistics import Statistics, empty, exists, from_arrays
from quant.calibration.watch import (
    StatisticsWatcher,
    run_watched,
)
from quant.gemms import HIDDEN, gemm_inputs, gemm_outputs
from quant.paths.arithmetic import At
from quant.paths.trajectory import Trajectory, fp32
from quant.paths.weights import Weights
from tests.exporters.models import Values
from tests.quant.models import (
    LATENT,
    ONE_EXPERT,
    calibrated,
    drawn,
    generated,
    prompt,
    published,
    schedule_for,
    tensors_of,
    watched,
    weights_of,
)
from tests.quant.test_watch import by_definition

Place = tuple[int, int, str]


class Recorder:
    """Keeps every tensor whole."""

    def __init__(self) -> None:
        self.operands: dict[Place, np.ndarray] = {}
        self.outputs: dict[Place, np.ndarray] = {}

    def operand(self, at: At, name: str, x: Tensor) -> None:
        assert (at.step, at.block, name) not in self.operands, "each once"
        self.operands[at.step, at.block, name] = x.numpy().copy()

    def output(self, at: At, name: str, y: Tensor) -> None:
        self.outputs[at.step, at.block, name] = y.numpy().copy()

    def scores(self, at: At, attn: str, query: Tensor, key: Tensor) -> None:
        q, k = (np.linalg.norm(x.numpy().astype(np.float64), axis=-1).max(axis=-1) for x in (query, key))
        self.outputs[at.step, at.block, f"{attn}.scores_bound"] = (q * k).max()
        assert float((query.double() @ key.double().transpose(-1, -2)).abs().max()) <= (q * k).max()


@pytest.fixture(scope="module")
def recorded(weights: Weights, embeds: Tensor, noise: Tensor) -> Recorder:
    recorder = Recorder()
    watched(weights, recorder, embeds, noise)
    return recorder


def steps_of(weights: Weights, expert: str) -> list[int]:
    return [n for n, step in enumerate(weights.steps) if step.expert == expert]


@pytest.mark.parametrize("geometry", [TINY, ONE_EXPERT], ids=["two experts", "one expert"])
def test_what_is_seen_is_exactly_the_list_of_gemm_inputs(geometry: Geometry, embeds: Tensor, noise: Tensor) -> None:
    """Every input of every step of its experts; what is the expert's, in the first step of each only."""
    weights, recorder = weights_of(tensors_of(geometry), geometry), Recorder()
    watched(weights, recorder, embeds, noise)
    due = {
        (step, block, i.name)
        for i in gemm_inputs(geometry)
        for expert in i.experts
        for step in steps_of(weights, expert)[: 1 if i.per == "expert" else None]
        for block in range(geometry.layers)
    }
    assert set(recorder.operands) == due
    for (_, _, name), x in recorder.operands.items():
        assert x.shape[1] == next(i.channels for i in gemm_inputs(geometry) if i.name == name)
    assert {name for _, _, name in recorder.outputs} == set(gemm_outputs(geometry)) - {HIDDEN}


def test_a_model_with_two_experts_has_21_inputs_and_one_with_one_has_13() -> None:
    assert len(gemm_inputs(TINY)) == 21
    assert len(gemm_inputs(ONE_EXPERT)) == 13
    for_text = {"attn2.text", "attn2.key", "attn2.value", "attn2.to_k.lora_hidden", "attn2.to_v.lora_hidden"}
    assert {i.name for i in gemm_inputs(TINY) if i.per == "expert"} == for_text
    assert {i.name for i in gemm_inputs(TINY) if i.experts == ("detail",)} == {
        f"attn{a}.{linear}.lora_hidden" for a in (1, 2) for linear in ("to_q", "to_k", "to_v", "to_out.0")
    }


def test_maxima_are_those_of_the_tensors(weights: Weights, statistics: Statistics, recorded: Recorder) -> None:
    for i in statistics.inputs:
        for step, at in enumerate(weights.steps):
            first = steps_of(weights, at.expert)[0] if i.per == "expert" else step
            for block in range(TINY.layers):
                found = statistics.channel_absmax[i.name][step, block]
                x = recorded.operands.get((first, block, i.name))
                expected = np.zeros(i.channels, np.float32) if x is None else np.abs(x).max(axis=0)
                np.testing.assert_array_equal(found, expected)
                assert statistics.absmax[step, block, statistics.inputs.index(i)] == expected.max()


def test_outputs_are_those_of_the_tensors(statistics: Statistics, recorded: Recorder) -> None:
    for (step, block, name), y in recorded.outputs.items():
        found = statistics.output_absmax[step, block, statistics.outputs.index(name)]
        assert found == pytest.approx(np.abs(y).max(), rel=1e-6 if "bound" in name else 0)


def test_hidden_states_are_those_after_each_block(
    weights: Weights, statistics: Statistics, embeds: Tensor, noise: Tensor
) -> None:
    reached = []
    trajectory = Trajectory(fp32(weights), embeds, LATENT)
    trajectory.run(trajectory.start(noise), seen=lambda done, hidden: reached.append(float(hidden.abs().max())))
    found = statistics.output_absmax[:, :, statistics.outputs.index(HIDDEN)]
    assert found.ravel().tolist() == reached


def test_a_watched_run_gives_the_same_latent_and_shows_each_block(
    weights: Weights, statistics: Statistics, embeds: Tensor, noise: Tensor
) -> None:
    done: list[int] = []
    found, final = run_watched(weights, embeds, noise, seen=lambda n, hidden: done.append(n))
    assert found.sha256() == statistics.sha256()
    assert torch.equal(final, generated(fp32(weights), embeds, noise))
    assert done == list(range(1, 6 * TINY.layers + 1))


def test_histograms_are_those_of_the_tensors(weights: Weights, statistics: Statistics, recorded: Recorder) -> None:
    for n, i in enumerate(statistics.inputs):
        for step, at in enumerate(weights.steps):
            first = steps_of(weights, at.expert)[0] if i.per == "expert" else step
            for block in range(TINY.layers):
                x = recorded.operands.get((first, block, i.name))
                expected = np.zeros(BINS, np.int64) if x is None else by_definition(x)
                np.testing.assert_array_equal(statistics.histogram[step, block, n], expected)


def hooked(
    tensors: Values, expert: str, timestep: float, embeds: Tensor, latent: Tensor, patch: pytest.MonkeyPatch
) -> dict[tuple[int, str], np.ndarray]:
    """The largest magnitude of each channel at diffusers' own modules: inputs of its linears, operands of attention."""
    from diffusers.models.transformers import transformer_wan

    model = published(tensors, TINY, expert)
    found: dict[tuple[int, str], np.ndarray] = {}
    place = {"block": -1, "attention": 0}

    def keep(name: str, x: Tensor) -> None:
        found[place["block"], name] = x.detach().abs().reshape(-1, x.shape[-1]).amax(dim=0).numpy()

    def begins(block: int) -> None:
        place.update(block=block, attention=0)

    original = transformer_wan.dispatch_attention_fn

    def attention(query: Tensor, key: Tensor, value: Tensor, *args: object, **options: object) -> Tensor:
        place["attention"] += 1
        for part, x in (("query", query), ("key", key), ("value", value)):
            keep(f"attn{place['attention']}.{part}", x.flatten(2))
        return original(query, key, value, *args, **options)

    patch.setattr(transformer_wan, "dispatch_attention_fn", attention)
    names = {
        "attn1.to_q": "attn1.input", "attn1.to_out.0": "attn1.to_out.0.input", "attn2.to_q": "attn2.to_q.input",
        "attn2.to_k": "attn2.text", "attn2.to_out.0": "attn2.to_out.0.input", "ffn.net.0.proj": "ffn.net.0.proj.input",
        "ffn.net.2": "ffn.net.2.input",
    }  # fmt: skip
    for number, block in enumerate(model.blocks):
        block.register_forward_pre_hook(lambda *_, n=number: begins(n))
        for linear in ("attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0", "attn2.to_q", "attn2.to_k",
                       "attn2.to_v", "attn2.to_out.0", "ffn.net.0.proj", "ffn.net.2"):  # fmt: skip

            def entered(_: nn.Module, args: tuple[Tensor, ...], n: int = number, linear: str = linear) -> None:
                if linear in names:
                    keep(names[linear], args[0])
                if expert == "detail" and linear.startswith("attn"):
                    a = torch.from_numpy(tensors[f"blocks.{n}.{linear}.lora_A.weight"])
                    keep(f"{linear}.lora_hidden", args[0] @ a.T)

            block.get_submodule(linear).register_forward_pre_hook(entered)
    with torch.no_grad():
        model(latent[None], torch.tensor([timestep]), embeds[None], return_dict=False)
    return found


@pytest.mark.parametrize("expert", ["semantic", "detail"])
def test_maxima_are_those_that_hooks_in_diffusers_model_see(
    expert: str, tensors: Values, embeds: Tensor, noise: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule that begins with the expert, so that both models read the same latent."""
    model = weights_of(tensors)
    model.steps = tuple(s for s in model.steps if s.expert == expert)
    model.adaln = model.adaln[[n for n, s in enumerate(schedule_for()) if s.expert == expert]]
    model.head_table = model.head_table[[n for n, s in enumerate(schedule_for()) if s.expert == expert]]
    statistics = calibrated(model, embeds, noise)
    found = hooked(tensors, expert, model.steps[0].timestep, embeds, noise, monkeypatch)
    due = {(block, i.name) for i in gemm_inputs(TINY) if expert in i.experts for block in range(TINY.layers)}
    assert set(found) == due
    for (block, name), expected in found.items():
        np.testing.assert_allclose(
            statistics.channel_absmax[name][0, block], expected, rtol=0, atol=1e-5 * expected.max(), err_msg=name
        )


def test_an_experts_inputs_have_the_same_numbers_in_all_its_steps(weights: Weights, statistics: Statistics) -> None:
    for n, i in enumerate(statistics.inputs):
        if i.per == "step":
            continue
        for expert in i.experts:
            first, *others = steps_of(weights, expert)
            for step in others:
                values = statistics.channel_absmax[i.name]
                assert np.array_equal(values[step], values[first])
                assert np.array_equal(statistics.histogram[step, :, n], statistics.histogram[first, :, n])
            assert statistics.absmax[first, :, n].all()
    text = statistics.absmax[:, :, [i.name for i in statistics.inputs].index("attn2.text")]
    assert (text[2] != text[3]).all(), "the experts project the text differently"


def test_zeros_stand_where_an_input_does_not_exist(weights: Weights, statistics: Statistics) -> None:
    there = exists(statistics.inputs, weights.steps)
    assert there.shape == (6, 21)
    assert there.sum(axis=1).tolist() == [13, 13, 13, 21, 21, 21]
    assert ((statistics.absmax > 0) == there[:, None, :]).all()
    assert ((statistics.histogram.sum(axis=-1) > 0) == there[:, None, :]).all()


def test_collected_numbers_can_be_read_twice(weights: Weights, embeds: Tensor, noise: Tensor) -> None:
    """Reading has no effect on what was collected, and what was read does not change afterwards."""
    watcher = StatisticsWatcher(weights)
    watched(weights, watcher, embeds, noise)
    first = watcher.statistics()
    identity = first.sha256()
    assert watcher.statistics().sha256() == identity
    watched(weights, watcher, prompt(50), drawn(51) * 3)
    assert first.sha256() == identity


def test_two_trajectories_in_one_watcher_are_two_that_are_merged(
    weights: Weights, statistics: Statistics, embeds: Tensor, noise: Tensor
) -> None:
    other = (prompt(31), drawn(32) * 2)
    watcher = StatisticsWatcher(weights)
    watched(weights, watcher, embeds, noise)
    watched(weights, watcher, *other)
    merged = statistics.merged(calibrated(weights, *other))
    assert watcher.statistics().sha256() == merged.sha256()
    assert merged.sha256() != statistics.sha256()


# ---- merging ----

SMALL = replace(TINY, layers=1, width=128, heads=1, ffn_width=64, rank=2)


def made_up(seed: int, steps: int = 2) -> Statistics:
    """Statistics with zeros, equal values and large counts among them."""
    rng = np.random.default_rng(seed)

    def like(array: np.ndarray) -> np.ndarray:
        if array.dtype == np.float32:
            return (rng.integers(0, 50, array.shape) * rng.choice([0, 1, 2.0**-140, 1e30], array.shape)).astype("f4")
        return rng.integers(0, 2**40, array.shape)

    return from_arrays(SMALL, steps, {name: like(a) for name, a in empty(SMALL, steps).arrays().items()})


SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=25, deadline=None)
@given(SEEDS, SEEDS, SEEDS)
def test_merging_is_associative_and_commutative_to_the_bit(a: int, b: int, c: int) -> None:
    x, y, z = made_up(a), made_up(b), made_up(c)
    together = x.merged(y).merged(z).sha256()
    assert x.merged(y.merged(z)).sha256() == together
    assert z.merged(x.merged(y)).sha256() == together
    assert y.merged(x).sha256() == x.merged(y).sha256()


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_nothing_is_neutral_and_maxima_and_sums_are_what_merging_makes(a: int) -> None:
    x, y, nothing = made_up(a), made_up(a + 1), empty(SMALL, 2)
    assert x.merged(nothing).sha256() == nothing.merged(x).sha256() == x.sha256()
    both = x.merged(y)
    for name, array in both.arrays().items():
        u, v = x.arrays()[name], y.arrays()[name]
        assert np.array_equal(array, u + v if name == "histogram" else np.maximum(u, v))


def test_merging_leaves_both_as_they_were() -> None:
    x, y = made_up(1), made_up(2)
    before = x.sha256(), y.sha256()
    x.merged(y)
    assert (x.sha256(), y.sha256()) == before


def test_arrays_are_read_back() -> None:
    x = made_up(3)
    assert from_arrays(SMALL, 2, x.arrays()).sha256() == x.sha256()


def test_the_identity_is_of_every_number() -> None:
    x = made_up(4)
    for name, array in x.arrays().items():
        changed = {**x.arrays(), name: array.copy()}
        changed[name].flat[-1] = 5 if array.flat[-1] == 7 else 7
        assert from_arrays(SMALL, 2, changed).sha256() != x.sha256(), name


@pytest.mark.parametrize("name", ["histogram", "output_absmax", "channel_absmax.attn2.text"])
def test_arrays_of_another_model_are_refused(name: str) -> None:
    arrays = made_up(5).arrays()
    wrong = {
        "missing": {n: a for n, a in arrays.items() if n != name},
        "shape": {**arrays, name: arrays[name][..., :-1]},
        "axes": {**arrays, name: arrays[name][None]},
        "dtype": {**arrays, name: arrays[name].astype(np.float64)},
    }
    for held in wrong.values():
        with pytest.raises(ValueError, match=name):
            from_arrays(SMALL, 2, held)


@pytest.mark.parametrize(
    "geometry", [replace(SMALL, layers=2), replace(SMALL, ffn_width=96), replace(SMALL, rank=4), replace(SMALL, rank=0)]
)
def test_statistics_are_of_one_geometry(geometry: Geometry) -> None:
    arrays = made_up(6).arrays()
    if geometry.rank == 0:
        arrays = {n: a for n, a in arrays.items() if "lora" not in n}
    with pytest.raises(ValueError, match="expected"):
        from_arrays(geometry, 2, arrays)


def test_statistics_are_of_a_number_of_steps() -> None:
    with pytest.raises(ValueError, match="expected"):
        from_arrays(SMALL, 3, made_up(7).arrays())
