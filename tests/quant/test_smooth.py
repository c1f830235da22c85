"""Smoothing moves factors between activations and weights and leaves the function as it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from exporters.model import TINY, Geometry
from quant.calibration.statistics import Statistics
from quant.gemms import gemm_inputs
from quant.paths.trajectory import NumericPath, Trajectory, fp32, npu
from quant.paths.weights import Weights
from quant.smooth import LIMIT_LOG2, Rescaling, rescaled_statistics, sites, smoothing_factors
from tests.exporters.models import Values
from tests.quant.models import LATENT, calibrated, difference, generated, weights_of

BOUND = 1e-5
"""‖Δ‖ / ‖ref‖ of the final latent: FP32 roundings, in other places."""

SITES = ("attn1.input", "ffn.input", "attn2.input", "attn1.value", "attn1.query", "attn2.value", "attn2.query")
AFTER_MODULATION = ("attn1.input", "ffn.input")
"""Their factors are in 1 + scale, which is not exact for powers of two either."""


def random_factors(seed: int, geometry: Geometry = TINY, paired: bool = True) -> dict[str, np.ndarray]:
    """Between 1/8 and 8 for every site; pairs of channels share them where RoPE turns one into the other."""
    rng = np.random.default_rng(seed)
    factors = {}
    for site in sites(geometry):
        s = np.exp2(rng.uniform(-3, 3, (geometry.layers, geometry.width)))
        if site.name == "attn1.query" and paired:
            s = np.repeat(s[:, ::2], 2, axis=1)
        factors[site.name] = s.astype(np.float32)
    return factors


def powers_of_two(seed: int, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    factors = random_factors(seed)
    return {name: np.exp2(np.rint(np.log2(factors[name]) / 3)).astype(np.float32) for name in names}


def smoothed(tensors: Values, factors: dict[str, np.ndarray], geometry: Geometry = TINY) -> Weights:
    return weights_of(tensors, geometry, Rescaling(geometry, factors))


@pytest.fixture(scope="module")
def reference(weights: Weights, embeds: Tensor, noise: Tensor) -> list[Tensor]:
    return latents(fp32(weights), embeds, noise)


def latents(path: NumericPath, embeds: Tensor, noise: Tensor) -> list[Tensor]:
    """The running latent after each step: three of the semantic expert, three of the detail expert."""
    run = Trajectory(path, embeds, LATENT)
    state, found = run.start(noise), []
    for _ in path.rest.weights.steps:
        state = run.run(state, path.rest.weights.shape.layers)
        found.append(state.latent)
    return found


def test_there_are_seven_sites() -> None:
    assert sorted(site.name for site in sites(TINY)) == sorted(SITES)
    without = [site.name for site in sites(replace(TINY, cross_attn_norm=False))]
    assert sorted(without) == sorted(set(SITES) - {"attn2.input"})


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_factors_at_every_site_leave_the_function_as_it_is(
    seed: int, tensors: Values, embeds: Tensor, noise: Tensor, reference: list[Tensor]
) -> None:
    """The whole trajectory, both experts."""
    found = latents(fp32(smoothed(tensors, random_factors(seed))), embeds, noise)
    for step, (a, b) in enumerate(zip(found, reference, strict=True)):
        assert difference(a, b) < BOUND, step


@pytest.mark.parametrize("site", SITES)
def test_factors_at_one_site_leave_the_function_as_it_is(
    site: str, tensors: Values, embeds: Tensor, noise: Tensor, reference: list[Tensor]
) -> None:
    found = latents(fp32(smoothed(tensors, {site: random_factors(3)[site]})), embeds, noise)
    assert difference(found[-1], reference[-1]) < BOUND


def test_factors_that_differ_within_a_rotated_pair_change_the_function(
    tensors: Values, embeds: Tensor, noise: Tensor, reference: list[Tensor]
) -> None:
    """RoPE mixes the two; so the tests above can fail. Cross-attention has no RoPE, and its channels no partners."""
    factors = random_factors(0, paired=False)
    found = latents(fp32(smoothed(tensors, {"attn1.query": factors["attn1.query"]})), embeds, noise)
    assert difference(found[-1], reference[-1]) > 100 * BOUND
    found = latents(fp32(smoothed(tensors, {"attn2.query": factors["attn2.query"]})), embeds, noise)
    assert difference(found[-1], reference[-1]) < BOUND


@pytest.mark.parametrize("site", SITES)
def test_a_site_moves_activations_and_weights(site: str, tensors: Values) -> None:
    """At least one tensor or table of the site's changes, in every block: no factor is forgotten."""
    rescaling = Rescaling(TINY, {site: random_factors(4)[site]})
    changed = {name for name, value in tensors.items() if not np.array_equal(rescaling.tensor(name, value), value)}
    for block in range(TINY.layers):
        assert any(name.startswith(f"blocks.{block}.") for name in changed)
    assert all(name.startswith("blocks.") for name in changed)
    adaln = np.random.default_rng(0).standard_normal((6, TINY.layers, 6, TINY.width)).astype(np.float32)
    moved = np.flatnonzero((rescaling.adaln(adaln) != adaln).any(axis=(0, 1, 3))).tolist()
    assert moved == {"attn1.input": [0, 1], "ffn.input": [3, 4]}.get(site, [])


