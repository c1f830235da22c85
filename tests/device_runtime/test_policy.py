"""The policies in C are those of hvdc/plan/cut.py and hvdc/plan/policies.py, bit for bit."""

from __future__ import annotations

import math
import random
import subprocess
from pathlib import Path

from hvdc.errors import UsageError
from hvdc.plan.cut import Rates, best_cut, period_s
from hvdc.plan.policies import Ready, cut_in_time, meeting_cut, observed

TABLES = 10_000
Question = tuple[str, tuple[float | int, ...]]
"""What is asked, and the numbers of the question, as hvdc_cut reads them."""
SMALL = [
    (float(a), float(b), float(c), n) for a in range(1, 5) for b in range(1, 5) for c in range(4) for n in range(7)
]
"""Rates and executions of which many have two best cuts."""


def tables() -> list[Question]:
    """Random ones over many magnitudes, whole numbers (ties; all small ones), and those that are refused."""
    draw = random.Random(7)

    def seconds() -> float:
        return float(draw.randrange(1, 40)) if draw.random() < 0.3 else 10 ** draw.uniform(-6, 5)

    made = [
        (seconds(), seconds(), draw.choice([0.0, seconds()]), draw.choice([0, 1, 180, draw.randrange(5000)]))
        for _ in range(TABLES)
    ]
    wrong = [0.0, -0.0, -1.0, math.nan, math.inf, -math.inf, 1.7e308, 5e-324]
    refused = [(a, b, c, 180) for a in (*wrong, 1.0) for b in (*wrong, 1.0) for c in (*wrong, 1.0)]
    return [("best", table) for table in made + SMALL + refused]


def observations() -> list[Question]:
    """Rates as an engine shows them, and no blocks at all."""
    draw = random.Random(8)

    def observation() -> tuple[float | int, ...]:
        seconds, count = draw.choice([0.0, 10 ** draw.uniform(-6, 6)]), draw.choice([0, 1, draw.randrange(200)])
        return 10 ** draw.uniform(-6, 4), seconds, count, draw.choice([1.0, 0.25, draw.random()])

    return [("observed", observation()) for _ in range(TABLES)]


def situations() -> list[Question]:
    """Of streams with engines of any speed: queues that are empty, balanced, long; deadlines that are met, and not."""
    draw = random.Random(9)
    asked: list[Question] = []
    for _ in range(TABLES):
        whole = draw.random() < 0.4

        def seconds(low: float, high: float, whole: bool = whole) -> float:
            value = 10 ** draw.uniform(low, high)
            return float(math.ceil(value)) if whole else value

        executions = draw.choice([1, 12, 180, draw.randrange(1, 400)])
        gpu_s, npu_s, decode_s = seconds(-2, 2), seconds(-2, 2), draw.choice([0.0, seconds(0, 3)])
        rates = (gpu_s, npu_s, decode_s, executions)
        busy_s = (executions * npu_s + decode_s) * draw.choice([0.0, draw.random(), 3 * draw.random()])
        gpu_free_s = draw.choice([0.0, gpu_s * draw.randrange(executions + 1)])
        cut = draw.choice([best_cut(Rates(*rates[:3]), executions), draw.randrange(executions + 1)])
        ready = (cut, gpu_free_s, busy_s, draw.choice([0.0, seconds(-3, 1)]))
        allowed_s = (executions * npu_s + decode_s) * draw.uniform(-0.1, 3)
        asked += [("meeting", rates + ready), ("in-time", (*rates, *ready, allowed_s, draw.randrange(2)))]
    return asked


def in_python(question: Question) -> str:
    what, n = question
    if what == "observed":
        return observed(n[0], n[1], int(n[2]), n[3]).hex()
    rates, executions = Rates(*n[:3]), int(n[3])
    if what == "best":
        try:
            cut = best_cut(rates, executions)
        except UsageError:
            return "refused"
        return f"{cut} {period_s(rates, executions, cut).hex()}"
    cut, ready = int(n[4]), Ready(*n[5:8])
    if what == "meeting":
        return str(meeting_cut(rates, executions, cut, ready))
    cut, begin_s = cut_in_time(rates, executions, cut, ready, n[8], from_start=bool(n[9]))
    return f"{cut} {begin_s.hex()}"


def said(questions: list[Question]) -> str:
    """As hvdc_cut reads them."""
    return "\n".join(
        " ".join([what, *(n.hex() if isinstance(n, float) else str(n) for n in numbers)]) for what, numbers in questions
    )


def normal(line: str) -> str:
    """C prints hexadecimal floats in another spelling."""
    return " ".join(float.fromhex(word).hex() if "x" in word else word for word in line.split(" "))


def in_c(programs: dict[str, Path], questions: list[Question]) -> list[str]:
    done = subprocess.run(
        [programs["hvdc_cut"]], input=said(questions), capture_output=True, text=True, check=True, timeout=60
    )
    return [normal(line) for line in done.stdout.splitlines()]


def test_the_cut_in_c_is_the_cut_in_python(programs: dict[str, Path]) -> None:
    asked = tables()
    answers = in_c(programs, asked)
    assert answers == [in_python(table) for table in asked]
    assert answers.count("refused") > 100
    small = set(SMALL)
    cuts = {q[1]: int(answer.split()[0]) for q, answer in zip(asked, answers, strict=True) if q[1] in small}
    two = {
        by: [
            table
            for table, cut in cuts.items()
            if 0 <= cut + by <= table[3]
            and period_s(Rates(*table[:3]), int(table[3]), cut) == period_s(Rates(*table[:3]), int(table[3]), cut + by)
        ]
        for by in (-1, 1)
    }
    assert min(len(tied) for tied in two.values()) > 20
    assert all(gpu_s < npu_s for gpu_s, npu_s, *_ in two[-1]), "of two, that with the smaller latency"
    assert all(gpu_s >= npu_s for gpu_s, npu_s, *_ in two[1])


def test_observed_rates_in_c_are_those_in_python(programs: dict[str, Path]) -> None:
    asked = observations()
    answers = in_c(programs, asked)
    assert answers == [in_python(observation) for observation in asked]
    assert len(set(answers)) > TABLES * 0.8


def test_cuts_of_single_videos_in_c_are_those_in_python(programs: dict[str, Path]) -> None:
    asked = situations()
    answers = in_c(programs, asked)
    assert answers == [in_python(situation) for situation in asked]
    assert len(set(answers[::2])) > 100, "the GPU meets the NPU at many cuts"
    in_time = [(int(q[1][4]), *a.split(" ")) for q, a in zip(asked[1::2], answers[1::2], strict=True)]
    assert sum(int(cut) < most for most, cut, _ in in_time) > 500, "a deadline makes cuts smaller"
    assert sum(float.fromhex(begin) > 0 for _, _, begin in in_time) > 300, "and has the GPU wait"


def test_questions_that_are_none_are_refused(programs: dict[str, Path]) -> None:
    done = subprocess.run([programs["hvdc_cut"]], input="best 1 2", capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "what is best?" in done.stderr
