"""How fast `hvdc plan simulate` is: streams of many videos in every configuration, into docs/BENCHMARKS.md.

Streams are those of a rate table of the Galaxy S25, with jitter. Times are the processor's, of one thread.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.report import Line, lines_table, say, write_section
from hvdc.plan.rates import load_rates
from hvdc.plan.scenarios import POLICIES, Scenario, compare, configurations, cut_of
from hvdc.plan.stages import MODES
from hvdc.plan.variation import Jitter

ROOT = Path(__file__).resolve().parents[1]
RATES = ROOT / "examples" / "rates" / "galaxy-s25-49-frames-b.toml"
GOAL_S = 30.0
"""For 100,000 videos in all five modes."""


def seconds(videos: int) -> dict[str, float]:
    """Configuration -> processor seconds of simulating that many videos and of its results."""
    costs = load_rates(RATES).costs()
    scenario = Scenario(costs, (0.0,) * videos, cut_of("best", costs), jitter=Jitter(0.03))
    taken = {}
    for configuration in configurations(MODES, POLICIES):
        begin_s = time.process_time()
        compare(scenario, [configuration], deadline_s=1375.0)
        taken[configuration.name] = time.process_time() - begin_s
        say(f"{configuration.name}: {taken[configuration.name]:.2f} s")
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--videos", type=int, default=100_000)
    parser.add_argument("--report", type=Path, default=ROOT / "docs" / "BENCHMARKS.md")
    options = parser.parse_args()
    taken = seconds(options.videos)
    modes_s = sum(taken[mode] for mode in MODES)
    line = Line(
        f"{options.videos:,} videos, five modes",
        f"{modes_s:.1f} s",
        f"≤ {GOAL_S:.0f} s for 100,000",
        modes_s <= GOAL_S * options.videos / 100_000,
        "processor time, one thread",
    )
    rows = [f"| {name} | {s:.2f} | {1e6 * s / options.videos:.1f} |" for name, s in taken.items()]
    text = "\n".join([lines_table([line]), "", "| configuration | s | µs a video |", "|---|---|---|", *rows])
    write_section(options.report, "Simulated streams", "make bench-stream", text, ("hvdc", "simpy"))


if __name__ == "__main__":
    main()