def test_no_factors_change_nothing(tensors: Values) -> None:
    rescaling = Rescaling(TINY, {})
    assert all(rescaling.tensor(name, value) is value for name, value in tensors.items())


def test_rows_in_strips_are_rows_of_the_whole(tensors: Values) -> None:
    rescaling = Rescaling(TINY, random_factors(5))
    for name, value in tensors.items():
        whole = rescaling.tensor(name, value)
        assert whole.dtype == np.float32
        strips = [rescaling.tensor(name, value[i : i + 48], i) for i in range(0, len(value), 48)]
        np.testing.assert_array_equal(np.concatenate(strips), whole, err_msg=name)


@pytest.fixture(scope="module")
def measured(tensors: Values, embeds: Tensor, noise: Tensor) -> Statistics:
    """Of the rescaled model itself."""
    return calibrated(smoothed(tensors, random_factors(6)), embeds, noise)


def test_what_it_says_of_activations_is_what_the_rescaled_model_shows(
    statistics: Statistics, measured: Statistics
) -> None:
    rescaling = Rescaling(TINY, random_factors(6))
    predicted = rescaled_statistics(rescaling, statistics)
    for i in statistics.inputs:
        found, expected = predicted.channel_absmax[i.name], measured.channel_absmax[i.name]
        assert found.dtype == np.float32
        assert found.shape == expected.shape
        peak = expected.max(axis=-1, keepdims=True)
        assert (np.abs(found - expected) <= BOUND * peak).all(), i.name
        np.testing.assert_array_equal(predicted.absmax[..., statistics.inputs.index(i)], found.max(axis=-1))


def test_what_has_no_site_keeps_its_activations(statistics: Statistics, measured: Statistics) -> None:
    rescaling = Rescaling(TINY, random_factors(6))
    untouched = {"attn2.text", "ffn.net.2.input"} | {i.name for i in gemm_inputs(TINY) if "lora_hidden" in i.name}
    for i in gemm_inputs(TINY):
        before = statistics.channel_absmax[i.name]
        same = np.array_equal(rescaling.activations(i.name, before), before)
        assert same == (i.name in untouched), i.name
        if same:
            np.testing.assert_allclose(measured.channel_absmax[i.name], before, rtol=0, atol=BOUND * before.max())


def test_powers_of_two_are_exact_in_fp32(
    tensors: Values, embeds: Tensor, noise: Tensor, reference: list[Tensor]
) -> None:
    """Where a factor only shifts exponents, no rounding changes: the same bits."""
    names = tuple(site for site in SITES if site not in AFTER_MODULATION)
    factors = powers_of_two(7, names)
    assert all(len(np.unique(s)) == 3 for s in factors.values())
    found = latents(fp32(smoothed(tensors, factors)), embeds, noise)
    for a, b in zip(found, reference, strict=True):
        assert torch.equal(a, b)


def test_powers_of_two_of_queries_and_keys_are_exact_on_the_npu(
    tensors: Values, weights: Weights, embeds: Tensor, noise: Tensor
) -> None:
    """They are in norm gains, not in quantised weights, and FP16 rounds q / 2 as it rounds q."""
    expected = latents(npu(weights), embeds, noise)
    found = latents(npu(smoothed(tensors, powers_of_two(8, ("attn1.query", "attn2.query")))), embeds, noise)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_smoothing_changes_what_is_quantised(tensors: Values, weights: Weights, embeds: Tensor, noise: Tensor) -> None:
    found = generated(npu(smoothed(tensors, random_factors(9))), embeds, noise)
    assert not torch.equal(found, generated(npu(weights), embeds, noise))


# ---- the factors ----


