"""Blocks and the decoder timed by `hvdc_bench`, with the conditions around it, and whether the run was steady."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hvdc.errors import Exit, HvdcError
from hvdc.measure.bench_report import BenchReport, Series, parse_report
from hvdc.measure.conditions import SCRIPT, Conditions, parse_conditions
from hvdc.measure.places import Ended, Place, ProgramError
from hvdc.measure.sampling import Samples, sampling
from hvdc.progress import Progress

PROGRAM = "hvdc_bench"
STEADY, UNSTEADY = 0, 3
_STATUS = {2: Exit.USAGE, 4: Exit.BAD_ARTIFACT, 5: Exit.DEVICE}
"""Exit statuses of the program; see ``hvdc_bench --help``."""

TABLED = ("block", "decode")
"""What a rate table holds: how steady a text's keys are decides nothing."""


@dataclass(frozen=True)
class BenchRequest:
    """``cooling``: how the device is cooled, in the person's words. ``rest_s``: seconds to wait before the first block.
    ``qnn_libraries``: of the machine that measures; None: the runtime decodes nothing there. ``qnn_words``: what it is
    told of that machine."""

    engine: str = "both"
    warm_up: int = 1
    repeat: int = 5
    decode_repeat: int = 1
    threads: int | None = None
    npu_sums: str = "fast"
    opencl_device: str | None = None
    qnn_libraries: str | None = None
    qnn_words: tuple[object, ...] = ()
    max_spread: float = 0.1
    cooling: str = ""
    rest_s: float = 0.0

    def arguments(self, kernels: str | None) -> list[object]:
        """Of the program, behind the artifact."""
        words: list[object] = ["--json", "--progress", "--engine", self.engine, "--warm-up", self.warm_up, "--repeat",
                               self.repeat, "--spread-limit", self.max_spread, "--npu-sums", self.npu_sums]  # fmt: skip
        for option, value in (
            ("--threads", self.threads), ("--device", self.opencl_device), ("--kernel-cache", kernels),
            ("--qnn-libraries", self.qnn_libraries),
        ):  # fmt: skip
            words += [] if value is None else [option, value]
        return words + (["--decode-repeat", self.decode_repeat, *self.qnn_words] if self.qnn_libraries else [])


@dataclass(frozen=True)
class Benched:
    """``started_s``: of the clock, when the first block began; ``took_s`` from then on."""

    request: BenchRequest
    report: BenchReport
    what: str
    before: Conditions
    during: Samples
    after: Conditions
    started_s: float
    took_s: float

    def unsteady(self) -> list[Series]:
        """Series that a table would hold, and whose spread is above the limit."""
        return [s for s in self.report.series if s.what in TABLED and s.spread > self.request.max_spread]


class UnsteadyError(HvdcError):
    """Times of the same work differ too much for anybody to plan with them."""


def bench(request: BenchRequest, place: Place, progress: Progress, say: Callable[[str], None]) -> Benched:
    """Rest, look, measure and look meanwhile, look again.

    Raises ProgramError with the program's own sentence, BenchReportError; InUseError, LinkError of a device.
    """
    if request.rest_s > 0:
        say(f"resting for {request.rest_s:g} s")
        time.sleep(request.rest_s)
    before = parse_conditions(place.script(SCRIPT))
    say(f"before: {before.text()}")
    start_s, clock_s = time.monotonic(), time.time()
    with _drawn(progress) as seen, sampling(place.follow) as during:
        ended = place.run(PROGRAM, [place.artifact(), *request.arguments(place.kernel_cache())], seen)
    took_s = time.monotonic() - start_s
    after = parse_conditions(place.script(SCRIPT))
    say(f"after:  {after.text()}")
    if during.seen:
        say(f"during: {during.text()}")
    report = parse_report(_answer(ended), f"{PROGRAM} on {place.what}")
    return Benched(request, report, place.what, before, during, after, clock_s, took_s)


def require_steady(benched: Benched) -> None:
    """Raises UnsteadyError: which times differ, and by how much."""
    if not (unsteady := benched.unsteady()):
        return
    worst = "; ".join(f"{s.text()}: {s.min_s:.4g} to {s.max_s:.4g} s, spread {s.spread:.0%}" for s in unsteady[:4])
    more = f"; and {len(unsteady) - 4} more" if len(unsteady) > 4 else ""
    raise UnsteadyError(
        "the run is not steady, and nothing was written",
        expected=f"(max - min) / median of at most {benched.request.max_spread:.0%} (--max-spread)",
        found=worst + more,
        fix="cool the device, end what else runs, give --rest-s or a larger --repeat; --keep-unsteady writes the table "
        "all the same, and says so in it",
    )


def _answer(ended: Ended) -> bytes:
    """The program's report. Raises ProgramError where it refused."""
    if ended.status in (STEADY, UNSTEADY):
        return ended.out
    own = [line for line in ended.log if line.startswith(f"{PROGRAM}: ")]
    how = f"it was killed by signal {-ended.status}" if ended.status < 0 else f"it ended with status {ended.status}"
    if own:
        raise ProgramError(
            own[-1].removeprefix(f"{PROGRAM}: "), status=_STATUS.get(ended.status, Exit.FAILURE), log=ended.log
        )
    raise ProgramError(f"{PROGRAM} ended without a report", found=how, log=ended.log)


@contextmanager
def _drawn(progress: Progress) -> Iterator[Callable[[str], bool]]:
    """Takes the program's lines of progress."""
    started = False

    def seen(line: str) -> bool:
        nonlocal started
        try:
            event = json.loads(line) if line.startswith("{") else None
            if not isinstance(event, dict) or event.get("event") not in ("begun", "measured"):
                return False
            total, what = int(event["total"]), str(event.get("what", ""))
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
        if not started:
            progress.start("measuring", total, total, unit="measurements")
            started = True
        if event["event"] == "measured":
            progress.advance(1)
            progress.item_done(what)
        return True

    try:
        yield seen
    finally:
        progress.finish()
