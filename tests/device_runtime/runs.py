"""`hvdc_runner` as a process, and streams for it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from exporters.prompts import read_prompts
from hvdc.artifact.reader import open_artifact
from hvdc.pipeline.stream_file import StreamVideo, write_stream

Float32Array = npt.NDArray[np.float32]

SANITIZERS = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
"""PoCL and the LLVM in it keep what they allocate until the process ends: not ours to free."""

REPORTS = ("AddressSanitizer", "runtime error:", "LeakSanitizer")


@dataclass(frozen=True)
class Done:
    """What a run left. ``events``: the lines of standard error that are JSON, ``said``: the others."""

    status: int
    report: dict[str, Any]
    events: list[dict[str, Any]]
    said: str


@dataclass(frozen=True)
class Runner:
    """A program with an artifact and a stream. ``kernels``: where the GPU's compiled programs are kept."""

    program: Path
    artifact: Path
    stream: Path
    kernels: Path

    def with_videos(self, name: str, videos: int, embeds: Path) -> Runner:
        """The same with another stream, of so many videos, in a folder of that name beside its own."""
        entries = [StreamVideo(i % 3, i) for i in range(videos)]
        stream = stream_of(self.stream.with_name(name), self.artifact, embeds, entries)
        return Runner(self.program, self.artifact, stream, self.kernels)

    def command(self, output: Path, mode: str, *more: object) -> list[str]:
        given = (self.program, self.artifact, self.stream, "-o", output, "--mode", mode, "--kernel-cache", self.kernels)
        return [*map(str, given), "--json", "--progress", "json", *map(str, more)]

    def run(self, output: Path, mode: str, *more: object, env: dict[str, str] | None = None) -> Done:
        """To its end. A sanitizer's report fails the test. In mode npu, where no driver is loaded, leaks do too."""
        checks = {} if mode == "npu" else SANITIZERS
        done = subprocess.run(
            self.command(output, mode, *more), env={**os.environ, **checks, **(env or {})}, capture_output=True,
            text=True, errors="replace", check=False, timeout=120,
        )  # fmt: skip
        return outcome(done.returncode, done.stdout, done.stderr)

    def finished(self, output: Path, mode: str, *more: object) -> Done:
        """As `run`, and every video is there."""
        done = self.run(output, mode, *more)
        assert done.status == 0, done.said
        return done

    @contextmanager
    def started(self, output: Path, mode: str, *more: object) -> Iterator[subprocess.Popen[str]]:
        """A running process, killed at the end if it still runs."""
        child = subprocess.Popen(
            self.command(output, mode, *more), env={**os.environ, **SANITIZERS}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip
        try:
            yield child
        finally:
            child.kill()
            child.communicate()


def outcome(status: int, out: str, err: str) -> Done:
    assert not any(report in err for report in REPORTS), err[-4000:]
    lines = err.splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    said = "\n".join(line for line in lines if not line.startswith("{"))
    return Done(status, json.loads(out) if out else {}, events, said)


def wait_for(child: subprocess.Popen[str], event: str) -> list[dict[str, Any]]:
    """Read a running process's standard error until this event; all events so far."""
    assert child.stderr is not None
    seen, said = [], ""
    for line in child.stderr:
        said += line
        if line.startswith("{"):
            seen.append(json.loads(line))
            if seen[-1]["event"] == event:
                return seen
    raise AssertionError(f"ended without {event!r}:\n{said[-2000:]}")


def children_of(pid: int) -> list[int]:
    """The processes that a process started and that still run."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@dataclass(frozen=True)
class Mapped:
    """Shared memory that a process has mapped. ``share``: of its resident bytes, divided by how many processes map
    them."""

    name: str
    inode: int
    permissions: str
    resident_kib: int
    share_kib: int


def shared_memory_of(pid: int) -> list[Mapped]:
    """What a process has mapped of the runtime's own shared memory."""
    found: list[Mapped] = []
    head: list[str] | None = None
    sizes: dict[str, int] = {}
    for line in [*Path(f"/proc/{pid}/smaps").read_text().splitlines(), "0-0 end"]:
        words = line.split()
        if not words[0].endswith(":"):  # the first line of the next mapping
            if head is not None:
                name = head[5].removeprefix("/memfd:hvdc:")
                found.append(Mapped(name, int(head[4]), head[1], sizes["Rss:"], sizes["Pss:"]))
            head, sizes = (words if "/memfd:hvdc:" in line else None), {}
        elif words[-1] == "kB":
            sizes[words[0]] = int(words[1])
    return found


def is_running(pid: int) -> bool:
    """A zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def tokens(output: Path, video: int) -> Float32Array:
    """A video's final latent, ``[tokens, latent_values]``."""
    held: Float32Array = load_file(output / f"video-{video:06d}.safetensors")["tokens"]
    return held


def stream_of(folder: Path, artifact: Path, embeds: Path, videos: Sequence[StreamVideo]) -> Path:
    folder.mkdir(exist_ok=True)
    with open_artifact(artifact) as opened, read_prompts(embeds) as prompts:
        write_stream(folder, opened, prompts, videos)
    return folder


def why_no_gpu() -> str:
    """What keeps the GPU's executor from running here; ``""`` if nothing does."""
    drivers = Path(os.environ.get("OCL_ICD_VENDORS", "/etc/OpenCL/vendors"))
    return "" if any(drivers.glob("*.icd")) else "there is no OpenCL driver: apt-get install pocl-opencl-icd"