def column_maxima(tensors: Values) -> dict[str, np.ndarray]:
    linears = {linear for site in sites(TINY) for linear in site.columns}
    return {
        linear: np.stack([np.abs(tensors[f"blocks.{b}.{linear}.weight"]).max(axis=0) for b in range(TINY.layers)])
        for linear in linears
    }


def one_step(statistics: Statistics, step: int) -> dict[str, np.ndarray]:
    return {name: values[step : step + 1] for name, values in statistics.channel_absmax.items()}


@pytest.mark.parametrize("strength", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("step", [0, 4])
def test_factors_of_one_step_are_smoothquants(
    strength: float, step: int, tensors: Values, statistics: Statistics
) -> None:
    """a^strength / w^(1 − strength) over its geometric mean, to a power of 2^(1/8); √(q / k) for queries."""
    maxima, columns = one_step(statistics, step), column_maxima(tensors)
    found = smoothing_factors(TINY, maxima, columns, strength)
    readers = {
        "attn1.input": ("attn1.to_q", "attn1.to_k", "attn1.to_v"), "ffn.input": ("ffn.net.0.proj",),
        "attn2.input": ("attn2.to_q",), "attn1.value": ("attn1.to_out.0",), "attn2.value": ("attn2.to_out.0",),
    }  # fmt: skip
    entering = {
        "attn1.input": "attn1.input", "ffn.input": "ffn.net.0.proj.input", "attn2.input": "attn2.to_q.input",
        "attn1.value": "attn1.to_out.0.input", "attn2.value": "attn2.to_out.0.input",
    }  # fmt: skip
    assert set(found) == set(SITES)
    for name in SITES:
        if name in readers:
            a = maxima[entering[name]][0].astype(np.float64)
            w = np.max([columns[linear] for linear in readers[name]], axis=0).astype(np.float64)
            s = a**strength / w ** (1 - strength)
        else:
            q, k = (maxima[f"{name[:5]}.{part}"][0].astype(np.float64) for part in ("query", "key"))
            if name == "attn1.query":
                q, k = (np.repeat(x.reshape(TINY.layers, -1, 2).max(axis=-1), 2, axis=1) for x in (q, k))
            s = np.sqrt(q / k)
        expected = np.log2(s) - np.log2(s).mean(axis=1, keepdims=True)
        assert np.abs(np.log2(found[name]) - expected).max() <= 1 / 16 + 1e-6, name


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_factors_are_powers_of_an_eighth_of_an_octave_within_limits(
    strength: float, tensors: Values, statistics: Statistics
) -> None:
    maxima = {name: values.copy() for name, values in statistics.channel_absmax.items()}
    maxima["attn1.input"][:, 0, 5] = 0  # a channel that never fires
    maxima["ffn.net.0.proj.input"][:, 1, 9] *= 1e6
    for name, s in smoothing_factors(TINY, maxima, column_maxima(tensors), strength).items():
        assert s.dtype == np.float32
        assert s.shape == (TINY.layers, TINY.width)
        eighths = np.log2(s.astype(np.float64)) * 8
        assert np.abs(eighths - np.rint(eighths)).max() < 1e-5
        assert np.abs(eighths).max() <= LIMIT_LOG2 * 8
        if name == "attn1.query":
            assert np.array_equal(s[:, ::2], s[:, 1::2]), "pairs"


def test_factors_even_out_what_they_are_made_for(tensors: Values, statistics: Statistics) -> None:
    """With strength 1 the activations of a step become even; with the last bits of a maximum changed, nothing does."""
    maxima, columns = one_step(statistics, 3), column_maxima(tensors)
    factors = smoothing_factors(TINY, maxima, columns, 1.0)
    rescaling = Rescaling(TINY, factors)
    for name in ("attn1.input", "ffn.net.0.proj.input", "attn2.to_q.input", "attn2.to_out.0.input"):
        after = rescaling.activations(name, maxima[name])
        assert (after.max(axis=-1) / after.min(axis=-1)).max() < 2 ** (1 / 8) * 1.001
    nudged = {name: np.nextafter(values, np.float32(np.inf)) for name, values in maxima.items()}
    for name, s in smoothing_factors(TINY, nudged, columns, 1.0).items():
        assert (s == factors[name]).mean() > 0.999


def test_factors_make_a_model_that_computes_the_same(
    tensors: Values, statistics: Statistics, embeds: Tensor, noise: Tensor, reference: list[Tensor]
) -> None:
    factors = smoothing_factors(TINY, statistics.channel_absmax, column_maxima(tensors), 0.5)
    found = latents(fp32(smoothed(tensors, factors)), embeds, noise)
    assert difference(found[-1], reference[-1]) < BOUND
