"""`hvdc_runner` on a tiny artifact: every mode and cut, what is refused, and how it stops. Built with sanitizers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from exporters.prompts import read_prompts
from hvdc.artifact.reader import open_artifact
from hvdc.pipeline.stream_file import StreamVideo
from hvdc.plan.cut import Rates, best_cut
from tests import calibrations
from tests.device_runtime.runs import (
    Runner,
    children_of,
    is_running,
    outcome,
    shared_memory_of,
    stream_of,
    tokens,
    wait_for,
    why_no_gpu,
)
from tests.device_runtime.test_gpu_opencl import EXTENSIONS, compiled

EXECUTIONS, LAYERS = 12, 2
VIDEOS = (StreamVideo(0, 1), StreamVideo(1, 2), StreamVideo(1, 3))

needs_gpu = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")


@pytest.fixture(scope="module")
def artifact(watched_checkpoint: Path, calibration: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two blocks, six steps, eight tokens, with activation scales."""
    output = tmp_path_factory.mktemp("calibrated") / "small.hvdc"
    done = calibrations.run_compile(watched_checkpoint, output, "--calibration", calibration, "-q")
    assert done.status == 0, done.err
    return output


@pytest.fixture(scope="module")
def uncalibrated(watched_checkpoint: Path, artifact: Path) -> Path:
    output = artifact.with_name("uncalibrated.hvdc")
    done = calibrations.run_compile(watched_checkpoint, output, "-q")
    assert done.status == 0, done.err
    return output


@pytest.fixture(scope="module")
def runner(programs: dict[str, Path], artifact: Path, embeds: Path, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "kernels").mkdir()
    stream = stream_of(folder / "stream", artifact, embeds, VIDEOS)
    return Runner(programs["hvdc_runner"], artifact, stream, folder / "kernels")


@pytest.fixture(scope="module")
def long(runner: Runner, embeds: Path) -> Runner:
    """A stream that takes seconds, so that it can be stopped in the middle."""
    videos = [StreamVideo(i % 3, i) for i in range(400)]
    stream = stream_of(runner.stream.with_name("long"), runner.artifact, embeds, videos)
    return Runner(runner.program, runner.artifact, stream, runner.kernels)


@pytest.fixture(scope="module")
def some(runner: Runner, embeds: Path) -> Runner:
    """One that is stopped in the middle and then goes on."""
    videos = [StreamVideo(i % 3, i) for i in range(60)]
    stream = stream_of(runner.stream.with_name("some"), runner.artifact, embeds, videos)
    return Runner(runner.program, runner.artifact, stream, runner.kernels)


