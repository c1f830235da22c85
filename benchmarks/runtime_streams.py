"""Streams: what the coordinator costs, how well two stages overlap, and what is in memory how often."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.full_size import write_artifact, write_streams
from benchmarks.report import Line, say
from exporters.prompts import read_prompts
from hvdc.artifact.reader import open_artifact
from hvdc.pipeline.stream_file import planned_videos, write_stream
from hvdc.plan.cut import best_cut, gpu_stage_s, npu_stage_s
from hvdc.plan.rates import load_rates
from tests.device_runtime.streams import Shape, words

RATES = Path("examples/rates/galaxy-s25-49-frames-b.toml")
FASTER = 500
"""The paper's seconds are waited for in this fraction."""
VIDEOS = 6
MIB = 1 << 20


def overlap_of_the_paper(programs: dict[str, Path]) -> Line:
    """Synthetic executors that wait as long as the paper's engines work, 500 times faster."""
    say("a stream of waiting engines at the paper's rates")
    table = load_rates(RATES)
    cut = best_cut(table.rates, table.executions)
    shape = Shape(**{**asdict(Shape()), "steps": table.steps, "layers": table.layers})
    us = 1e6 / FASTER
    given = words(
        shape, mode="hetero", cut=cut, videos=VIDEOS, gpu_us=round(us * table.rates.gpu_block_s),
        npu_us=round(us * table.rates.npu_block_s), decode_us=round(us * table.rates.decode_s),
    )  # fmt: skip
    done = subprocess.run(
        [str(programs["hvdc_stream_check"]), "run", *given], capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout.splitlines()[-1])
    stages = gpu_stage_s(table.rates, cut) / FASTER, npu_stage_s(table.rates, table.executions, cut) / FASTER
    ratio = report["period_s"] / max(stages)
    return Line(
        "overlap: period ÷ longer stage, executors that wait", f"{ratio:.3f}", "≤ 1.05", ratio <= 1.05,
        f"rates of {RATES.name} ÷ {FASTER}, cut {cut}, {VIDEOS} videos",
    )  # fmt: skip


def example_stream(artifact: Path, prompts: Path, folder: Path) -> Path:
    """Videos of the example's prompts."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_artifact(artifact) as opened, read_prompts(prompts, limit=VIDEOS) as read:
        write_stream(folder, opened, read, planned_videos(VIDEOS, (0,), None))
    return folder


def real_streams(programs: dict[str, Path], artifact: Path, stream: Path, folder: Path, *device: object) -> list[Line]:
    """The coordinator's part of a video, and the overlap of the real executors, each on one core; or the GPU's on a
    ``device`` (options of hvdc_runner)."""
    say("streams of the example with the real executors")
    cores = sorted(os.sched_getaffinity(0))
    one = _runner(programs, artifact, stream, folder / "npu", "--mode", "npu", "--threads", 1, "--npu-cpus", cores[0])
    shares = [
        (v["finished_s"] - v["started_s"] - v["npu_s"] - v["cpu_s"]) / v["npu_s"] for v in _settled(one["videos"])
    ]
    overhead = statistics.median(shares)
    lines = [
        Line(
            "coordinator: a video's time beside its blocks and the CPU's part, ÷ its blocks", f"{overhead:.1%}",
            "≤ 2 %", overhead <= 0.02,
            f"example, mode npu, one thread, median of {len(shares)} videos; with writing each result durably",
        )
    ]  # fmt: skip
    if len(cores) < 2:
        say("one core: the overlap of two executors is not measured")
        return lines
    pinned = ("--threads", 1, "--npu-cpus", cores[0], "--gpu-cpus", cores[1])
    both = _runner(programs, artifact, stream, folder / "hetero", "--mode", "hetero", "--cut", "auto", *pinned, *device)
    videos = _settled(both["videos"])
    gpu, npu = (statistics.median(v[name] for v in videos) for name in ("gpu_s", "npu_s"))
    ratio = both["period_s"] / max(gpu, npu)
    lines.append(
        Line(
            f"overlap: period ÷ longer stage, real executors, {'GPU and' if device else 'each on'} one core",
            f"{ratio:.2f}", "1 is perfect", True,
            f"example, cut {both['cut']} of {both['executions']} ({both['cut_source']}): GPU {gpu:.3f} s, NPU "
            f"{npu:.3f} s, period {both['period_s']:.3f} s; stages without the CPU's part",
        )
    )  # fmt: skip
    return lines


def _settled(videos: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the first one, in which things happen that happen once."""
    return list(videos[1:])


