"""From statistics to scales: what each mode promises, by definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quant.calibration.histogram import BINS, edges
from quant.calibration.modes import MODES, Mode, activation_scales, all_zero
from quant.calibration.statistics import exists, from_arrays
from tests.quant.made import (
    EXPERT_STEPS,
    INPUTS,
    NAMES,
    SHAPE,
    STATISTICS,
    STEPS,
    VALUES,
    Array,
    absent,
    drawn_values,
    of_an_expert,
    places,
    statistics_of,
)


def test_per_step_is_the_largest_magnitude_over_127() -> None:
    scales = activation_scales(STATISTICS, STEPS, "per-step")
    assert scales.table.dtype == np.float32
    assert scales.table.shape == (6, SHAPE.layers, 21)
    assert scales.inputs == tuple(NAMES)
    for step, block, name in places():
        x = VALUES[of_an_expert(step, name), block, name]
        assert scales.of(step, block, name) == np.abs(x).max() / np.float32(127)


def test_global_is_the_largest_over_all_steps_over_127() -> None:
    """Both experts' steps; of the expert for what is the expert's."""
    scales = activation_scales(STATISTICS, STEPS, "global")
    for step, block, name in places():
        if INPUTS[NAMES.index(name)].per == "expert":
            tensors = [VALUES[of_an_expert(step, name), block, name]]
        else:
            tensors = [VALUES[s, block, name] for s in range(6) if (s, block, name) in VALUES]
        largest = max(np.abs(x).max() for x in tensors)
        assert scales.of(step, block, name) == largest / np.float32(127)


@pytest.mark.parametrize("percentile", [50.0, 90.0, 99.0, 99.9, 100.0])
def test_percentile_keeps_that_share_of_values_and_little_more(percentile: float) -> None:
    """To a bin: a sixteenth of an octave, at most 1/16 above what would suffice, and never above the maximum."""
    scales = activation_scales(STATISTICS, STEPS, "percentile", percentile)
    for step, block, name in places():
        x = np.sort(np.abs(VALUES[of_an_expert(step, name), block, name]), axis=None)
        limit = scales.of(step, block, name) * 127 * (1 + 1e-6)
        assert (x <= limit).mean() >= percentile / 100
        enough = x[int(np.ceil(percentile / 100 * x.size)) - 1]
        assert enough <= limit <= enough * (1 + 1 / 16) * (1 + 2e-6)
        assert limit <= x[-1] * (1 + 2e-6)


def test_percentile_is_the_upper_edge_of_a_bin_or_the_maximum() -> None:
    """By the histogram alone: the first bin at which the running sum reaches the share."""
    scales = activation_scales(STATISTICS, STEPS, "percentile", 97.5)
    upper = edges()[1:]
    for step, block, name in places():
        n = NAMES.index(name)
        counts, running = STATISTICS.histogram[step, block, n].tolist(), 0
        total = sum(counts)
        for b in range(BINS):
            running += counts[b]
            if running * 1000 >= total * 975:
                break
        expected = min(upper[b], STATISTICS.absmax[step, block, n])
        assert scales.of(step, block, name) == expected / np.float32(127)


def test_all_values_are_within_the_hundredth_percentile_however_large() -> None:
    """The last bin holds all that is above 2^16, so its edge is no bound of what it holds."""
    values = drawn_values()
    values[0, 0, "ffn.net.2.input"] = values[0, 0, "ffn.net.2.input"].copy()
    values[0, 0, "ffn.net.2.input"][0, 0] = 1e6
    scales = activation_scales(statistics_of(values), STEPS, "percentile", 100.0)
    assert scales.of(0, 0, "ffn.net.2.input") * 127 >= 1e6 * (1 - 1e-6)


def real_error(x: Array, clip: float) -> float:
    """Mean squared error of quantising these values with this clipping point, done."""
    step = clip / 127
    q = np.clip(np.rint(x.astype(np.float64) / step), -127, 127)
    return float(((q * step - x) ** 2).mean())


def test_mse_is_near_the_least_error_that_any_clipping_point_of_the_grid_has() -> None:
    """The grid: the largest magnitude times 2^(−i / 16), i below 48. Errors are those of the values themselves."""
    scales = activation_scales(STATISTICS, STEPS, "mse")
    clipped, excess = 0, []
    for step, block, name in places():
        x = VALUES[of_an_expert(step, name), block, name]
        clip = scales.of(step, block, name) * 127
        grid = np.abs(x).max() * 2.0 ** (-np.arange(48) / 16)
        assert np.abs(grid / clip - 1).min() < 1e-6, "a point of the grid"
        excess.append(real_error(x, clip) / min(real_error(x, g) for g in grid))
        clipped += clip < np.abs(x).max() * 0.99
    # A bin counts as its middle, and a tensor has a few large values only.
    assert max(excess) < 1.2
    assert np.mean(excess) < 1.02
    assert clipped > 20, "heavy tails are worth clipping"


def test_mse_is_the_expected_error_over_the_histogram() -> None:
    """(x − clip)² beyond the clipping point, s² / 12 within, x² where x rounds to 0; x the middle of a bin."""
    scales = activation_scales(STATISTICS, STEPS, "mse")
    e = edges().astype(np.float64)
    middle = (e[:-1] + e[1:]) / 2
    middle[0] = 0
    for step, block, name in places()[::2]:
        n = NAMES.index(name)
        counts, peak = STATISTICS.histogram[step, block, n], float(STATISTICS.absmax[step, block, n])
        errors = []
        for i in range(48):
            clip = peak * 2.0 ** (-i / 16)
            s = clip / 127
            each = [(x - clip) ** 2 if x > clip else x**2 if x <= s / 2 else s**2 / 12 for x in middle]
            errors.append(float(counts @ np.array(each)))
        best = peak * 2.0 ** (-int(np.argmin(errors)) / 16)
        assert scales.of(step, block, name) == pytest.approx(best / 127, rel=1e-6)


def test_mse_of_values_without_tails_does_not_clip_much() -> None:
    values = {place: np.sign(x) * np.float32(3) for place, x in VALUES.items()}
    scales = activation_scales(statistics_of(values), STEPS, "mse")
    for step, block, name in places():
        assert scales.of(step, block, name) * 127 > 2.8


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(1, 100))
def test_global_is_at_least_per_step_which_is_at_least_the_others(seed: int, percentile: float) -> None:
    rng = np.random.default_rng(seed)
    arrays = {name: array.copy() for name, array in STATISTICS.arrays().items()}
    factor = rng.lognormal(0, 1, (6, SHAPE.layers, 1)).astype(np.float32)
    for i in INPUTS:
        if i.per == "step":
            arrays[f"channel_absmax.{i.name}"] *= factor
    statistics = from_arrays(SHAPE, 6, arrays)
    table = {m: activation_scales(statistics, STEPS, m, percentile).table for m in MODES}
    assert (table["global"] >= table["per-step"]).all()
    assert (table["per-step"] >= table["percentile"]).all()
    assert (table["per-step"] >= table["mse"]).all()


@pytest.mark.parametrize("mode", MODES)
def test_what_is_an_experts_has_one_scale_in_all_its_steps(mode: Mode) -> None:
    table = activation_scales(STATISTICS, STEPS, mode).table
    differ = 0
    for n, i in enumerate(INPUTS):
        for expert in i.experts:
            steps = EXPERT_STEPS[expert]
            same = (table[steps, :, n] == table[steps[0], :, n]).all()
            if i.per == "expert" or mode == "global":
                assert same, i.name
            else:
                differ += not same
        if i.per == "expert" and len(i.experts) == 2:
            assert (table[0, :, n] != table[3, :, n]).all(), "each expert its own"
    assert differ > 0 or mode == "global"


@pytest.mark.parametrize("mode", MODES)
def test_an_input_that_does_not_exist_has_zero_and_is_refused(mode: Mode) -> None:
    scales = activation_scales(STATISTICS, STEPS, mode)
    there = exists(INPUTS, STEPS)
    assert ((scales.table != 0) == there[:, None, :]).all()
    for step in range(6):
        for name in NAMES:
            if absent(step, name):
                with pytest.raises(KeyError, match=name):
                    scales.of(step, 0, name)
            else:
                assert scales.of(step, 0, name) > 0
    with pytest.raises(KeyError):
        scales.of(0, 0, "attn3.input")


@pytest.mark.parametrize("mode", MODES)
def test_an_input_that_was_all_zeros_has_scale_1_and_is_listed(mode: Mode) -> None:
    values = dict(VALUES)
    for place in ((1, 1, "ffn.net.2.input"), (4, 0, "attn1.to_q.lora_hidden"), (3, 1, "attn2.value")):
        values[place] = np.zeros_like(values[place])
    statistics = statistics_of(values)
    expected = {
        (1, 1, "ffn.net.2.input"), (4, 0, "attn1.to_q.lora_hidden"),
        (3, 1, "attn2.value"), (4, 1, "attn2.value"), (5, 1, "attn2.value"),
    }  # fmt: skip
    assert set(all_zero(statistics, STEPS)) == expected
    assert len(all_zero(statistics, STEPS)) == len(expected)
    scales = activation_scales(statistics, STEPS, mode)
    for step, block, name in expected:
        if mode != "global" or name == "attn2.value":
            assert scales.of(step, block, name) == 1
        else:
            assert scales.of(step, block, name) < 1, "another step had values"
    assert all_zero(STATISTICS, STEPS) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_scale_is_a_normal_number(mode: Mode) -> None:
    """What is smaller than any normal scale could show is treated as zeros; the smallest normal scale is kept."""
    values = {place: np.zeros_like(x) for place, x in VALUES.items()}
    values[0, 0, "attn1.input"] = np.full_like(VALUES[0, 0, "attn1.input"], 100 * 2.0**-126)
    values[0, 1, "attn1.input"] = np.full_like(VALUES[0, 1, "attn1.input"], 127 * 2.0**-120)
    scales = activation_scales(statistics_of(values), STEPS, mode)
    assert scales.of(0, 0, "attn1.input") == 1
    if mode in ("per-step", "global"):
        assert scales.of(0, 1, "attn1.input") == 2.0**-120


def test_values_become_codes_that_use_the_whole_range() -> None:
    """With per-step scales the largest value of each tensor is ±127, and nothing is clipped."""
    scales = activation_scales(STATISTICS, STEPS, "per-step")
    for (step, block, name), x in VALUES.items():
        quotient = np.abs(x / np.float32(scales.of(step, block, name)))
        assert np.rint(quotient).max() == 127
        assert quotient.max() < 127.001


def test_the_modes_are_those_of_the_configuration() -> None:
    """Two rooms that may not import each other name them; a person writes the configuration's."""
    from hvdc.config import SCALE_MODES

    assert SCALE_MODES == MODES