@pytest.fixture(scope="module")
def on_npu(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("npu") / "out"
    runner.finished(output, "npu")
    return output


@pytest.fixture(scope="module")
def on_gpu(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("gpu") / "out"
    runner.finished(output, "gpu")
    return output


def assert_equal(one: Path, other: Path, videos: range | tuple[int, ...] = range(len(VIDEOS))) -> None:
    for video in videos:
        np.testing.assert_array_equal(tokens(one, video), tokens(other, video))


# --- modes ---------------------------------------------------------------------------------------------------------


def test_mode_npu_starts_no_other_process(runner: Runner, on_npu: Path, tmp_path: Path) -> None:
    done = runner.finished(tmp_path / "out", "npu", "--trace", tmp_path / "trace.json")
    assert [v["gpu_blocks"] for v in done.report["videos"]] == [0, 0, 0]
    assert (done.report["gpu_engine_bytes"], done.report["cut_source"]) == (0, "none")
    assert not any(event["event"] == "gpu" for event in done.events)
    assert_equal(tmp_path / "out", on_npu)


def test_different_videos_are_different(on_npu: Path) -> None:
    first, second, third = (tokens(on_npu, video) for video in range(3))
    assert np.abs(first - second).max() > 0.1
    assert np.abs(second - third).max() > 0.1


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
def test_a_cut_at_the_start_is_mode_npu_and_one_at_the_end_mode_gpu(
    runner: Runner, on_npu: Path, on_gpu: Path, tmp_path: Path
) -> None:
    runner.finished(tmp_path / "0", "hetero", "--cut", 0)
    runner.finished(tmp_path / "end", "hetero", "--cut", EXECUTIONS)
    assert_equal(tmp_path / "0", on_npu)
    assert_equal(tmp_path / "end", on_gpu)
    assert np.abs(tokens(on_npu, 0) - tokens(on_gpu, 0)).max() > 0


@needs_gpu
@pytest.mark.parametrize("cut", [1, 2, 5, 6, 11])
def test_a_cut_anywhere(runner: Runner, cut: int, on_npu: Path, on_gpu: Path, tmp_path: Path) -> None:
    """Odd ones are inside a step; 6 is where the experts change."""
    done = runner.finished(tmp_path / "out", "hetero", "--cut", cut)
    assert [v["gpu_blocks"] for v in done.report["videos"]] == [cut] * 3
    assert [(e["video"], e["position"]) for e in done.events if e["event"] == "handoff"] == [(v, cut) for v in range(3)]
    for video in range(3):
        found = tokens(tmp_path / "out", video)
        assert np.isfinite(found).all()
        assert (found != tokens(on_npu, video)).any()
        assert (found != tokens(on_gpu, video)).any()


@needs_gpu
def test_mode_dp_gives_each_video_to_one_engine(runner: Runner, on_npu: Path, on_gpu: Path, tmp_path: Path) -> None:
    done = runner.finished(tmp_path / "out", "dp")
    for video, held in enumerate(done.report["videos"]):
        assert held["gpu_blocks"] in (0, EXECUTIONS)
        assert_equal(tmp_path / "out", on_gpu if held["gpu_blocks"] else on_npu, (video,))


@needs_gpu
def test_the_cut_follows_from_rates_as_python_places_it(runner: Runner, tmp_path: Path) -> None:
    for i, rates in enumerate((Rates(0.3, 0.2, 0.4), Rates(0.01, 5.0, 0.0), Rates(7.0, 0.5, 0.1))):
        given = ("--gpu-block-s", rates.gpu_block_s, "--npu-block-s", rates.npu_block_s, "--decode-s", rates.decode_s)
        done = runner.finished(tmp_path / str(i), "hetero", *given)
        assert done.report["cut"] == best_cut(rates, EXECUTIONS)
        assert done.report["cut_source"] == "rates"
        [event] = [event for event in done.events if event["event"] == "cut"]
        assert event["cut"] == done.report["cut"]


@needs_gpu
def test_without_rates_both_engines_are_timed(runner: Runner, tmp_path: Path) -> None:
    done = runner.finished(tmp_path / "out", "hetero", "--cut", "auto")
    assert done.report["cut_source"] == "measured"
    rates = Rates(**done.report["rates"])
    assert min(rates.gpu_block_s, rates.npu_block_s) > 0
    assert done.report["cut"] == best_cut(rates, EXECUTIONS)
    assert any("are timed, while both work" in event.get("text", "") for event in done.events)


@needs_gpu
def test_a_trace_shows_both_engines(runner: Runner, tmp_path: Path) -> None:
    runner.finished(tmp_path / "out", "hetero", "--cut", 6, "--trace", tmp_path / "trace.json")
    text = (tmp_path / "trace.json").read_text()
    held = json.loads(text)
    spans = [event for event in (held if isinstance(held, list) else held["traceEvents"]) if event.get("ph") == "X"]
    assert len({event["tid"] for event in spans}) >= 4
    assert all(event["dur"] >= 0 for event in spans)


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
    compiled(Path(__file__).with_name("opencl_stand_in.c"), library, "-shared", "-fPIC")
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


@pytest.mark.parametrize("mode", ["npu", pytest.param("gpu", marks=needs_gpu)])
def test_keys_and_values_of_a_prompt_are_computed_once(runner: Runner, embeds: Path, mode: str, tmp_path: Path) -> None:
    """By each expert, while videos with that prompt follow each other; and they are right."""
    prompts = [1, 1, 0, 0, 1]
    videos = [StreamVideo(prompt, seed) for seed, prompt in enumerate(prompts)]
    stream = stream_of(tmp_path / "stream", runner.artifact, embeds, videos)
    other = Runner(runner.program, runner.artifact, stream, runner.kernels)
    other.finished(tmp_path / "out", mode, "--trace", tmp_path / "trace.json")
    spans = [event for event in json.loads((tmp_path / "trace.json").read_text()) if event.get("ph") == "X"]
    for name in ("project text", "set text"):
        assert [span["args"]["video"] for span in spans if span["name"] == name] == [0, 0, 2, 2, 4, 4]
    for video, prompt in enumerate(prompts):
        alone = tmp_path / str(video)
        stream = stream_of(tmp_path / f"stream-{video}", runner.artifact, embeds, [StreamVideo(prompt, video)])
        Runner(runner.program, runner.artifact, stream, runner.kernels).finished(alone, mode)
        np.testing.assert_array_equal(tokens(tmp_path / "out", video), tokens(alone, 0))


def test_progress_counts_every_block(runner: Runner, tmp_path: Path) -> None:
    done = runner.finished(tmp_path / "out", "npu")
    for video in range(3):
        positions = [e["position"] for e in done.events if e["event"] == "blocks" and e["video"] == video]
        assert positions == list(range(1, EXECUTIONS + 1))
    records = [e["record"] for e in done.events if e["event"] == "finished"]
    assert records == done.report["videos"]


def test_a_person_gets_lines(runner: Runner, tmp_path: Path) -> None:
    command = [str(runner.program), str(runner.artifact), str(runner.stream), "-o", str(tmp_path / "out"), "--mode"]
    done = subprocess.run([*command, "npu"], capture_output=True, text=True, check=True)
    assert "video 2: finished after" in done.stderr
    assert "3 finished, 0 were there, of 3 videos" in done.stdout
    quiet = subprocess.run([*command, "npu", "-q", "--resume"], capture_output=True, text=True, check=True)
    assert quiet.stderr == ""
    assert "0 finished, 3 were there, of 3 videos" in quiet.stdout


# --- processors ----------------------------------------------------------------------------------------------------


def allowed(pid: int) -> str:
    found = re.search(r"^Cpus_allowed_list:\t(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


@needs_gpu
def test_each_process_keeps_to_its_processors(long: Runner, tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    npu, gpu = mine[0], mine[-1]
    given = ("--npu-cpus", npu, "--gpu-cpus", gpu, "--cut", 6)
    with long.started(tmp_path / "out", "hetero", *given) as child:
        wait_for(child, "handoff")
        assert allowed(child.pid) == str(npu)
        [worker] = children_of(child.pid)
        assert allowed(worker) == str(gpu)


@needs_gpu
def test_pinning_one_engine_leaves_the_other_alone(long: Runner, tmp_path: Path) -> None:
    before, first = allowed(os.getpid()), min(os.sched_getaffinity(0))
    with long.started(tmp_path / "out", "hetero", "--npu-cpus", first, "--cut", 6) as child:
        wait_for(child, "handoff")
        [worker] = children_of(child.pid)
        assert allowed(worker) == before


# --- what is refused -----------------------------------------------------------------------------------------------


def refused(runner: Runner, output: Path, mode: str, *more: object, status: int, words: str) -> None:
    done = runner.run(output, mode, *more)
    assert done.status == status, done.said
    assert words in done.report["error"]["what"]
    assert words in done.said
    assert not output.exists() or list(output.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "more", "words"),
    [
        ("fast", (), "--mode does not take fast"),
        ("npu", ("--cut", 3), "have no effect in mode npu"),
        ("dp", ("--gpu-block-s", 1, "--npu-block-s", 1), "have no effect in mode dp"),
        ("hetero", ("--cut", "many"), "--cut does not take many"),
        ("hetero", ("--cut", -1), "--cut does not take -1"),
        ("hetero", ("--cut", EXECUTIONS + 1), "is beyond the 12 blocks of a video"),
        ("hetero", ("--gpu-block-s", 1), "rates belong together"),
        ("hetero", ("--gpu-block-s", 0, "--npu-block-s", 1), "do not place a cut"),
        ("hetero", ("--gpu-block-s", "nan", "--npu-block-s", 1), "--gpu-block-s does not take nan"),
        ("hetero", ("--cut", 1, "--decode-s", 1), "rates have no effect beside a given --cut"),
        ("npu", ("--threads", 2**33), "--threads does not take"),
        ("npu", ("--threads",), "--threads needs a value"),
        ("npu", ("--fast",), "there is no option --fast"),
        ("npu", ("more",), "more is one argument too many"),
        ("npu", ("--npu-cpus", "0-"), "0- is no list of processors"),
        ("npu", ("--npu-cpus", "5000"), "5000 is no list of processors"),
        ("npu", ("--npu-cpus", "0-1023"), "can be used"),
        ("gpu", ("--gpu-cpus", "0-1023"), "can be used"),
        ("gpu", ("--gpu-import", "magic"), "--gpu-import does not take magic"),
        ("gpu", ("--gpu-cpus", "0,"), "0, is no list of processors"),
        ("npu", ("--npu-cpus", ""), "--npu-cpus does not take an empty value"),
        ("gpu", ("--device", ""), "--device does not take an empty value"),
        ("gpu", ("--gpu-silence-s", 0), "--gpu-silence-s does not take 0"),
        ("npu", ("--with-parent", 1), "did not start this one"),
    ],
)
def test_options_that_cannot_be_carried_out(
    runner: Runner, mode: str, more: tuple[object, ...], words: str, tmp_path: Path
) -> None:
    done = runner.run(tmp_path / "out", mode, *more)
    assert done.status == 2, done.said
    assert words in done.said
    assert done.report["error"]["kind"] == "usage"
    assert words in done.report["error"]["what"]
    assert not any("weights" in event.get("text", "") for event in done.events)
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("given", "cpus", "words"), [("small.hvdc", "5000", "5000 is no list"), ("nowhere", "0", "nowhere cannot be used")]
)
def test_a_worker_that_cannot_start_tells_its_owner(runner: Runner, given: str, cpus: str, words: str) -> None:
    """Before it hears anything; this test is the owner."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = "import os, sys; os.dup2(int(sys.argv[1]), 3, inheritable=True); os.execv(sys.argv[2], sys.argv[2:])"
    worker = [str(runner.program), "--worker", str(runner.artifact.with_name(given)), "--gpu-cpus", cpus]
    with mine, its:
        command = [sys.executable, "-c", code, str(its.fileno()), *worker]
        done = subprocess.run(command, pass_fds=[its.fileno()], check=False)
        assert done.returncode == 1
        assert words.encode() in mine.recv(4096)


def test_what_is_missing_is_named(runner: Runner) -> None:
    def said(*arguments: object) -> str:
        done = subprocess.run([str(runner.program), *map(str, arguments)], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        return done.stderr

    assert "ARTIFACT is missing" in said()
    assert "STREAM is missing" in said(runner.artifact)
    assert "-o OUT is missing" in said(runner.artifact, runner.stream)
    assert "--mode is missing" in said(runner.artifact, runner.stream, "-o", "out")


def test_help_names_every_option(runner: Runner) -> None:
    done = subprocess.run([str(runner.program), "--help"], capture_output=True, text=True, check=True)
    source = (Path(__file__).parents[2] / "device_runtime" / "runner" / "src" / "options.c").read_text()
    options = set(re.findall(r'^    \{"(-[a-z-]+)",', source, re.MULTILINE)) - {"--help", "-h", "--worker", "--timer"}
    assert len(options) > 15
    assert [option for option in options if not re.search(rf"(?<![\w-]){option}\b", done.stdout)] == []
    assert "Exit statuses:" in done.stdout


def test_a_stream_of_another_artifact(runner: Runner, uncalibrated: Path, tmp_path: Path) -> None:
    other = Runner(runner.program, uncalibrated, runner.stream, runner.kernels)
    refused(other, tmp_path / "out", "npu", status=2, words="was written for another artifact")


@pytest.mark.parametrize("mode", ["gpu", "hetero", "dp", "hetero-tensor"])
def test_an_artifact_without_activation_scales(
    runner: Runner, uncalibrated: Path, embeds: Path, mode: str, tmp_path: Path
) -> None:
    stream = stream_of(tmp_path / "stream", uncalibrated, embeds, VIDEOS)
    other = Runner(runner.program, uncalibrated, stream, runner.kernels)
    refused(other, tmp_path / "out", mode, status=2, words="has no activation scales")
    assert other.finished(tmp_path / "npu", "npu").report["finished"] == 3


def test_a_damaged_artifact_and_none(runner: Runner, tmp_path: Path) -> None:
    damaged = shutil.copytree(runner.artifact, tmp_path / "damaged.hvdc")
    region = damaged / "regions" / "block-000.bin"
    data = bytearray(region.read_bytes())
    data[1000] ^= 1
    region.write_bytes(data)
    other = Runner(runner.program, damaged, runner.stream, runner.kernels)
    refused(other, tmp_path / "out", "npu", status=4, words="block-000.bin")
    nowhere = Runner(runner.program, tmp_path / "nowhere", runner.stream, runner.kernels)
    refused(nowhere, tmp_path / "out", "npu", status=4, words="nowhere")


def test_no_stream(runner: Runner, tmp_path: Path) -> None:
    other = Runner(runner.program, runner.artifact, tmp_path, runner.kernels)
    refused(other, tmp_path / "out", "npu", status=1, words="stream.bin cannot be opened")


@pytest.mark.parametrize("mode", ["gpu", "hetero", "hetero-tensor"])
def test_no_opencl_device(runner: Runner, mode: str, tmp_path: Path) -> None:
    """`hetero` without a cut and `hetero-tensor` without a share ask the timer's process, `gpu` the worker's."""
    refused(runner, tmp_path / "out", mode, "--device", "no such device", status=5, words="no such device")


def test_an_output_that_cannot_be_made(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = runner.run(tmp_path / "file" / "out", "npu")
    assert (done.status, "cannot be made" in done.said) == (1, True)


def test_results_that_are_whole_are_kept(runner: Runner, on_npu: Path, tmp_path: Path) -> None:
    runner.finished(tmp_path / "out", "npu")
    first, path = (tmp_path / "out" / f"video-{video:06d}.safetensors" for video in range(2))
    before = first.stat().st_mtime_ns
    done = runner.run(tmp_path / "out", "npu")
    assert (done.status, "is there already" in done.said) == (1, True)
    done = runner.finished(tmp_path / "out", "npu", "--resume")
    assert (done.report["finished"], done.report["skipped"]) == (0, 3)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    done = runner.finished(tmp_path / "out", "npu", "--resume")
    assert (done.report["finished"], done.report["skipped"]) == (1, 2)
    assert_equal(tmp_path / "out", on_npu)
    assert first.stat().st_mtime_ns == before


# --- stopping ------------------------------------------------------------------------------------------------------


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.01)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("on_stop", ["finish", "abandon"])
def test_a_signal_keeps_what_is_finished(long: Runner, how: int, on_stop: str, tmp_path: Path) -> None:
    with long.started(tmp_path / "out", "npu", "--on-stop", on_stop) as child:
        wait_for(child, "finished")
        child.send_signal(how)
        out, err = child.communicate(timeout=60)
    done = outcome(child.returncode, out, err)
    assert done.status == 130
    assert done.report["stopped"]
    assert 0 < done.report["finished"] < 400
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [f"video-{video:06d}.safetensors" for video in range(done.report["finished"])]


@needs_gpu
def test_a_stopped_stream_goes_on_as_if_nothing_had_happened(some: Runner, tmp_path: Path) -> None:
    with some.started(tmp_path / "out", "hetero", "--cut", 5, "--on-stop", "abandon") as child:
        wait_for(child, "finished")
        [worker] = children_of(child.pid)
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=60)
    wait_until_gone(worker)
    stopped = outcome(child.returncode, out, err)
    assert (stopped.status, stopped.report["stopped"]) == (130, True)
    rest = some.finished(tmp_path / "out", "hetero", "--cut", 5, "--resume")
    assert rest.report["finished"] + rest.report["skipped"] == 60
    some.finished(tmp_path / "whole", "hetero", "--cut", 5)
    assert_equal(tmp_path / "out", tmp_path / "whole", tuple(range(60)))


@needs_gpu
def test_a_signal_while_engines_are_timed(runner: Runner, tmp_path: Path) -> None:
    """Nothing has begun, so that there is nothing to finish."""
    with runner.started(tmp_path / "out", "hetero", "--kernel-cache", tmp_path) as child:
        wait_for(child, "note")
        wait_for(child, "note")
        deadline = time.monotonic() + 30
        while not (timers := children_of(child.pid)) and time.monotonic() < deadline:
            time.sleep(0.001)
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=60)
    wait_until_gone(timers[0])
    done = outcome(child.returncode, out, err)
    assert done.status == 130
    assert "stopped while the engines were timed" in done.said
    assert list((tmp_path / "out").iterdir()) == []


@needs_gpu
def test_a_killed_owner_takes_its_worker_with_it(long: Runner, tmp_path: Path) -> None:
    with long.started(tmp_path / "out", "hetero", "--cut", 6) as child:
        wait_for(child, "finished")
        [worker] = children_of(child.pid)
        child.kill()
        wait_until_gone(worker)


@needs_gpu
@pytest.mark.parametrize("loss", ["go-on", "stop"])
def test_a_killed_gpu_process(some: Runner, loss: str, tmp_path: Path) -> None:
    with some.started(tmp_path / "out", "hetero", "--cut", 6, "--on-gpu-loss", loss) as child:
        wait_for(child, "finished")
        [worker] = children_of(child.pid)
        os.kill(worker, signal.SIGKILL)
        out, err = child.communicate(timeout=100)
    done = outcome(child.returncode, out, err)
    if loss == "stop":
        assert done.status == 1
        assert "killed by signal 9" in done.said
        return
    assert done.status == 0, done.said
    assert done.report["gpu_lost"]
    assert done.report["finished"] == 60
    assert {v["gpu_blocks"] for v in done.report["videos"]} >= {0, 6}


SILENCE_S = 4


@needs_gpu
@pytest.mark.parametrize(
    ("mode", "more", "event"),
    [
        ("hetero", ("--cut", 6), "finished"),
        ("gpu", ("--on-gpu-loss", "stop"), "finished"),
        ("dp", ("--on-gpu-loss", "stop"), "finished"),
        ("hetero-tensor", ("--gpu-share", 0.5, "--on-gpu-loss", "stop"), "blocks"),
    ],
)
@pytest.mark.usefixtures("on_gpu")  # kernels are compiled
def test_a_gpu_process_that_hangs(
    some: Runner, mode: str, more: tuple[object, ...], event: str, tmp_path: Path
) -> None:
    with some.started(tmp_path / "out", mode, "--gpu-silence-s", SILENCE_S, *more) as child:
        wait_for(child, event)
        [worker] = children_of(child.pid)
        os.kill(worker, signal.SIGSTOP)
        out, err = child.communicate(timeout=100)
    wait_until_gone(worker)
    done = outcome(child.returncode, out, err)
    assert f"silent for {SILENCE_S}.0 s" in (done.said if "stop" in more else done.report["note"])
    if "stop" in more:
        assert done.status == 1
    else:
        assert (done.status, done.report["gpu_lost"], done.report["finished"]) == (0, True, 60)


@needs_gpu
def test_a_gpu_process_that_hangs_while_it_is_timed(runner: Runner, tmp_path: Path) -> None:
    """In its first moments: it has twice as long to open its device."""
    with runner.started(tmp_path / "out", "hetero", "--gpu-silence-s", 6) as child:
        deadline = time.monotonic() + 60
        while not (timers := children_of(child.pid)) and time.monotonic() < deadline:
            time.sleep(0.001)
        while b"--timer" not in Path(f"/proc/{timers[0]}/cmdline").read_bytes():  # a copy of its owner so far
            time.sleep(0.001)
        os.kill(timers[0], signal.SIGSTOP)
        out, err = child.communicate(timeout=100)
    wait_until_gone(timers[0])
    done = outcome(child.returncode, out, err)
    assert done.status == 5
    assert "has executed no block within 12.0 s" in done.report["error"]["what"]
    assert any("opens its device and compiles kernels for" in event.get("text", "") for event in done.events)


def test_it_ends_with_the_process_that_started_it(long: Runner, tmp_path: Path) -> None:
    """As `hvdc run` starts it: killed, it leaves nothing behind."""
    code = (
        "import os, subprocess, sys\n"
        "command = [*sys.argv[1:], '--with-parent', str(os.getpid())]\n"
        "child = subprocess.Popen(command, stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    output = tmp_path / "out"
    command = [sys.executable, "-c", code, *long.command(output, "npu")]
    with (
        (tmp_path / "said").open("w") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as parent,
    ):
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        deadline = time.monotonic() + 60
        while not list(output.glob("video-*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        parent.kill()
        wait_until_gone(pid)
    assert 0 < len(list(output.iterdir())) < 400


def test_inputs_are_those_of_the_stream(runner: Runner, on_npu: Path, embeds: Path, tmp_path: Path) -> None:
    """Another seed, and another prompt, change their video and no other."""
    changed = (StreamVideo(0, 1), StreamVideo(2, 2), StreamVideo(1, 4))
    stream = stream_of(tmp_path / "stream", runner.artifact, embeds, changed)
    other = Runner(runner.program, runner.artifact, stream, runner.kernels)
    other.finished(tmp_path / "out", "npu")
    assert_equal(tmp_path / "out", on_npu, (0,))
    for video in (1, 2):
        assert (tokens(tmp_path / "out", video) != tokens(on_npu, video)).any()
    with open_artifact(runner.artifact) as opened, read_prompts(embeds) as prompts:
        assert opened.manifest.video.tokens == len(tokens(on_npu, 0))
        assert len(prompts) == 3
