"""A stream of videos on two engines, as ``device_runtime/coordinator`` runs it: a discrete-event simulation.

What is modelled of the coordinator (docs/RUNTIME.md): a video in flight holds a slot, from when it is given to an
engine until it is finished; videos are begun in their order, as soon as a slot is free; each engine does one thing at a
time; decoding is the NPU's, in every mode. In mode ``dp`` the next video goes to the NPU if that has nothing to do,
else to the GPU if that has not; the NPU decodes the GPU's videos between its own, the lowest number first. In
``hetero`` videos pass the NPU in their order. What is not: the CPU's part and the loading of prompts, which rates
contain or which overlap; failures.

Durations are those of the rate table by stages, not by blocks: a stage (a video's blocks on one engine, with its
decode) takes the co-run rates if the other engine has a video too when it begins, else the solo ones (co-run where solo
ones are not known). Blocks take solo rates in modes ``npu`` and ``gpu``. A handoff keeps neither engine busy.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import simpy

from hvdc.errors import UsageError
from hvdc.plan.arrivals import check_arrivals
from hvdc.plan.costs import Costs
from hvdc.plan.stages import SLOTS, Mode, stage_sums
from hvdc.plan.variation import Drift, Jitter

SLOTS_MAX = 16
TELL_EVERY = 1000
ROUNDING = 1e-9
"""Of a sum of seconds, as a share of it."""


@dataclass(slots=True, eq=False)
class VideoTimes:
    """One video; seconds of the stream. ``cut``: blocks [0, cut) are the GPU's (in ``hetero-tensor``, of which it has a
    share). ``start_s`` is when its first block begins, on whichever engine; ``gpu_end_s`` equals it if the GPU has no
    block of its own. From ``npu_start_s`` on the NPU works on it without a break, from ``decode_start_s`` decoding."""

    video: int
    arrival_s: float
    cut: int = 0
    start_s: float = 0.0
    gpu_end_s: float = 0.0
    npu_start_s: float = 0.0
    decode_start_s: float = 0.0
    finish_s: float = 0.0

    @property
    def latency_s(self) -> float:
        """From asking for it to the finished decode."""
        return self.finish_s - self.arrival_s

    @property
    def service_s(self) -> float:
        """From its first block to the finished decode."""
        return self.finish_s - self.start_s


@dataclass(frozen=True)
class StreamRun:
    """A simulated stream; ``videos`` by number. ``cut`` is None in other modes than ``hetero``, and under a policy that
    chooses one for each video."""

    mode: Mode
    slots: int
    executions: int
    cut: int | None
    videos: tuple[VideoTimes, ...]


class InFlight(NamedTuple):
    """A video on its way, as a policy sees it: None for what has not happened yet."""

    cut: int
    gpu_start_s: float | None
    gpu_end_s: float | None
    npu_start_s: float | None


class Decision(NamedTuple):
    """The cut of a video, and the second before which the GPU does not begin it while one before it is in flight.
    ``until_npu_is_free``: the GPU works on it only until the NPU has nothing to do, and finishes its block: the cut is
    there, or at ``cut``."""

    cut: int
    not_before_s: float = 0.0
    until_npu_is_free: bool = False


class Policy(Protocol):
    """Chooses the cut of each video of mode ``hetero`` when it gets a slot, from what it has seen."""

    def decide(self, now_s: float, arrival_s: float, in_flight: Sequence[InFlight]) -> Decision:
        """``in_flight``: those that were begun before and are not finished, in order."""

    def gpu_done(self, blocks: int, seconds: float) -> None:
        """The GPU has executed a video's first blocks."""

    def npu_done(self, blocks: int, seconds: float, decode_s: float) -> None:
        """The NPU has executed a video's last blocks (perhaps none) and decoded it."""


def simulate(
    costs: Costs,
    mode: Mode,
    arrivals_s: Sequence[float],
    *,
    cut: int | None = None,
    policy: Policy | None = None,
    slots: int | None = None,
    jitter: Jitter | None = None,
    drift: Drift | None = None,
    tell: Callable[[int], None] | None = None,
) -> StreamRun:
    """The stream of videos that are asked for at ``arrivals_s`` (ascending). ``cut`` or ``policy`` belongs to mode
    ``hetero``. ``tell`` hears how many more videos are finished, about every thousand.

    Raises UsageError for costs that the mode needs and the table lacks, a cut out of range, arrivals that do not
    ascend.
    """
    check_arrivals(arrivals_s)
    if (mode == "hetero") != ((cut is None) != (policy is None)) or (cut is not None and policy is not None):
        raise UsageError("mode hetero needs a cut or a policy, and no other mode takes one", found=f"mode {mode}")
    if cut is not None and not 0 <= cut <= costs.executions:
        raise UsageError("the cut is out of range", expected=f"0 to {costs.executions}", found=str(cut))
    if slots is not None and not 1 <= slots <= SLOTS_MAX:
        raise UsageError("videos in flight are out of range", expected=f"1 to {SLOTS_MAX}", found=str(slots))
    stream = _Stream(costs, mode, arrivals_s, cut, policy, slots or SLOTS[mode], jitter or Jitter(), drift, tell)
    stream.run()
    return StreamRun(mode, stream.slots, costs.executions, cut, tuple(stream.videos))


