"""A trajectory can be stopped before any block and resumed, on the other engine too: what crosses is a `State`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from exporters.model import TINY
from quant.paths import trajectory as module
from quant.paths.trajectory import NumericPath, State, Trajectory, fp32, gpu, hetero, npu
from quant.paths.weights import Weights
from quant.scales import Scales
from tests.quant.models import LATENT, drawn, prompt

EXECUTIONS = 12
"""Six steps of two blocks."""
TOKENS = 24
CUTS = range(EXECUTIONS + 1)


def fresh(path: NumericPath, embeds: Tensor) -> Trajectory:
    """As another process begins: nothing of the text is kept."""
    return Trajectory(path, embeds, LATENT)


def assert_same(found: State, expected: State) -> None:
    assert found.position == expected.position
    assert torch.equal(found.latent, expected.latent)
    if expected.hidden is None:
        assert found.hidden is None
    else:
        assert found.hidden is not None
        assert torch.equal(found.hidden, expected.hidden)


def through_a_file(state: State, folder: Path) -> State:
    """Hidden state and latent in FP32 and the position: nothing else is written."""
    held = {"latent": state.latent.numpy()} | ({} if state.hidden is None else {"hidden": state.hidden.numpy()})
    assert all(array.dtype == np.float32 for array in held.values())
    path = folder / f"{state.position}.npz"
    np.savez(path, position=state.position, **held)  # type: ignore[arg-type]
    with np.load(path) as read:
        hidden = torch.from_numpy(read["hidden"]) if "hidden" in read else None
        return State(int(read["position"]), torch.from_numpy(read["latent"]), hidden)


def every_path(weights: Weights, scales: Scales) -> list[NumericPath]:
    return [fp32(weights), npu(weights), gpu(weights, scales), *(hetero(weights, scales, cut) for cut in CUTS)]


@pytest.fixture(scope="module")
def unsplit(weights: Weights, scales: Scales, embeds: Tensor, noise: Tensor) -> dict[str, State]:
    """By path, the end of a run that nothing stopped."""
    runs = {}
    for path in every_path(weights, scales):
        run = fresh(path, embeds)
        runs[path.name] = run.run(run.start(noise))
    return runs


def test_the_ends_of_hetero_are_the_two_engines(unsplit: dict[str, State]) -> None:
    assert_same(unsplit["hetero(0)"], unsplit["npu"])
    assert_same(unsplit["hetero(12)"], unsplit["gpu"])


def test_every_cut_gives_another_result(unsplit: dict[str, State]) -> None:
    latents = [state.latent for state in unsplit.values()]
    names = list(unsplit)
    same = [(names[i], names[j]) for i in range(len(names)) for j in range(i) if torch.equal(latents[i], latents[j])]
    assert same == [("hetero(0)", "npu"), ("hetero(12)", "gpu")]


def test_the_prefix_is_the_gpus_and_the_rest_the_npus(weights: Weights, scales: Scales) -> None:
    path = hetero(weights, scales, 5)
    assert [path.at(p) is path.prefix for p in range(EXECUTIONS)] == [True] * 5 + [False] * 7
    assert path.prefix is not None
    assert path.prefix.residual_dtype == torch.float16
    assert path.rest.residual_dtype == torch.float32


@pytest.mark.parametrize("cut", CUTS)
def test_a_run_stopped_after_every_block_equals_the_unsplit_run(
    cut: int, weights: Weights, scales: Scales, embeds: Tensor, noise: Tensor, unsplit: dict[str, State], tmp_path: Path
) -> None:
    """A new process for each block, and a file between any two."""
    path = hetero(weights, scales, cut)
    state = fresh(path, embeds).start(noise)
    for position in range(EXECUTIONS):
        state = through_a_file(fresh(path, embeds).run(state, 1), tmp_path)
        assert state.position == position + 1
    assert_same(state, unsplit[path.name])


@pytest.mark.parametrize("cut", [1, 5, 6])
@pytest.mark.parametrize("stop", CUTS)
def test_a_run_stopped_once_equals_the_unsplit_run(
    cut: int, stop: int, weights: Weights, scales: Scales, embeds: Tensor, noise: Tensor, unsplit: dict[str, State],
    tmp_path: Path,
) -> None:  # fmt: skip
    path = hetero(weights, scales, cut)
    first = fresh(path, embeds)
    state = through_a_file(first.run(first.start(noise), stop), tmp_path)
    assert_same(fresh(path, embeds).run(state), unsplit[path.name])


@pytest.mark.parametrize("cut", CUTS)
def test_a_gpu_that_knows_nothing_of_the_npu_hands_over(
    cut: int, weights: Weights, scales: Scales, embeds: Tensor, noise: Tensor, unsplit: dict[str, State], tmp_path: Path
) -> None:
    """As on the phone: `gpu` to the cut, a file, `npu` from there on."""
    on_gpu = fresh(gpu(weights, scales), embeds)
    state = through_a_file(on_gpu.run(on_gpu.start(noise), cut), tmp_path)
    assert_same(fresh(npu(weights), embeds).run(state), unsplit[f"hetero({cut})"])


@pytest.mark.parametrize("make", ["fp32", "npu", "gpu"])
def test_single_paths_resume_too(
    make: str,
    weights: Weights,
    scales: Scales,
    embeds: Tensor,
    noise: Tensor,
    unsplit: dict[str, State],
    tmp_path: Path,
) -> None:
    path = next(p for p in every_path(weights, scales) if p.name == make)
    state = fresh(path, embeds).start(noise)
    while state.position < EXECUTIONS:
        state = through_a_file(fresh(path, embeds).run(state, 1), tmp_path)
    assert_same(state, unsplit[make])


def test_only_position_latent_and_hidden_cross(weights: Weights, scales: Scales, embeds: Tensor, noise: Tensor) -> None:
    assert {f.name for f in fields(State)} == {"position", "latent", "hidden"}
    run = fresh(gpu(weights, scales), embeds)
    state = run.start(noise)
    for position in CUTS:
        assert state.position == position
        assert state.latent.shape == (TOKENS, 64)
        assert state.latent.dtype == torch.float32
        if position % TINY.layers:
            assert state.hidden is not None
            assert state.hidden.shape == (TOKENS, TINY.width)
            assert state.hidden.dtype == torch.float32
            assert torch.equal(state.hidden.half().float(), state.hidden), "the GPU's FP16, widened"
        else:
            assert state.hidden is None, "it follows from the latent"
        if position < EXECUTIONS:
            state = run.run(state, 1)


def test_the_latent_moves_at_the_end_of_a_step_only(weights: Weights, embeds: Tensor, noise: Tensor) -> None:
    run = fresh(npu(weights), embeds)
    state = run.start(noise)
    for position in range(EXECUTIONS):
        after = run.run(state, 1)
        assert torch.equal(after.latent, state.latent) == ((position + 1) % TINY.layers != 0)
        state = after


def test_a_run_leaves_the_state_it_was_given_as_it_was(
    weights: Weights, scales: Scales, embeds: Tensor, noise: Tensor
) -> None:
    for path in every_path(weights, scales)[:4]:
        run = fresh(path, embeds)
        for count in (0, 1):
            state = run.run(run.start(noise), count)
            latent, hidden = state.latent.clone(), None if state.hidden is None else state.hidden.clone()
            run.run(state, 3)
            assert_same(state, State(count, latent, hidden))


def test_keys_and_values_are_computed_again_on_the_other_side(
    weights: Weights, scales: Scales, embeds: Tensor, noise: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They never cross: the NPU makes its own from the prompt, and each expert's once for each block."""
    made: list[tuple[str, int, str]] = []
    original = module.text_operands

    def counted(arithmetic: object, at: module.At, text: Tensor) -> object:
        made.append((type(arithmetic).__name__.removesuffix("Arithmetic"), at.block, at.expert))
        return original(arithmetic, at, text)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "text_operands", counted)
    run = fresh(hetero(weights, scales, 3), embeds)
    run.run(run.start(noise))
    assert sorted(made) == sorted(
        [
            ("Gpu", 0, "semantic"), ("Gpu", 1, "semantic"), ("Npu", 0, "semantic"), ("Npu", 1, "semantic"),
            ("Npu", 0, "detail"), ("Npu", 1, "detail"),
        ]
    )  # fmt: skip


