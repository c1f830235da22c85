"""A tiny model's video: sizes that tests of the runner know, and what is compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hvdc.pipeline.stream_file import StreamVideo
from tests.device_runtime.runs import tokens, why_no_gpu

EXECUTIONS, LAYERS = 12, 2
VIDEOS = (StreamVideo(0, 1), StreamVideo(1, 2), StreamVideo(1, 3))

needs_gpu = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")


def assert_equal(one: Path, other: Path, videos: range | tuple[int, ...] = range(len(VIDEOS))) -> None:
    for video in videos:
        np.testing.assert_array_equal(tokens(one, video), tokens(other, video))