def memory(programs: dict[str, Path], folder: Path) -> list[Line]:
    """Both executors on one full-size artifact, with a small clip: weights as the kernel counts them."""
    artifact = folder / "full-size.hvdc"
    say(f"writing {artifact}" if not artifact.exists() else f"{artifact} is there")
    write_artifact(artifact, layers=30, frames=5, side=64)
    stream = write_streams(folder / "full-size-stream", artifact, 1)
    say("both executors on the full-size artifact")
    watch = _Watch()
    report = _runner(programs, artifact, stream, folder / "memory", "--mode", "hetero", "--cut", 90, watch=watch)
    counted, shared = watch.weights_pss_bytes, report["weights_bytes"]
    ratio = counted / shared
    with open_artifact(artifact) as opened:
        g = opened.manifest.geometry
    pair = 2 * g.width * g.ffn_width
    return [
        Line(
            "weights in memory, both processes together, ÷ one copy", f"{ratio:.3f}", "1", abs(ratio - 1) < 0.005,
            f"Pss of the shared objects in /proc/PID/smaps, summed over two processes: {counted / MIB:,.1f} MiB of "
            f"{shared / MIB:,.1f}; {report['weights_kind']}",
        ),
        Line(
            "what the GPU's executor adds: staged weights", f"{pair / MIB:.2f} MiB", "≤ 26.25 MiB", pair <= 26.25 * MIB,
            f"one block's feed-forward pair; with buffers for this clip it declares "
            f"{report['gpu_engine_bytes'] / MIB:.1f} MiB, the NPU's {report['npu_engine_bytes'] / MIB:.1f} MiB",
        ),
    ]  # fmt: skip


class _Watch:
    """Pss of shared weights over a process and its children, at its largest: the moment at which both have read all."""

    def __init__(self) -> None:
        self.weights_pss_bytes = 0

    def look(self, pid: int) -> None:
        total = 0
        for process in (pid, *_children(pid)):
            try:
                text = Path(f"/proc/{process}/smaps").read_text()
            except OSError:
                continue
            for name, pss in re.findall(r"^[0-9a-f]+-.* (/memfd:\S+).*\n(?:(?!Pss:).*\n)*?Pss: +(\d+) kB", text, re.M):
                total += 0 if "slot" in name else int(pss) * 1024
        self.weights_pss_bytes = max(self.weights_pss_bytes, total)


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _runner(
    programs: dict[str, Path], artifact: Path, stream: Path, output: Path, *more: object, watch: _Watch | None = None
) -> dict[str, Any]:
    output.mkdir(parents=True, exist_ok=True)
    for result in output.glob("video-*"):
        result.unlink()
    command = [programs["hvdc_runner"], artifact, stream, "-o", output, "--json", "-q", *more]
    child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    stop = threading.Event()

    def look() -> None:
        while watch is not None and not stop.wait(0.25):
            watch.look(child.pid)

    thread = threading.Thread(target=look)
    thread.start()
    begin = time.perf_counter()
    out, _ = child.communicate()
    stop.set()
    thread.join()
    if child.returncode != 0:
        raise SystemExit(f"hvdc_runner ended with status {child.returncode}")
    say(f"{time.perf_counter() - begin:.1f} s")
    report: dict[str, Any] = json.loads(out)
    return report
