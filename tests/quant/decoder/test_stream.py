"""Weights may be given to a session instead of lying in its model; work is spread over threads in order."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest

from quant.decoder.graph import Graphs
from quant.decoder.sensitivity import _weights_as_inputs
from quant.decoder.stream import Streamer, decode, spread
from tests.quant.decoder.small import STAGES, clip, float_graphs


@pytest.mark.parametrize("groups", [None, STAGES])
def test_given_weights_give_the_same_frames_to_the_bit(groups: list[list[str]] | None) -> None:
    whole, latents = float_graphs(groups=groups), [clip(1), clip(2)]
    before = [model.SerializeToString(deterministic=True) for _, model in whole]
    light, weights = _weights_as_inputs(whole)
    assert before == [model.SerializeToString(deterministic=True) for _, model in whole]
    for (_, model), (_, bare) in zip(whole, light, strict=True):
        onnx.checker.check_model(bare, full_check=True)
        assert bare.ByteSize() < model.ByteSize()
    streamer = Streamer(light, constants=weights)
    for latent, frames in zip(latents, decode(whole, latents), strict=True):
        assert streamer.decode(latent).tobytes() == frames.tobytes()


def test_parts_may_have_other_weights_under_equal_names() -> None:
    whole = float_graphs(groups=STAGES)
    doubled = [onnx.ModelProto.FromString(model.SerializeToString()) for model in whole.later]
    for model in doubled:
        for tensor in model.graph.initializer:
            if tensor.name.endswith("weight"):
                twice = 2 * onnx.numpy_helper.to_array(tensor)
                tensor.CopyFrom(onnx.numpy_helper.from_array(twice, tensor.name))
    other = Graphs.of(whole.first, doubled)
    light, weights = _weights_as_inputs(other)
    found, expected = Streamer(light, constants=weights).decode(clip(1)), decode(other, [clip(1)])[0]
    assert found.tobytes() == expected.tobytes()
    assert not np.array_equal(expected, decode(whole, [clip(1)])[0])


@pytest.mark.parametrize("jobs", [1, 4])
def test_results_and_progress_are_in_order(jobs: int) -> None:
    def work(i: int) -> int:
        time.sleep(0.01 * (i % 2))
        return i * i

    told: list[tuple[int, int]] = []
    assert spread(work, range(6), jobs, lambda *a: told.append(a)) == [0, 1, 4, 9, 16, 25]
    assert told == [(i + 1, 6) for i in range(6)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_nothing_is_begun_after_an_exception(jobs: int) -> None:
    begun: list[int] = []

    def work(i: int) -> int:
        begun.append(i)
        time.sleep(0.01)
        if i == 2:
            raise ValueError("no")
        return i

    with pytest.raises(ValueError, match="no"):
        spread(work, range(100), jobs)
    assert len(begun) < 10

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    begun.clear()
    with pytest.raises(KeyboardInterrupt):
        spread(work, [0] * 100, jobs, stop)
    assert len(begun) < 10
