"""The drifts in examples/drift: valid, honest about where they come from, and what the policies make of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hvdc.plan.rates import load_rates
from hvdc.plan.results import StreamResult
from hvdc.plan.scenarios import POLICIES, Scenario, compare, configurations
from hvdc.plan.variation import Jitter, load_drift

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DRIFTS = sorted((EXAMPLES / "drift").glob("*.toml"))
COSTS = load_rates(EXAMPLES / "rates" / "galaxy-s25-49-frames-b.toml").costs()


def results(name: str | None) -> dict[str, StreamResult]:
    """By policy; 120 videos, a deadline of 1.5 times the NPU-only latency."""
    drift = None if name is None else load_drift(EXAMPLES / "drift" / f"{name}.toml")
    scenario = Scenario(COSTS, (0.0,) * 120, 51, jitter=Jitter(0.02), drift=drift)
    outcomes = compare(scenario, configurations(["hetero"], POLICIES), deadline_s=1375.05)
    return {o.configuration.policy: o.result for o in outcomes if o.result is not None}


@pytest.mark.parametrize("path", DRIFTS, ids=lambda path: path.stem)
def test_a_drift_says_where_it_comes_from(path: Path) -> None:
    assert load_drift(path).source.startswith(("paper, section", "assumed"))


def test_the_decoder_drifts_as_the_paper_says() -> None:
    course = load_drift(EXAMPLES / "drift" / "decoder.toml").decode
    assert [round(267 * course.at(x)) for x in (0, 40)] == [186, 270]


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("decoder", 1.03, 1.05), ("gpu-throttles", 1.3, 1.4), ("npu-throttles", 1.06, 1.1), ("both-throttle", 0.99, 1.01),
     (None, 0.99, 1.01)],
)  # fmt: skip
def test_replanning_pays_where_one_engine_drifts_from_the_other(name: str | None, least: float, most: float) -> None:
    """As docs/CLI.md says."""
    by = results(name)
    for policy in ("replan", "adaptive"):
        assert least < by[policy].videos_per_hour / by["static"].videos_per_hour < most
    assert by["adaptive"].makespan_s < by["replan"].makespan_s, "nothing waits for the first video"


@pytest.mark.parametrize("name", [None, *(path.stem for path in DRIFTS)])
def test_no_plan_has_more_videos_than_a_gpu_that_stops_on_demand(name: str | None) -> None:
    by = results(name)
    assert by["on-demand"].videos_per_hour == max(r.videos_per_hour for r in by.values())


@pytest.mark.parametrize("name", ["gpu-throttles", "npu-throttles", "both-throttle", None])
def test_deadlines_are_met_at_the_price_of_throughput(name: str | None) -> None:
    by = results(name)
    met = {policy: r.deadline.met for policy, r in by.items() if r.deadline is not None}
    assert met["deadline"] > met["static"]
    assert by["deadline"].videos_per_hour < by["adaptive"].videos_per_hour


def test_the_table_of_the_documentation_is_what_is_simulated() -> None:
    text = (EXAMPLES.parent / "docs" / "CLI.md").read_text("utf-8").split("### A cut for each video", 1)[1]
    header, _, *rows = [line for line in text.split("\n\n## ", 1)[0].splitlines() if line.startswith("|")]
    assert re.findall(r"`([\w-]+)`", header) == list(POLICIES)
    names = [None if row.startswith("| none") else re.findall(r"`([\w-]+)`", row)[0] for row in rows]
    assert sorted(filter(None, names)) == [path.stem for path in DRIFTS]
    for name, row in zip(names, rows, strict=True):
        said = re.findall(r"(\d\.\d\d), (\d\.\d\d)", row)
        by = results(name)
        made = [(f"{r.videos_per_hour:.2f}", f"{r.deadline.compliant_per_hour:.2f}") for r in by.values() if r.deadline]
        assert said == made, name
