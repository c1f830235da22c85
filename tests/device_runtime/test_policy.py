"""The cut's policy in C is that of hvdc/plan/cut.py, bit for bit."""

from __future__ import annotations

import math
import random
import subprocess
from pathlib import Path

from hvdc.errors import UsageError
from hvdc.plan.cut import Rates, best_cut, period_s

TABLES = 10_000
SMALL = [
    (Rates(float(a), float(b), float(c)), n)
    for a in range(1, 5)
    for b in range(1, 5)
    for c in range(4)
    for n in range(7)
]
"""Many of them have two best cuts."""


def tables() -> list[tuple[Rates, int]]:
    """Random ones over many magnitudes, whole numbers (ties; all small ones), and those that are refused."""
    draw = random.Random(7)

    def seconds() -> float:
        return float(draw.randrange(1, 40)) if draw.random() < 0.3 else 10 ** draw.uniform(-6, 5)

    made = [
        (Rates(seconds(), seconds(), draw.choice([0.0, seconds()])), draw.choice([0, 1, 180, draw.randrange(5000)]))
        for _ in range(TABLES)
    ]
    wrong = [0.0, -0.0, -1.0, math.nan, math.inf, -math.inf, 1.7e308, 5e-324]
    return made + SMALL + [(Rates(a, b, c), 180) for a in (*wrong, 1.0) for b in (*wrong, 1.0) for c in (*wrong, 1.0)]


def in_python(rates: Rates, executions: int) -> str:
    try:
        cut = best_cut(rates, executions)
    except UsageError:
        return "refused"
    return f"{cut} {period_s(rates, executions, cut).hex()}"


def normal(line: str) -> str:
    """C prints hexadecimal floats in another spelling."""
    cut, _, period = line.partition(" ")
    return f"{cut} {float.fromhex(period).hex()}" if period else cut


def test_the_cut_in_c_is_the_cut_in_python(programs: dict[str, Path]) -> None:
    asked = tables()
    lines = [f"{r.gpu_block_s.hex()} {r.npu_block_s.hex()} {r.decode_s.hex()} {executions}" for r, executions in asked]
    done = subprocess.run(
        [programs["hvdc_cut"]], input="\n".join(lines), capture_output=True, text=True, check=True, timeout=60
    )
    answers = [normal(line) for line in done.stdout.splitlines()]
    assert answers == [in_python(*table) for table in asked]
    assert answers.count("refused") > 100
    small = set(SMALL)
    cuts = {table: int(answer.split()[0]) for table, answer in zip(asked, answers, strict=True) if table in small}
    above = [
        rates for (rates, n), cut in cuts.items() if cut > 0 and period_s(rates, n, cut) == period_s(rates, n, cut - 1)
    ]
    below = [
        rates for (rates, n), cut in cuts.items() if cut < n and period_s(rates, n, cut) == period_s(rates, n, cut + 1)
    ]
    assert len(above) > 20
    assert len(below) > 20
    assert all(rates.gpu_block_s < rates.npu_block_s for rates in above), "of two, that with the smaller latency"
    assert all(rates.gpu_block_s >= rates.npu_block_s for rates in below)
