"""What `hvdc_runner` takes in memory: forecast to the byte, weights once for both engines, and how a GPU gets them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.device_runtime.runner.small import VIDEOS, assert_equal, needs_gpu
from tests.device_runtime.runs import (
    Runner,
    children_of,
    shared_memory_of,
    stream_of,
    wait_for,
)
from tests.device_runtime.test_gpu_opencl import EXTENSIONS, compiled


def test_memory_is_forecast_before_weights_are_read(runner: Runner, tmp_path: Path) -> None:
    """To the byte, for any number of threads and kind of sums; and what is too much is refused part by part."""
    for threads, sums in ((1, "fast"), (1, "exact"), (3, "fast")):
        done = runner.finished(tmp_path / f"{threads} {sums}", "npu", "--threads", threads, "--npu-sums", sums)
        taken = ("weights_bytes", "slot_bytes", "npu_engine_bytes", "gpu_engine_bytes")
        assert done.report["forecast"] == {name: done.report[name] for name in taken} | {"decoder_bytes": 0}
    needed = sum(done.report["forecast"].values())
    assert needed > 1 << 20
    limit = (needed - 1) >> 20
    assert done.report["weights_bytes"] + done.report["slot_bytes"] < limit << 20, "only the engine is too much"
    refusal = runner.run(tmp_path / "out", "npu", "--threads", 3, "--memory-mib", limit)
    assert (refusal.status, refusal.report["error"]["kind"]) == (1, "memory")
    assert f"needs {needed / 2**20:.1f} MiB of memory and {limit}.0 MiB are allowed: weights " in refusal.said
    assert re.search(r"videos in flight \d+\.\d MiB, the NPU's engine \d+\.\d MiB, the GPU's 0\.0 MiB", refusal.said)
    assert not any("in shared memory" in event.get("text", "") for event in refusal.events)
    assert runner.finished(tmp_path / "out", "npu", "--threads", 3, "--memory-mib", limit + 1).report["finished"] == 3


@needs_gpu
@pytest.mark.parametrize(
    ("mode", "more"),
    [("gpu", ()), ("gpu", ("--gpu-import", "copy")), ("hetero", ("--cut", 5)), ("dp", ()),
     ("hetero-tensor", ("--gpu-share", 0.5))],
)  # fmt: skip
def test_memory_is_forecast_in_modes_with_the_gpu(
    runner: Runner, mode: str, more: tuple[object, ...], tmp_path: Path
) -> None:
    """A CPU's GEMM needs scratch beside, which only its device can tell; the NPU's engine may not need every text."""
    report = runner.finished(tmp_path / "out", mode, *more).report
    due = report["forecast"]
    assert (due["weights_bytes"], due["slot_bytes"]) == (report["weights_bytes"], report["slot_bytes"])
    assert 0 < due["gpu_engine_bytes"] <= report["gpu_engine_bytes"] < 3 * due["gpu_engine_bytes"]
    assert due["gpu_engine_bytes"] > report["gpu_weights_copied_bytes"]
    assert due["npu_engine_bytes"] >= report["npu_engine_bytes"] > 0
    if mode in ("hetero", "hetero-tensor"):
        assert due["npu_engine_bytes"] == report["npu_engine_bytes"]


WITHOUT_WORK: list[tuple[str, tuple[object, ...]]] = [
    ("hetero", ("--cut", 0)),
    ("hetero", ("--gpu-block-s", 1e6, "--npu-block-s", 1e-6)),
    ("hetero-tensor", ("--gpu-share", 0)),
]
"""Modes with a GPU to which a cut or a share gives nothing to do."""


@pytest.mark.parametrize(("mode", "more"), WITHOUT_WORK)
def test_a_gpu_without_work_is_neither_counted_nor_started(
    runner: Runner, uncalibrated: Path, embeds: Path, on_npu: Path, mode: str, more: tuple[object, ...], tmp_path: Path
) -> None:
    """No driver is there to be loaded, and no scale that a GPU would need; nor is anything said of a GPU."""
    stream = stream_of(tmp_path / "stream", uncalibrated, embeds, VIDEOS)
    nothing = Runner(runner.program, uncalibrated, stream, runner.kernels)
    env = {"OCL_ICD_VENDORS": str(tmp_path)}
    done = nothing.run(tmp_path / "out", mode, *more, env=env)
    assert done.status == 0, done.said
    assert (done.report["cut"], done.report["gpu_share"]) == (0, 0)
    assert done.report["forecast"]["gpu_engine_bytes"] == 0
    taken = ("weights_bytes", "slot_bytes", "npu_engine_bytes", "gpu_engine_bytes")
    assert done.report["forecast"] == {name: done.report[name] for name in taken} | {"decoder_bytes": 0}
    assert not any("GPU" in event.get("text", "") for event in done.events)
    assert_equal(tmp_path / "out", on_npu)
    due = sum(done.report["forecast"].values())
    enough = nothing.run(tmp_path / "enough", mode, *more, "--memory-mib", (due >> 20) + 1, env=env)
    assert enough.status == 0, enough.said


@needs_gpu
def test_weights_are_there_once(long: Runner, tmp_path: Path) -> None:
    """As the kernel counts: both processes map the same pages, which neither can write."""
    with long.started(tmp_path / "out", "hetero", "--cut", 6) as child:
        wait_for(child, "finished")
        [worker] = children_of(child.pid)
        held = [[m for m in shared_memory_of(pid) if not m.name.startswith("slot")] for pid in (child.pid, worker)]
    mine, theirs = ({m.name: m.inode for m in mapped} for mapped in held)
    assert set(mine) == {"regions/block-000.bin", "regions/block-001.bin", "adapters/detail-000.bin"}
    assert mine == theirs
    assert {m.permissions for mapped in held for m in mapped} == {"r--s"}
    stored_kib = sum((long.artifact / name).stat().st_size for name in mine) / 1024
    assert sum(m.share_kib for mapped in held for m in mapped) <= stored_kib
    assert sum(m.resident_kib for mapped in held for m in mapped) > 1.2 * stored_kib


@needs_gpu
def test_it_says_whether_the_gpu_reads_shared_weights_or_its_own(runner: Runner, on_gpu: Path, tmp_path: Path) -> None:
    def ran(output: Path, *more: object) -> tuple[tuple[str, bool, bool], str]:
        done = runner.finished(output, "gpu", *more)
        imported, copied = done.report["gpu_imported_bytes"], done.report["gpu_weights_copied_bytes"]
        assert max(imported, copied) < done.report["weights_bytes"]  # feed-forward pairs are staged, one at a time
        notes = [event["text"] for event in done.events if event["event"] == "note"]
        return (done.report["gpu_import"], imported > 0, copied > 0), "\n".join(notes)

    shared, notes = ran(tmp_path / "shared")
    assert shared == ("host-pointer", True, False)
    assert "once for both engines" in notes
    copied, notes = ran(tmp_path / "copied", "--gpu-import", "copy")
    assert copied == ("copy", False, True)
    assert "copied to the GPU: " in notes
    assert "once for both" not in notes
    assert_equal(tmp_path / "copied", on_gpu)


@pytest.mark.parametrize(("kind", "way"), [("khr", "khr-dma-buf"), ("dmabuf", "qcom-dmabuf"), ("arm", "arm-dma-buf")])
def test_the_worker_imports_weights_by_descriptor(runner: Runner, kind: str, way: str, tmp_path: Path) -> None:
    """Up to its GEMMs, which the recording OpenCL cannot execute: the probe, then each file whole and read-only."""
    library, log = tmp_path / "libOpenCL.so.1", tmp_path / "log"
    compiled(Path(__file__).parents[1] / "opencl_stand_in.c", library, "-shared", "-fPIC")
    env = {"LD_LIBRARY_PATH": str(tmp_path), "STAND_IN_LOG": str(log), "STAND_IN_EXTENSIONS": EXTENSIONS}
    for given in ((), ("--gpu-import", way)):
        log.unlink(missing_ok=True)
        done = runner.run(tmp_path / "out", "gpu", *given, env={**env, "STAND_IN_SHARES": kind})
        assert done.status == 5, done.said
        lines = [line.split(" ") for line in log.read_text().splitlines()]
        imports = [(int(flags) & 0xFF, int(size)) for name, flags, size, _ in lines if name == kind]
        files = [p for folder in ("regions", "adapters") for p in sorted((runner.artifact / folder).iterdir())]
        by_pointer = 8 if kind == "dmabuf" else 0
        assert imports[0] == (1 | by_pointer, 65536)
        assert imports[1:] == [(4 | by_pointer, p.stat().st_size) for p in files]
    done = runner.run(tmp_path / "out", "gpu", "--gpu-import", way, env={**env, "STAND_IN_SHARES": "host"})
    assert f"does not share memory as {way}" in done.report["error"]["what"]


def test_without_a_gpu_no_way_of_sharing_is_named(runner: Runner, tmp_path: Path) -> None:
    done = runner.finished(tmp_path / "out", "npu")
    assert (done.report["gpu_import"], done.report["gpu_imported_bytes"]) == ("", 0)
    assert "both engines" not in json.dumps(done.events)
