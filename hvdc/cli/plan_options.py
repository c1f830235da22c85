"""What ``hvdc plan simulate`` and ``hvdc plan slo`` ask for alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hvdc.cli.output import err, progress_for
from hvdc.plan.arrivals import AT_ONCE, arrivals_of
from hvdc.plan.fitting import sizes_fitting
from hvdc.plan.rates import RateTable, load_rates
from hvdc.plan.results import Since
from hvdc.plan.scenarios import POLICIES, Configuration, PolicyName, Scenario, configurations, cut_of
from hvdc.plan.stages import MODES, Mode
from hvdc.plan.tensor_plan import shared_block_costs
from hvdc.plan.variation import Jitter, load_drift

LONG = 50_000
"""Videos in all configurations from which on progress is shown: a second or so."""

OPTIONS = (
    click.argument("artifact", required=False, type=click.Path(path_type=Path)),
    click.option(
        "--rates", "rates_file", required=True, type=click.Path(path_type=Path), help="A table of rates, TOML."
    ),
    click.option(
        "--mode",
        "modes",
        multiple=True,
        type=click.Choice(["all", *MODES]),
        default=("all",),
        help="A configuration, as in hvdc run; may be repeated.  [default: all]",
    ),
    click.option("--videos", type=int, help="Videos of the stream.  [default: 10, or all of a trace]"),
    click.option(
        "--cut", default="best", show_default=True, help="The cut of mode hetero: a number, or best (auto is the same)."
    ),
    click.option(
        "--policy",
        "policies",
        multiple=True,
        type=click.Choice(["all", *POLICIES]),
        default=("static",),
        help="Who chooses the cut of each video; may be repeated.  [default: static]",
    ),
    click.option(
        "--arrivals",
        default=AT_ONCE,
        show_default=True,
        help="at-once, even:PER_HOUR, poisson:PER_HOUR or a trace file.",
    ),
    click.option("--slots", type=int, help="Videos in flight.  [default: the runtime's own, by mode]"),
    click.option(
        "--jitter",
        type=float,
        default=0.0,
        show_default=True,
        help="Deviation of a stage's duration, as a share of it: 0.03.",
    ),
    click.option(
        "--drift", "drift_file", type=click.Path(path_type=Path), help="How rates drift, TOML.  [default: not]"
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Of jitter and Poisson arrivals."),
    click.option("--reference-s", type=float, help="What deadline factors multiply.  [default: NPU-only latency]"),
    click.option(
        "--deadline-from",
        type=click.Choice(["start", "arrival"]),
        help="A deadline counts from a video's first block or from its arrival.  [default: start if at-once]",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    click.option("-q", "--quiet", is_flag=True, help="No progress, no notes."),
)


def asks(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; `Asked.of` reads them."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Asked:
    """What the options mean."""

    table: RateTable
    scenario: Scenario
    wanted: list[Configuration]
    since: Since
    reference_s: float | None

    @classmethod
    def of(
        cls,
        *,
        artifact: Path | None,
        rates_file: Path,
        modes: Sequence[str],
        videos: int | None,
        cut: str,
        policies: Sequence[str],
        arrivals: str,
        slots: int | None,
        jitter: float,
        drift_file: Path | None,
        seed: int,
        reference_s: float | None,
        deadline_from: Since | None,
    ) -> Asked:
        table = load_rates(rates_file)
        chosen: Sequence[Mode] = [m for m in MODES if m in modes or "all" in modes]
        sizes = None if artifact is None else sizes_fitting(table, artifact)
        costs = shared_block_costs(table, sizes) if "hetero-tensor" in chosen else table.costs()
        who: Sequence[PolicyName] = [p for p in POLICIES if p in policies or "all" in policies]
        trace = arrivals != AT_ONCE and ":" not in arrivals
        scenario = Scenario(
            costs,
            arrivals_of(arrivals, videos if videos is not None or trace else 10, seed),
            cut_of(cut, costs),
            slots,
            Jitter(jitter, seed),
            None if drift_file is None else load_drift(drift_file),
        )
        since: Since = deadline_from or ("start" if arrivals == AT_ONCE else "arrival")
        return cls(table, scenario, configurations(chosen, who), since, reference_s)


class Telling:
    """Progress of simulations that take long."""

    def __init__(self, videos: int, items: int, *, quiet: bool) -> None:
        self._progress = progress_for(quiet=quiet or videos * items < LONG)
        self._progress.start("simulate", videos * items, items, unit="videos")

    def tell(self, videos: int) -> None:
        self._progress.advance(videos)

    def done(self, name: str) -> None:
        self._progress.item_done(name)

    def __enter__(self) -> Telling:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.finish()


def note(text: str, *, quiet: bool) -> None:
    """A sentence on standard error."""
    if not quiet:
        err().print(text)
