"""`hvdc plan memory` beside what the runtime forecasts by its own allocations: equal, as exactly as that is said."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from exporters.model import Geometry
from exporters.prompts import write_prompts
from hvdc.artifact.reader import open_artifact
from hvdc.pipeline.stream_file import StreamVideo
from hvdc.plan.memory_plan import plan_memory
from hvdc.plan.stages import SLOTS, Mode
from tests import calibrations
from tests.device_runtime.runs import Runner, stream_of, why_no_gpu
from tests.hollow import full_size_manifest, write_hollow

STRUCTURES = 64 << 10
"""Bytes of tables that have no buffers: the executor itself, and a few hundred pointers for each block."""

needs_gpu = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is a GPU")


@pytest.fixture(scope="module")
def small(
    programs: dict[str, Path],
    watched_checkpoint: Path,
    calibration: Path,
    embeds: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Runner:
    """Two blocks, six steps, eight tokens, with activation scales."""
    folder = tmp_path_factory.mktemp("small")
    artifact = folder / "small.hvdc"
    done = calibrations.run_compile(watched_checkpoint, artifact, "--calibration", calibration, "-q")
    assert done.status == 0, done.err
    (folder / "kernels").mkdir()
    stream = stream_of(folder / "stream", artifact, embeds, [StreamVideo(0, 0)])
    return Runner(programs["hvdc_runner"], artifact, stream, folder / "kernels")


RAGGED = Geometry(
    layers=5, width=1500, ffn_width=5000, heads=10, text_width=1000, in_channels=16, out_channels=16, patch=(1, 2, 2),
    freq_dim=256, rank=100, alpha_over_rank=2.0,
)  # fmt: skip
"""No size of a weight is one of whole tiles."""


@pytest.fixture(scope="module", params=["DCM-Wan2.1 at 49 frames", "ragged at 17 frames"])
def hollow(
    request: pytest.FixtureRequest, programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Runner:
    """A model without its weights: enough to be refused."""
    ragged = request.param.startswith("ragged")
    manifest = full_size_manifest(17, RAGGED) if ragged else full_size_manifest()
    folder = tmp_path_factory.mktemp("hollow")
    artifact = write_hollow(folder / "dcm.hvdc", manifest)
    g = manifest.geometry
    write_prompts(folder / "p.safetensors", ["a"], [np.zeros((g.text_tokens, g.text_width), np.float32)])
    stream = stream_of(folder / "stream", artifact, folder / "p.safetensors", [StreamVideo(0, 0)])
    return Runner(programs["hvdc_runner"], artifact, stream, folder)


def planned(artifact: Path, mode: Mode) -> dict[str, int]:
    with open_artifact(artifact) as opened:
        plan = plan_memory(opened.manifest)
    return {part.name: part.bytes for part in next(c for c in plan.modes if c.name == mode).parts}


def test_places_of_videos_weights_and_the_npus_buffers(small: Runner, tmp_path: Path) -> None:
    """The runtime counts scratch of each thread too, which a phone's VTCM holds: two threads minus one is one's."""
    forecasts = [
        small.finished(tmp_path / str(threads), "npu", "--threads", threads).report["forecast"] for threads in (1, 2)
    ]
    plan = planned(small.artifact, "npu")
    assert [f["weights_bytes"] for f in forecasts] == [plan["weights"]] * 2
    assert [f["slot_bytes"] for f in forecasts] == [plan["in flight"]] * 2
    without_threads = 2 * forecasts[0]["npu_engine_bytes"] - forecasts[1]["npu_engine_bytes"]
    assert 0 <= without_threads - plan["NPU"] < STRUCTURES


@needs_gpu
@pytest.mark.parametrize("mode", [mode for mode in SLOTS if mode != "npu"])
def test_modes_with_the_gpu(small: Runner, mode: Mode, tmp_path: Path) -> None:
    cut = {"hetero": ("--cut", 5), "hetero-tensor": ("--gpu-share", 0.5)}.get(mode, ())
    forecast = small.finished(tmp_path / "out", mode, *cut).report["forecast"]
    plan = planned(small.artifact, mode)
    assert forecast["gpu_engine_bytes"] == plan["GPU"]
    assert forecast["slot_bytes"] == plan["in flight"]
    assert forecast["weights_bytes"] == plan["weights"]


@pytest.mark.parametrize("mode", SLOTS)
def test_models_of_true_sizes_are_refused_with_the_plans_numbers(hollow: Runner, mode: Mode, tmp_path: Path) -> None:
    """To a tenth of a MiB, as the sentence says it, where 1 MiB is allowed. No device is opened for that."""
    said = refused_mib(hollow, tmp_path, mode, 1)
    plan = {name: count / 2**20 for name, count in planned(hollow.artifact, mode).items()}
    weights, in_flight, npu, gpu = said
    assert weights == pytest.approx(plan["weights"], abs=0.0501)
    assert in_flight == pytest.approx(plan["in flight"], abs=0.0501)
    assert gpu == pytest.approx(plan["GPU"], abs=0.0501)
    if mode == "npu":  # as in every other mode
        with_two_threads = refused_mib(hollow, tmp_path, mode, 2)[2]
        assert 2 * npu - with_two_threads == pytest.approx(plan["NPU"], abs=0.151 + STRUCTURES / 2**20)


def refused_mib(runner: Runner, folder: Path, mode: Mode, threads: int) -> list[float]:
    """Weights, videos in flight, the NPU's engine, the GPU's."""
    done = runner.run(folder / "out", mode, "--threads", threads, "--memory-mib", 1)
    assert (done.status, done.report["error"]["kind"]) == (1, "memory"), done.said
    found = re.search(
        r"weights ([\d.]+) MiB, videos in flight ([\d.]+) MiB, the NPU's engine ([\d.]+) MiB, the GPU's ([\d.]+) MiB",
        done.said,
    )
    assert found is not None, done.said
    return [float(text) for text in found.groups()]
