"""What decoding takes on this machine in onnxruntime: alone, and while the GPU's engine executes blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np

from hvdc.artifact.reader import Artifact
from hvdc.errors import HvdcError
from hvdc.measure.bench import PROGRAM, Benched
from hvdc.measure.bench_report import Series
from hvdc.measure.places import HostPlace, ProgramError
from hvdc.pipeline.host_decoder import HostDecoder
from hvdc.progress import Progress, Silent

ENDLESS = 1000
"""Blocks of the engine that works meanwhile; it is ended when the decoder is done."""


def with_host_decode(
    benched: Benched, artifact: Artifact, place: HostPlace, progress: Progress, say: Callable[[str], None]
) -> Benched:
    """``benched`` with series of the decoder. Raises HvdcError: the GPU's engine ended before the decoder did."""
    repeat, start_s = benched.request.decode_repeat, time.monotonic()
    video = artifact.manifest.video
    with HostDecoder(artifact) as decoder:
        latent = np.zeros((len(decoder.entry.latents_mean), *video.latent), np.float32)

        def times() -> list[float]:
            found = []
            for _ in range(repeat):
                begin_s = time.monotonic()
                decoder.decode(latent, Silent())
                found.append(time.monotonic() - begin_s)
            return found

        say("decoding in onnxruntime, alone" + ("" if benched.report.gpu is None else ", then beside the GPU's blocks"))
        series = [_series("nothing", times())]
        if benched.report.gpu is not None:
            series.append(_series("gpu", _beside_gpu(benched, place, times)))
    report = benched.report.model_copy(
        update={"series": (*benched.report.series, *series), "decoder": "onnxruntime", "decode_repeat": repeat}
    )
    return replace(benched, report=report, took_s=benched.took_s + time.monotonic() - start_s)


def _beside_gpu(benched: Benched, place: HostPlace, times: Callable[[], list[float]]) -> list[float]:
    request = replace(benched.request, engine="gpu", repeat=ENDLESS, warm_up=0, qnn_libraries=None)
    begun, ended, enough = threading.Event(), threading.Event(), threading.Event()
    failures: list[HvdcError] = []

    class DoneError(Exception):
        """The decoder has been measured."""

    def seen(line: str) -> bool:
        if '"measured"' in line:
            begun.set()
        if enough.is_set():
            raise DoneError
        return '"event"' in line

    def work() -> None:
        try:
            place.run(PROGRAM, [place.artifact(), *request.arguments(place.kernel_cache())], seen)
        except DoneError:
            pass
        except HvdcError as error:
            failures.append(error)
        finally:
            ended.set()
            begun.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    begun.wait()
    try:
        found = [] if ended.is_set() else times()
        lasted = not ended.is_set()
    finally:
        enough.set()
        thread.join()
    if failures:
        raise failures[0]
    if not lasted:
        raise ProgramError("the GPU's engine ended before the decoder did, so nothing was measured beside it",
                           fix="give a smaller --decode-repeat, or --no-decode")  # fmt: skip
    return found


def _series(beside: str, seconds: list[float]) -> Series:
    middle = median(seconds)
    return Series.model_validate(
        {
            "engine": "npu", "what": "decode", "beside": beside, "expert": None, "count": len(seconds),
            "min_s": min(seconds), "median_s": middle, "max_s": max(seconds),
            "spread": (max(seconds) - min(seconds)) / middle,
        }
    )  # fmt: skip