class _Stream:
    """The coordinator, both engines, and what has become of each video."""

    def __init__(
        self,
        costs: Costs,
        mode: Mode,
        arrivals_s: Sequence[float],
        cut: int | None,
        policy: Policy | None,
        slots: int,
        jitter: Jitter,
        drift: Drift | None,
        tell: Callable[[int], None] | None,
    ) -> None:
        self.mode, self.cut, self.policy, self.slots, self.drift, self.tell = mode, cut, policy, slots, drift, tell
        self.executions, self.handoff_s = costs.executions, costs.handoff_s
        self.decode_s = costs.decode_s
        self.decode_alone_s = costs.decode_s if costs.decode_solo_s is None else costs.decode_solo_s
        self.gpu_sums, self.npu_sums = stage_sums(costs, mode, cut)
        self.videos = [VideoTimes(video, arrival) for video, arrival in enumerate(arrivals_s)]
        self.jitter = jitter
        self.gpu_jitter, self.npu_jitter, self.decode_jitter = (
            list(_take(jitter.factors(stage), len(self.videos))) for stage in ("gpu", "npu", "decode")
        )
        self.env = simpy.Environment()
        self.arrived = self.next_video = self.finished = 0
        self.passed = 0  # in mode hetero: the video that the NPU is to begin next
        self.free = slots
        self.on_gpu: deque[VideoTimes] = deque()  # the first one is being worked on
        self.not_before: dict[int, float] = {}
        self.held = -1  # a video that the GPU waits to begin
        self.is_first: simpy.Event | None = None  # all before the held one are finished
        self.open_ended: set[int] = set()  # videos that leave the GPU when the NPU is free
        self.npu_is_free: simpy.Event | None = None
        self.crossing = 0  # handed over by the GPU, and not there yet
        self.for_npu: list[tuple[int, VideoTimes]] = []
        self.npu_works = False
        self.wake_gpu: simpy.Event | None = None
        self.wake_npu: simpy.Event | None = None

    def run(self) -> None:
        self.env.process(self._gpu())
        self.env.process(self._npu())
        if self.videos[-1].arrival_s == 0:
            self.arrived = len(self.videos)
            self._fill()
        else:
            self.env.process(self._arrive())
        self.env.run()

    def _arrive(self) -> Generator[simpy.Event, None, None]:
        for video in self.videos:
            if video.arrival_s > self.env.now:
                yield self.env.timeout(video.arrival_s - self.env.now)
            self.arrived += 1
            self._fill()

    # The coordinator.

    def _fill(self) -> None:
        """Videos into free slots, and work to the engines."""
        while self.free and self.next_video < self.arrived:
            video = self.videos[self.next_video]
            if self.mode == "dp" and self._npu_load() and self.on_gpu:
                return
            self.next_video += 1
            self.free -= 1
            video.cut = self._cut_of(video)
            if video.cut and self.mode != "hetero-tensor":
                self._to_gpu(video)
            else:
                self._to_npu(video)

    def _cut_of(self, video: VideoTimes) -> int:
        if self.policy is not None:
            decision = self.policy.decide(self.env.now, video.arrival_s, self._in_flight(video.video))
            if decision.not_before_s > self.env.now:
                self.not_before[video.video] = decision.not_before_s
            if decision.until_npu_is_free:
                self.open_ended.add(video.video)
            return decision.cut
        if self.cut is not None:
            return self.cut
        if self.mode == "dp":
            return self.executions if self._npu_load() else 0
        return 0 if self.mode == "npu" else self.executions

    def _in_flight(self, before: int) -> list[InFlight]:
        now, working = self.env.now, self.on_gpu[0].video if self.on_gpu else -1
        seen = []
        for video in self.videos[max(0, before - self.slots + 1) : before]:
            if video.finish_s and video.finish_s <= now:
                continue
            on_gpu = video in self.on_gpu
            begun = not on_gpu or (video.video == working and video.start_s > 0) or video.gpu_end_s > 0
            seen.append(
                InFlight(
                    video.cut,
                    video.start_s if begun else None,
                    None if on_gpu else video.gpu_end_s,
                    video.npu_start_s if video.video < self.passed else None,
                )
            )
        return seen

    def _to_gpu(self, video: VideoTimes) -> None:
        self.on_gpu.append(video)
        if self.wake_gpu is not None:
            self.wake_gpu.succeed()
            self.wake_gpu = None

    def _to_npu(self, video: VideoTimes) -> None:
        heapq.heappush(self.for_npu, (video.video, video))
        if self.wake_npu is not None:
            self.wake_npu.succeed()
            self.wake_npu = None

    def _npu_load(self) -> bool:
        return bool(self.for_npu) or self.npu_works

    # The engines.

    def _lasts_s(self, stage: str, video: int, start_s: float, work_s: float) -> float:
        return work_s if self.drift is None else self.drift.lasts_s(stage, video, start_s, work_s)

    def _gpu(self) -> Generator[simpy.Event, None, None]:
        env = self.env
        while True:
            if not self.on_gpu:
                self.wake_gpu = env.event()
                yield self.wake_gpu
            video = self.on_gpu[0]
            wait_s = self.not_before.pop(video.video, 0.0) - env.now
            if wait_s > 0 and self.finished < video.video:
                self.held, self.is_first = video.video, env.event()
                yield env.timeout(wait_s) | self.is_first
                self.is_first = None
            video.start_s = env.now
            if video.video in self.open_ended:
                yield from self._until_npu_is_free(video)
            else:
                video.gpu_end_s = env.now + self._gpu_s(video, self._gpu_sums(), video.cut)
                yield env.timeout(video.gpu_end_s - env.now)
            duration_s, video.gpu_end_s = env.now - video.start_s, env.now
            self.on_gpu.popleft()
            if self.policy is not None:
                self.policy.gpu_done(video.cut, duration_s)
            if self.handoff_s > 0:
                self.crossing += 1
                env.process(self._cross(video))
            else:
                self._to_npu(video)
            if self.mode == "dp":
                self._fill()

    def _gpu_s(self, video: VideoTimes, sums: list[float], cut: int) -> float:
        """Seconds of a video's first blocks."""
        work_s = sums[cut] * self.gpu_jitter[video.video]
        return self._lasts_s("gpu", video.video, video.start_s, work_s)

    def _until_npu_is_free(self, video: VideoTimes) -> Generator[simpy.Event, None, None]:
        env, sums = self.env, self._gpu_sums()
        self.open_ended.discard(video.video)
        video.gpu_end_s = env.now + self._gpu_s(video, sums, video.cut)
        if self._npu_load() or self.crossing:
            self.npu_is_free = env.event()
            yield env.timeout(video.gpu_end_s - env.now) | self.npu_is_free
            self.npu_is_free = None
        done_s = env.now - video.start_s
        begun_s = done_s * (1 - ROUNDING)  # a block that ends now is not begun
        video.cut = bisect_left(range(video.cut), begun_s, key=lambda cut: self._gpu_s(video, sums, cut))
        yield env.timeout(max(0.0, self._gpu_s(video, sums, video.cut) - done_s))

    def _gpu_sums(self) -> list[float]:
        sums = self.gpu_sums
        assert sums is not None, "this mode has videos for the GPU"  # noqa: S101
        return sums.shared if self._npu_load() or self.crossing else sums.alone

    def _cross(self, video: VideoTimes) -> Generator[simpy.Event, None, None]:
        yield self.env.timeout(self.handoff_s)
        self.crossing -= 1
        self._to_npu(video)

    def _npu(self) -> Generator[simpy.Event, None, None]:
        env = self.env
        while True:
            while not self.for_npu or (self.mode == "hetero" and self.for_npu[0][0] != self.passed):
                if self.npu_is_free is not None and not self.npu_is_free.triggered and not self.crossing:
                    self.npu_is_free.succeed()
                self.wake_npu = env.event()
                yield self.wake_npu
            video = heapq.heappop(self.for_npu)[1]
            self.npu_works = True
            self.passed = video.video + 1
            blocks_s = self._npu_blocks_s(video)
            video.npu_start_s = env.now
            if video.cut == 0 or self.mode == "hetero-tensor":
                video.start_s = video.gpu_end_s = env.now
            video.decode_start_s = env.now + blocks_s
            shared = bool(self.on_gpu)
            work_s = (self.decode_s if shared else self.decode_alone_s) * self.decode_jitter[video.video]
            decode_s = self._lasts_s("decode", video.video, video.decode_start_s, work_s)
            yield env.timeout(blocks_s + decode_s)
            video.finish_s = env.now
            self.npu_works = False
            if self.policy is not None:
                self.policy.npu_done(self.executions - video.cut, blocks_s, decode_s)
            self._finish()

    def _npu_blocks_s(self, video: VideoTimes) -> float:
        first = 0 if self.mode == "hetero-tensor" else video.cut
        if first == self.executions or self.npu_sums is None:
            return 0.0
        sums = self.npu_sums.shared if self.on_gpu else self.npu_sums.alone
        work_s = (sums[-1] - sums[first]) * self.npu_jitter[video.video]
        return self._lasts_s("npu", video.video, self.env.now, work_s)

    def _finish(self) -> None:
        self.finished += 1
        self.free += 1
        if self.is_first is not None and self.finished == self.held:
            self.is_first.succeed()
        if self.tell is not None and (self.finished % TELL_EVERY == 0 or self.finished == len(self.videos)):
            self.tell(TELL_EVERY if self.finished % TELL_EVERY == 0 else self.finished % TELL_EVERY)
        self._fill()


def _take(factors: Iterator[float], count: int) -> Iterator[float]:
    for _, factor in zip(range(count), factors, strict=False):
        yield factor
