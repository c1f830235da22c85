"""Streams of `hvdc_stream_check`, and what they must compute.

Its engines compute whole numbers, each block with a multiplication and an addition of its own, and each engine with
another addition: a block that is lost, repeated, swapped or executed by the wrong engine changes the result. `latent`
computes the same from the specification and from the number of blocks that a stream says the GPU executed.
"""

from __future__ import annotations

import json
import math
import subprocess
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

PRIME = 65521
GPU, NPU = 5, 9


@dataclass(frozen=True)
class Shape:
    """Sizes of a stream's videos. ``switch``: the first step of the detail expert."""

    steps: int = 3
    layers: int = 4
    tokens: int = 5
    width: int = 6
    latent: int = 4
    text_tokens: int = 3
    text_width: int = 5
    switch: int = 2

    @property
    def executions(self) -> int:
        return self.steps * self.layers


Values = npt.NDArray[np.int64]


def inputs(shape: Shape, seed: int, video: int) -> tuple[Values, Values]:
    """Initial latent ``[tokens, latent]`` and embeds ``[text_tokens, text_width]``."""
    base = (video + 1) * 7919 + seed * 104729
    latent = (base + 31 * np.arange(shape.tokens * shape.latent)) % PRIME
    embeds = (3 * base + 17 * np.arange(shape.text_tokens * shape.text_width)) % PRIME
    embeds[0] = video
    return latent.reshape(shape.tokens, shape.latent), embeds.reshape(shape.text_tokens, shape.text_width)


def shared_columns(shape: Shape, share: float) -> int:
    """Of the GPU, in mode hetero-tensor: whole tiles of 32, to the nearest edge."""
    return min(shape.width, 32 * math.floor(share * -(-shape.width // 32) + 0.5))


def latent(shape: Shape, seed: int, video: int, gpu_blocks: int, columns: int | None = None) -> Values:
    """The final latent of a video whose first ``gpu_blocks`` blocks the GPU executes, without any stream; of these
    blocks the first ``columns`` where they are shared."""
    now, embeds = inputs(shape, seed, video)
    column, flat = np.arange(shape.width), np.arange(shape.tokens * shape.width)
    for step in range(shape.steps):
        expert = int(step >= shape.switch)
        text = (embeds[:, column % shape.text_width] * 5 + 11 * expert + column) % PRIME
        repeated = text.ravel()[flat % text.size]
        hidden = ((now[:, column % shape.latent] * 3 + column + 1) % PRIME).ravel()
        for block in range(shape.layers):
            on_gpu = step * shape.layers + block < gpu_blocks
            engine = np.where(
                on_gpu & (flat % shape.width < (columns if columns is not None else shape.width)), GPU, NPU
            )
            hidden = (hidden * 31 + repeated * 7 + 101 * step + 13 * block + engine + 3 * flat) % PRIME
        head = hidden.reshape(shape.tokens, shape.width) @ (column + 1)
        now = (now * 7 + head[:, None] + step + np.arange(shape.latent)) % PRIME
    return now


def words(shape: Shape, **more: object) -> list[str]:
    """The words of a stream: sizes, and anything else of check_spec.c."""
    return [f"{key}={value}" for key, value in {**asdict(shape), **more}.items()]


def kept(directory: Path, video: int) -> tuple[Values, dict[str, str]]:
    """A result's tokens and its metadata, read as anybody reads a safetensors file."""
    with safe_open(directory / f"video-{video:06d}.safetensors", "np") as file:
        tokens = file.get_tensor("tokens")
        metadata = file.metadata()
    assert tokens.dtype == np.float32
    return tokens.astype(np.int64), metadata


def check(report: dict[str, Any], shape: Shape, directory: Path, seed: int = 0, columns: int | None = None) -> None:
    """Every video that counts as done has the result that follows from how it says it came to be; nothing is left."""
    done = [v for v in report["videos"] if v["skipped"] or v["finished_s"] > 0]
    assert len(done) == report["finished"] + report["skipped"], report
    assert {p.name for p in directory.glob("video-*")} >= {f"video-{v['video']:06d}.safetensors" for v in done}
    for video in done:
        tokens, metadata = kept(directory, video["video"])
        expected = latent(shape, seed, video["video"], video["gpu_blocks"], columns)
        assert np.array_equal(tokens, expected), (video, report["note"])
        assert metadata["gpu_blocks"] == str(video["gpu_blocks"])
        assert metadata["recovered"] == str(int(video["recovered"]))
    assert not list(directory.glob(".*")), "a part of a result"
    check_nothing_left(report)


def check_nothing_left(report: dict[str, Any]) -> None:
    """No descriptor, no mapping of shared memory, no child process more than before."""
    assert (report["left_descriptors"], report["left_mappings"], report["left_children"]) == (0, 0, False)


class Streams:
    """``hvdc_stream_check serve``: one owner process for many streams, each with a worker of its own."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen(
            [str(program), "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _, report = self._process.communicate(timeout=60)
        if kind is None:
            assert self._process.returncode == 0, report
            assert "Sanitizer" not in report, report

    def run(self, shape: Shape, **more: object) -> dict[str, Any]:
        """The report of one stream."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(" ".join(words(shape, **more)) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:  # it died: a sanitizer has something to say
            _, said = self._process.communicate(timeout=60)
            raise AssertionError(said)
        report: dict[str, Any] = json.loads(line)
        return report


WIDER = replace(Shape(), tokens=700, width=64, latent=16)
"""More than a page of everything."""
