"""The same videos in several configurations, and over deadlines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hvdc.errors import UsageError
from hvdc.plan.costs import Costs, EngineCosts, uniform
from hvdc.plan.scenarios import (
    POLICIES,
    Configuration,
    Scenario,
    compare,
    configurations,
    cut_of,
    deadline_of,
    factors_of,
    reference_latency_s,
    slo,
)
from hvdc.plan.stages import MODES
from tests.plan.streams import costs

SCENARIO = Scenario(costs(), (0.0,) * 40, 51)
ALL = configurations(MODES, ["static"])


def test_every_mode_once_and_hetero_with_each_policy() -> None:
    assert [c.name for c in configurations(["npu", "hetero"], POLICIES)] == [
        "npu", "hetero", "hetero, replan", "hetero, adaptive", "hetero, on-demand", "hetero, deadline",
    ]  # fmt: skip


def test_what_is_not_known_is_said_and_does_not_hinder_the_others() -> None:
    shared = EngineCosts(None, uniform(1.0, 4))
    outcomes = compare(Scenario(Costs(4, shared, shared, 1.0), (0.0,) * 9, 2), ALL)
    why_not = {o.configuration.mode: o.why_not for o in outcomes}
    assert why_not["npu"] == "the rate table has no solo rate of the npu"
    assert "gpu" in why_not["gpu"]
    assert "linears" in why_not["hetero-tensor"]
    assert [o.configuration.mode for o in outcomes if o.result] == ["hetero", "dp"]
    with pytest.raises(UsageError, match="solo rate of the npu"):
        compare(Scenario(Costs(4, shared, shared, 1.0), (0.0,) * 9, 2), [Configuration("npu")])


def test_what_no_configuration_could_be_simulated_with_is_an_error() -> None:
    for wrong in ({"cut": 181}, {"slots": 99}, {"arrivals_s": ()}):
        with pytest.raises(UsageError):
            compare(replace(SCENARIO, **wrong), ALL)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs a deadline"):
        compare(SCENARIO, [Configuration("hetero", "deadline")])
    with pytest.raises(UsageError, match="three powers"):
        compare(SCENARIO, ALL, powers_w={"gpu": 1.0})


def test_progress_counts_every_video() -> None:
    told: list[int] = []
    names: list[str] = []
    scenario = replace(SCENARIO, arrivals_s=(0.0,) * 2345)
    compare(scenario, configurations(["npu", "hetero"], ["static"]), tell=told.append, done=names.append)
    assert (sum(told), names) == (2 * 2345, ["npu", "hetero"])
    told.clear()
    slo(scenario, configurations(["hetero"], ["static", "deadline"]), (1.2, 1.5), 900.0, tell=told.append)
    assert sum(told) == 3 * 2345


def test_more_time_never_has_fewer_videos_in_time() -> None:
    points = slo(SCENARIO, ALL, factors_of("0.5:4:0.25"), 839.0)
    for i in range(len(ALL)):
        rates = [p.compliant_per_hour[i] or 0.0 for p in points]
        assert rates == sorted(rates)
        assert rates[0] == 0 < rates[-1]
    assert [p.deadline_s for p in points[:2]] == [0.5 * 839, 0.75 * 839]


def test_the_deadline_policy_is_asked_for_each_deadline() -> None:
    wanted = configurations(["npu", "hetero"], ["static", "deadline"])
    tight, loose = slo(SCENARIO, wanted, (1.3, 1.8), 180 * 3.178 + 267)
    npu, static, aware = tight.compliant_per_hour
    assert static == 0
    assert npu is not None
    assert aware is not None
    assert aware > npu * 1.04
    assert loose.compliant_per_hour[2] == pytest.approx(loose.compliant_per_hour[1], rel=0.01)


def test_a_configuration_that_is_not_known_has_no_points() -> None:
    points = slo(replace(SCENARIO, costs=costs(tensor_s=None)), ALL, (1.5,), 900.0)
    assert [rate is None for rate in points[0].compliant_per_hour] == [m == "hetero-tensor" for m in MODES]
    with pytest.raises(UsageError, match="linears"):
        slo(replace(SCENARIO, costs=costs(tensor_s=None)), [Configuration("hetero-tensor")], (1.5,), 900.0)


def test_the_reference_is_a_single_video_on_the_npu() -> None:
    assert reference_latency_s(costs(npu_solo_s=3.35)) == pytest.approx(603 + 267)
    assert reference_latency_s(replace(costs(npu_solo_s=3.35), decode_solo_s=313.7)) == pytest.approx(916.7)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ((None, None, None), 1.5 * 839.04),
        ((2.0, None, None), 2 * 839.04),
        ((2.0, None, 100.0), 200),
        ((None, 7.0, None), 7),
    ],
)
def test_a_deadline(given: tuple[Any, Any, Any], seconds: float) -> None:
    assert deadline_of(costs(), *given) == (pytest.approx(seconds), "")


def test_no_deadline_where_no_reference_is_known() -> None:
    unknown = replace(costs(), npu=EngineCosts(None, uniform(1.0, 180)))
    deadline_s, why = deadline_of(unknown, None, None, None)
    assert deadline_s is None
    assert "no solo rate of the npu" in why
    with pytest.raises(UsageError, match="no solo rate of the npu"):
        deadline_of(unknown, 1.5, None, None)


@pytest.mark.parametrize(
    "wrong", [(1.5, 9.0, None), (0.0, None, None), (-1.0, None, None), (None, 0.0, None), (None, float("nan"), None),
              (1.5, None, -3.0), (None, None, float("inf")), (1e308, None, None), (None, 1e308, None)],
)  # fmt: skip
def test_no_deadline(wrong: tuple[Any, Any, Any]) -> None:
    with pytest.raises(UsageError, match=r"deadline|reference"):
        deadline_of(costs(), *wrong)


@pytest.mark.parametrize(
    ("text", "factors"),
    [
        ("1.25:3:0.25", (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0)),
        ("1:1.3:0.1", (1.0, 1.1, 1.2, 1.3)),
        ("1:1.35:0.1", (1.0, 1.1, 1.2, 1.3)),
        ("2:2:1", (2.0,)),
        ("1.5", (1.5,)),
        ("3, 1", (3.0, 1.0)),
    ],
)
def test_factors(text: str, factors: tuple[float, ...]) -> None:
    assert factors_of(text) == factors


@pytest.mark.parametrize(
    "text", ["", "x", "1:2", "1:2:0", "1:2:-1", "2:1:1", "1:2:3:4", "0", "-1", "nan", "inf", "1,,2", "1:1e9:1",
             "1:nan:1", "1:inf:1", "1:2:1e-999999", "1e999", "1e-400", "1,1e400"],
)  # fmt: skip
def test_no_factors(text: str) -> None:
    with pytest.raises(UsageError, match="no deadline factors"):
        factors_of(text)


def test_a_cut_as_people_write_it() -> None:
    assert [cut_of(text, costs()) for text in ("best", "0", "180", "007")] == [51, 0, 180, 7]
    for wrong in ("", "181", "-1", "1.5", "x", "²", "1e2", "9" * 5000):
        with pytest.raises(UsageError, match="no cut"):
            cut_of(wrong, costs())
    assert cut_of("best", replace(costs(), gpu=EngineCosts(uniform(1.0, 180), None))) is None