def test_a_resumed_run_takes_keys_and_values_from_its_own_prompt(
    weights: Weights, scales: Scales, embeds: Tensor, noise: Tensor, unsplit: dict[str, State]
) -> None:
    first = fresh(gpu(weights, scales), embeds)
    state = first.run(first.start(noise), 7)
    other = fresh(npu(weights), prompt(99)).run(state)
    assert not torch.equal(other.latent, unsplit["hetero(7)"].latent)


@pytest.mark.parametrize("cut", [-1, 13, 1000])
def test_a_cut_outside_the_trajectory_is_refused(cut: int, weights: Weights, scales: Scales) -> None:
    with pytest.raises(ValueError, match=f"{cut}.*12 block executions"):
        hetero(weights, scales, cut)


@pytest.mark.parametrize(("before", "count"), [(0, 13), (5, 8), (12, 1), (5, -1)])
def test_more_blocks_than_are_left_are_refused(
    before: int, count: int, weights: Weights, embeds: Tensor, noise: Tensor
) -> None:
    run = fresh(npu(weights), embeds)
    state = run.run(run.start(noise), before)
    with pytest.raises(ValueError, match="12"):
        run.run(state, count)


def test_the_hidden_state_is_seen_after_each_block(weights: Weights, embeds: Tensor, noise: Tensor) -> None:
    run, seen = fresh(npu(weights), embeds), []
    run.run(run.start(noise), seen=lambda done, hidden: seen.append((done, hidden)))
    assert [done for done, _ in seen] == list(range(1, EXECUTIONS + 1))
    assert all(hidden.dtype == torch.float32 for _, hidden in seen)
    one = fresh(npu(weights), embeds)
    assert torch.equal(one.run(one.start(noise), 1).hidden, seen[0][1])


def test_a_state_that_is_not_between_two_blocks_is_refused(weights: Weights, embeds: Tensor, noise: Tensor) -> None:
    """Resuming one would go on with the wrong latent, or compute the patch embedding in the middle of a step."""
    run = fresh(npu(weights), embeds)
    inside = run.run(run.start(noise), 1)
    with pytest.raises(ValueError, match="at 1 lacks its hidden state"):
        run.run(State(1, inside.latent))
    with pytest.raises(ValueError, match="at 2 has a hidden state"):
        run.run(State(2, inside.latent, inside.hidden))


def test_a_trajectory_repeats_to_the_bit_and_depends_on_prompt_and_noise(
    weights: Weights, scales: Scales, embeds: Tensor, noise: Tensor
) -> None:
    for path in every_path(weights, scales)[:4]:
        found = fresh(path, embeds).generate(noise)
        assert torch.equal(fresh(path, embeds).generate(noise), found)
        assert not torch.equal(fresh(path, prompt(98)).generate(noise), found)
        assert not torch.equal(fresh(path, embeds).generate(drawn(97)), found)
