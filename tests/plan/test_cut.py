"""The cut of a trajectory: against every other cut, against exact fractions, and against what the paper reports."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdc.errors import UsageError
from hvdc.plan.cut import Rates, best_cut, gpu_stage_s, npu_stage_s, period_s
from hvdc.plan.rates import load_rates

PAPER = Path(__file__).resolve().parents[2] / "examples" / "rates" / "galaxy-s25-49-frames-b.toml"
SECONDS = st.floats(1e-4, 1e4)


@given(SECONDS, SECONDS, st.floats(0, 1e5), st.integers(0, 400))
def test_no_other_cut_is_better(gpu_s: float, npu_s: float, decode_s: float, executions: int) -> None:
    rates = Rates(gpu_s, npu_s, decode_s)
    best = period_s(rates, executions, best_cut(rates, executions))
    others = min(period_s(rates, executions, k) for k in range(executions + 1))
    assert others <= best <= others * (1 + 1e-14), "only rounding of the balance point may come between"


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 500), st.integers(0, 200))
def test_of_equally_good_cuts_it_is_that_with_the_smaller_latency(
    gpu_s: int, npu_s: int, decode_s: int, executions: int
) -> None:
    """Whole numbers of seconds: the periods are exact, and ties are common."""

    def exact(cut: int) -> tuple[int, int, int]:
        stages = cut * gpu_s, (executions - cut) * npu_s + decode_s
        return max(stages), sum(stages), cut

    rates = Rates(float(gpu_s), float(npu_s), float(decode_s))
    assert best_cut(rates, executions) == min(range(executions + 1), key=exact)


def test_ties_by_hand() -> None:
    """Two blocks, 3 s or 1 s each, 1 s of decoding: cut 0 takes 3 s on the NPU, cut 1 takes 3 s on the GPU. Of 1 s or
    2 s each: 2 s on the NPU at 1, 2 s on the GPU at 2, which leaves the NPU nothing to do."""
    rates = Rates(3.0, 1.0, 1.0)
    assert period_s(rates, 2, 0) == period_s(rates, 2, 1) == 3.0
    assert best_cut(rates, 2) == 0
    rates = Rates(1.0, 2.0, 0.0)
    assert period_s(rates, 2, 1) == period_s(rates, 2, 2) == 2.0
    assert best_cut(rates, 2) == 2


@pytest.mark.parametrize(
    ("rates", "executions", "cut"),
    [
        (Rates(1.0, 1.0, 0.0), 0, 0),
        (Rates(1e-9, 1.0, 0.0), 180, 180),  # a GPU that costs nothing takes all blocks
        (Rates(1e9, 1.0, 0.0), 180, 0),
        (Rates(1.0, 1.0, 1e9), 180, 180),  # so does one beside an NPU that only decodes
        (Rates(1.0, 1.0, 0.0), 180, 90),
        (Rates(1.0, 1.0, 0.0), 181, 90),
    ],
)
def test_the_ends_and_the_middle(rates: Rates, executions: int, cut: int) -> None:
    assert best_cut(rates, executions) == cut


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("field", ["gpu_block_s", "npu_block_s"])
def test_a_block_that_takes_no_time_is_refused(field: str, wrong: float) -> None:
    with pytest.raises(UsageError, match="do not place a cut"):
        best_cut(Rates(**{"gpu_block_s": 1.0, "npu_block_s": 1.0, "decode_s": 0.0, field: wrong}), 180)


@pytest.mark.parametrize("decode_s", [-1.0, math.nan, math.inf])
def test_a_decode_that_takes_less_than_no_time_is_refused(decode_s: float) -> None:
    with pytest.raises(UsageError, match="do not place a cut"):
        best_cut(Rates(1.0, 1.0, decode_s), 180)


def test_rates_beyond_all_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="infinite"):
        best_cut(Rates(1.0, 1e307, 0.0), 180)
    with pytest.raises(UsageError, match="infinite"):
        best_cut(Rates(1.5e308, 1.5e308, 0.0), 1)


def test_the_papers_cut_follows_from_the_papers_rates() -> None:
    """Section 6.5.1: k_b = 51, 677 s, stages balanced to within 1 s; without the decoder the balance is at 34; of the
    step boundaries, 30 makes the GPU wait and 60 the NPU."""
    table = load_rates(PAPER)
    rates, executions = table.rates, table.executions
    assert executions == 180
    assert best_cut(rates, executions) == 51
    assert period_s(rates, executions, 51) == pytest.approx(677, abs=1)
    assert abs(gpu_stage_s(rates, 51) - npu_stage_s(rates, executions, 51)) < 1
    assert best_cut(Rates(rates.gpu_block_s, rates.npu_block_s, 0.0), executions) == 34
    assert npu_stage_s(rates, executions, 30) > gpu_stage_s(rates, 30)
    assert gpu_stage_s(rates, 60) > npu_stage_s(rates, executions, 60)
    assert period_s(rates, executions, 0) / period_s(rates, executions, 51) > 1.2  # 917 s / 677 s with solo NPU rates
