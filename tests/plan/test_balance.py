"""The cut of a device of which only two idle times are known, against engines whose rates are."""

from __future__ import annotations

import random

import pytest

from hvdc.errors import UsageError
from hvdc.plan.balance import Balance, balance_of
from hvdc.plan.cut import Rates, best_cut, gpu_stage_s, npu_stage_s, period_s
from hvdc.plan.rate_fields import Idle


def idle(rates: Rates, executions: int, cut: int) -> Idle:
    """What such engines would wait at a cut."""
    longer_s = npu_stage_s(rates, executions, cut) - gpu_stage_s(rates, cut)
    return Idle(engine="gpu" if longer_s > 0 else "npu", cut=cut, seconds=abs(longer_s), source="worked out here")


def test_idle_times_place_the_cut_that_rates_do_or_say_that_they_cannot() -> None:
    draw, undecided = random.Random(3), 0
    for _ in range(2000):
        rates = Rates(draw.uniform(0.5, 20), draw.uniform(0.5, 20), draw.choice([0.0, draw.uniform(0, 500)]))
        executions = draw.choice([12, 180])
        one, other = draw.sample(range(executions + 1), 2)
        balance = balance_of((idle(rates, executions, one), idle(rates, executions, other)), executions)
        assert balance.both_blocks_s == pytest.approx(rates.gpu_block_s + rates.npu_block_s)
        assert balance.npu_whole_s == pytest.approx(npu_stage_s(rates, executions, 0))
        least_s, most_s = balance.gpu_block_range_s
        assert least_s <= rates.gpu_block_s * (1 + 1e-9)
        assert most_s >= rates.gpu_block_s
        if executions > balance.point and balance.npu_longer_s(int(balance.point)) > least_s:
            with pytest.raises(UsageError, match=rf"do not decide between .* {best_cut(rates, executions)}\b"):
                balance.best_cut()
            undecided += 1
            continue
        cut = balance.best_cut()
        assert period_s(rates, executions, cut) == pytest.approx(
            period_s(rates, executions, best_cut(rates, executions))
        )
        least_s, most_s = balance.period_range_s(cut)
        assert least_s * (1 - 1e-9) <= period_s(rates, executions, cut) <= most_s * (1 + 1e-9)
    assert 0 < undecided < 1000


def test_the_papers_idle_times() -> None:
    """Section 3.3: 356 s at 30, 121 s at 60: T_G + T_N = 477 / 30, and k = 52 whatever T_V is."""
    told = [
        Idle(engine="gpu", cut=30, seconds=356, source="paper, section 3.3"),
        Idle(engine="npu", cut=60, seconds=121, source="paper, section 3.3"),
    ]
    balance = balance_of(told, 180)
    assert balance.both_blocks_s == pytest.approx(15.9)
    assert balance.npu_whole_s == pytest.approx(833)
    assert balance.best_cut() == 52
    for decode_s in range(833):
        npu_s = (833 - decode_s) / 180
        assert best_cut(Rates(15.9 - npu_s, npu_s, decode_s), 180) == 52
    assert balance.npu_longer_s(52) == pytest.approx(6.2)
    assert balance.npu_longer_s(53) == pytest.approx(-9.7)


def test_a_legal_range_moves_the_cut_to_its_nearer_end() -> None:
    balance = Balance(180, 15.9, 833.0)
    assert balance.best_cut(0, 40) == 40
    assert balance.best_cut(60, 180) == 60
    assert balance.best_cut(52, 52) == 52
    with pytest.raises(UsageError, match="no such range"):
        balance.best_cut(0, 181)


def test_idle_times_that_contradict_each_other_are_refused() -> None:
    waits = [
        Idle(engine="gpu", cut=30, seconds=100, source="measured today"),
        Idle(engine="gpu", cut=60, seconds=200, source="measured today"),
    ]
    with pytest.raises(UsageError, match="contradict each other") as caught:
        balance_of(waits, 180)
    assert caught.value.found == "at cut 30 the GPU waits 100 s, at cut 60 the GPU waits 200 s"
