"""Which steps a video takes, how far each goes, and which expert takes it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.errors import CheckpointError
from exporters.schedule import (
    DCM_TIMESTEPS,
    make_schedule,
    unused_expert_notes,
    unused_experts,
)

BOTH = ("semantic", "detail")


def test_the_default_is_dcms_six_steps_three_for_each_expert() -> None:
    steps = make_schedule()
    assert [s.index for s in steps] == [0, 1, 2, 3, 4, 5]
    assert [s.timestep for s in steps] == [1000, 992, 982, 949, 905, 810]
    assert [s.expert for s in steps] == ["semantic"] * 3 + ["detail"] * 3
    assert [round(s.step_size, 6) for s in steps] == [-0.008, -0.01, -0.033, -0.044, -0.095, -0.81]
    assert steps[-1].sigma_next == 0.0


def test_sigmas_and_step_sizes_are_the_samplers_float32_values() -> None:
    """As torch computes them in DCM's solver: sigmas = tensor(t) / 1000, then sigma_next - sigma."""
    torch = pytest.importorskip("torch")
    sigmas = torch.tensor([*DCM_TIMESTEPS, 0.0], dtype=torch.float32) / 1000
    steps = make_schedule()
    assert [s.sigma for s in steps] == sigmas[:-1].tolist()
    assert [s.sigma_next for s in steps] == sigmas[1:].tolist()
    assert [s.step_size for s in steps] == (sigmas[1:] - sigmas[:-1]).tolist()


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12, unique=True), st.integers(0, 1000))
def test_any_descending_list_chains_down_to_zero_and_routes_by_the_boundary(times: list[int], boundary: int) -> None:
    steps = make_schedule(sorted(times, reverse=True), boundary=boundary)
    assert all(a.sigma_next == b.sigma for a, b in itertools.pairwise(steps))
    assert steps[-1].sigma_next == 0.0
    assert all(np.float32(s.sigma_next) - np.float32(s.sigma) == np.float32(s.step_size) < 0 for s in steps)
    assert all((s.expert == "detail") == (s.timestep <= boundary) for s in steps)


@pytest.mark.parametrize(
    ("timestep", "expert"), [(979.0, "semantic"), (978.9, "detail"), (978.0, "detail"), (1.0, "detail")]
)
def test_the_boundary_compares_the_timesteps_integer_part(timestep: float, expert: str) -> None:
    assert make_schedule([timestep])[0].expert == expert


def test_another_boundary_moves_the_switch() -> None:
    assert [s.expert for s in make_schedule(boundary=985)] == ["semantic"] * 2 + ["detail"] * 4


def test_a_model_with_one_expert_takes_every_step_with_it() -> None:
    assert {s.expert for s in make_schedule(experts=("semantic",))} == {"semantic"}


@pytest.mark.parametrize(
    ("timesteps", "unused"),
    [(DCM_TIMESTEPS, ()), ([1000, 990], ("detail",)), ([900, 500], ("semantic",))],
)
def test_an_expert_that_no_step_runs_is_reported(timesteps: list[float], unused: tuple[str, ...]) -> None:
    steps = make_schedule(timesteps)
    assert unused_experts(steps, BOTH) == unused
    notes = unused_expert_notes(steps, BOTH)
    assert len(notes) == len(unused)
    assert all(f"the {expert} expert is not used" in note for expert, note in zip(unused, notes, strict=True))


def test_the_note_says_which_side_of_the_boundary_is_missing() -> None:
    (note,) = unused_expert_notes(make_schedule([1000, 990]), BOTH)
    assert note == "the detail expert is not used: none of the timesteps 1000, 990 is at or below 978"


@pytest.mark.parametrize(
    ("timesteps", "what"),
    [
        ([], "no steps"),
        ([1000, 0], "out of range"),
        ([1001, 500], "out of range"),
        ([1000, -5], "out of range"),
        ([1e-50], "out of range"),
        ([1000, float("nan")], "not a number"),
        ([float("inf"), 500], "not a number"),
        ([500, 600], "don't descend"),
        ([500, 500], "don't descend"),
        ([500.000001, 500], "too close"),
    ],
)
def test_a_list_that_is_no_schedule_is_refused_with_what_to_do(timesteps: list[float], what: str) -> None:
    with pytest.raises(CheckpointError, match=what) as caught:
        make_schedule(timesteps)
    error = caught.value
    assert error.where
    assert error.expected
    assert error.found
    assert error.fix


@pytest.mark.parametrize("experts", [(), ("detail",), ("semantic", "high_noise"), ("detail", "semantic")])
def test_unknown_sets_of_experts_are_refused(experts: tuple[str, ...]) -> None:
    with pytest.raises(CheckpointError, match="set of experts"):
        make_schedule(experts=experts)


def test_a_model_trained_on_another_number_of_timesteps() -> None:
    (step,) = make_schedule([50], num_train_timesteps=100, boundary=10)
    assert (step.sigma, step.expert) == (0.5, "semantic")
    with pytest.raises(CheckpointError, match="positive"):
        make_schedule([1], num_train_timesteps=0)
