"""Which channels stand out, what that costs the others, and which outputs come near the end of FP16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quant.calibration.modes import activation_scales
from quant.calibration.outliers import large_outputs, outliers
from quant.calibration.statistics import Statistics, empty, from_arrays
from quant.gemms import FP16_WARNING, gemm_outputs
from quant.integer import quantize_activations
from tests.quant.made import INPUTS, NAMES, SHAPE, STATISTICS, STEPS, VALUES, absent, drawn_values, statistics_of

SCALES = activation_scales(STATISTICS, STEPS, "per-step")


def by_definition(statistics: Statistics, block: int, name: str) -> tuple[float, int, int, float]:
    """(ratio, step, channel, absmax) of the step in which a channel stands out most."""
    best = (-1.0, 0, 0, 0.0)
    for step in range(len(STEPS)):
        if not absent(step, name):
            values = statistics.channel_absmax[name][step, block].astype(np.float64)
            ratio = float(values.max() / np.median(values))
            if ratio > best[0]:
                best = (ratio, step, int(values.argmax()), float(values.max()))
    return best


def test_one_for_each_block_and_input_by_definition() -> None:
    found = {(o.block, o.input): o for o in outliers(STATISTICS, STEPS, SCALES)}
    assert set(found) == {(block, name) for block in range(SHAPE.layers) for name in NAMES}
    for (block, name), o in found.items():
        ratio, step, channel, absmax = by_definition(STATISTICS, block, name)
        assert o.ratio == pytest.approx(ratio, rel=1e-5)
        assert (o.step, o.channel, o.absmax) == (step, channel, absmax)


def test_the_largest_ratio_comes_first() -> None:
    ratios = [o.ratio for o in outliers(STATISTICS, STEPS, SCALES)]
    assert len(ratios) == SHAPE.layers * len(INPUTS)
    assert ratios == sorted(ratios, reverse=True)


def test_few_bits_is_the_share_of_codes_up_to_3() -> None:
    """Fewer than 3 bits: a magnitude of 3 at most. The histogram knows it to a part of a bin."""
    for o in outliers(STATISTICS, STEPS, SCALES):
        first = {"semantic": 0, "detail": 3}[STEPS[o.step].expert]
        x = VALUES[first if INPUTS[NAMES.index(o.input)].per == "expert" else o.step, o.block, o.input]
        scale = torch.tensor(SCALES.of(o.step, o.block, o.input), dtype=torch.float32)
        codes = quantize_activations(torch.from_numpy(x), scale).numpy()
        # A bin at 3.5 scales is 0.2 scales wide; within it values are taken as evenly spread: of small tensors, a few.
        assert o.few_bits == pytest.approx((np.abs(codes) <= 3).mean(), abs=0.005 + 2 / x.size)


def test_an_outlier_is_found_where_it_was_put() -> None:
    values = drawn_values(7)
    x = values[4, 1, "attn1.to_out.0.input"] = values[4, 1, "attn1.to_out.0.input"].copy()
    x[11, 77] = -5000
    statistics = statistics_of(values)
    first = outliers(statistics, STEPS, activation_scales(statistics, STEPS, "per-step"))[0]
    assert (first.block, first.input, first.step, first.channel) == (1, "attn1.to_out.0.input", 4, 77)
    assert first.absmax == 5000
    assert first.few_bits > 0.97, "it takes the bits of all others"


def test_even_channels_have_ratio_1_and_all_bits() -> None:
    values = {place: np.where(x > 0, np.float32(2), np.float32(-2)) for place, x in VALUES.items()}
    statistics = statistics_of(values)
    for o in outliers(statistics, STEPS, activation_scales(statistics, STEPS, "per-step")):
        assert o.ratio == 1
        assert o.few_bits == 0


def test_an_input_of_zeros_does_not_stand_out() -> None:
    values = dict(VALUES)
    for place in values:
        if place[2] == "ffn.net.2.input":
            values[place] = np.zeros_like(values[place])
    statistics = statistics_of(values)
    found = outliers(statistics, STEPS, activation_scales(statistics, STEPS, "per-step"))
    silent = [o for o in found if o.input == "ffn.net.2.input"]
    assert [o.ratio for o in silent] == [0, 0]
    assert found[-2:] == sorted(silent, key=lambda o: o.block)


def test_an_absent_input_is_never_named() -> None:
    for o in outliers(STATISTICS, STEPS, SCALES):
        assert not absent(o.step, o.input)


def with_outputs(**values: float) -> Statistics:
    """``step_block_output=value`` by position in the list of outputs."""
    arrays: dict[str, Any] = {name: a.copy() for name, a in empty(SHAPE, len(STEPS)).arrays().items()}
    for place, value in values.items():
        step, block, output = (int(part) for part in place[1:].split("_"))
        arrays["output_absmax"][step, block, output] = value
    return from_arrays(SHAPE, len(STEPS), arrays)


def test_outputs_near_the_end_of_fp16_are_reported_the_largest_first() -> None:
    assert FP16_WARNING == 30_000
    names = gemm_outputs(SHAPE)
    found = large_outputs(with_outputs(_0_0_0=29_999.0, _1_0_3=30_000.0, _2_1_4=40_000.0, _5_0_1=70_000.0))
    assert [(o.step, o.block, o.output, o.absmax) for o in found] == [
        (5, 0, names[1], 70_000.0),
        (2, 1, names[4], 40_000.0),
    ]
    assert large_outputs(with_outputs()) == []
    assert len(large_outputs(with_outputs(_0_0_0=5.0), limit=4.0)) == 1


def test_an_output_is_of_the_engine_that_keeps_it_in_fp16() -> None:
    names = gemm_outputs(SHAPE)
    found = large_outputs(with_outputs(**{f"_0_0_{n}": 40_000.0 for n in range(len(names))}))
    assert {o.output: o.engine for o in found} == {name: "GPU" if name == "hidden" else "NPU" for name in names}


def test_the_outputs_watched_are_every_linear_adapter_and_score_and_the_hidden_state() -> None:
    names = gemm_outputs(SHAPE)
    assert len(names) == len(set(names)) == 10 + 8 + 2 + 1
    assert {n for n in names if n.startswith("ffn")} == {"ffn.net.0.proj.output", "ffn.net.2.output"}
    assert {"attn1.scores_bound", "attn2.scores_bound", "attn2.to_out.0.lora_output", "hidden"} <= set(names)
