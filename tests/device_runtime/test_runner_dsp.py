"""`hvdc_runner --npu dsp`: streams whose NPU is behind a stand-in of FastRPC's library, in one process, in two, and in
one that an emulator executes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hvdc.pipeline.stream_file import StreamVideo
from tests import calibrations
from tests.commands import hvdc
from tests.device_runtime.hexagon import (
    NEWEST_CPU_OF_EVERY_EMULATOR,
    built_for_hexagon,
    emulated,
    rebuilt,
    why_no_hexagon,
)
from tests.device_runtime.rpc import STAND_IN
from tests.device_runtime.runs import Runner, is_running, stream_of, tokens, why_no_gpu
from tests.device_runtime.test_selftest import FAULTS

VIDEOS = (StreamVideo(0, 1), StreamVideo(1, 2))


@pytest.fixture(scope="module")
def runner(
    programs: dict[str, Path], watched_checkpoint: Path, calibration: Path, embeds: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Runner:  # fmt: skip
    folder = tmp_path_factory.mktemp("dsp")
    done = calibrations.run_compile(watched_checkpoint, folder / "a.hvdc", "--calibration", calibration, "-q")
    assert done.status == 0, done.err
    (folder / "kernels").mkdir()
    stream = stream_of(folder / "stream", folder / "a.hvdc", embeds, VIDEOS)
    return Runner(programs["hvdc_runner"], folder / "a.hvdc", stream, folder / "kernels")


@pytest.fixture(scope="module")
def dsp(programs: dict[str, Path]) -> tuple[object, ...]:
    return ("--npu", "dsp", "--fastrpc", programs["hvdc_dsp"].parent / STAND_IN)


USED_KIB = 1028
"""Of VTCM, by the largest product of the model of `tests.calibrations`."""


def processes_of(program: Path) -> list[int]:
    """Running processes of a program that no test waits for any more."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "exe").readlink() == program and is_running(int(entry.name)):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def videos(output: Path) -> list[bytes]:
    return [tokens(output, video).tobytes() for video in range(len(VIDEOS))]


@pytest.mark.parametrize("process", [False, True])
def test_videos_are_those_of_the_portable_engine(
    runner: Runner, dsp: tuple[object, ...], tmp_path: Path, process: bool
) -> None:
    """The DSP reads the one copy of the weights, and works where the CPU's hidden state is: only the table of
    modulation, which is in no shared memory, is copied."""
    runner.finished(tmp_path / "portable", "npu", "--npu", "portable")
    env = {"HVDC_STAND_IN_DSP": str(runner.program.with_name("hvdc_dsp"))} if process else {}
    done = runner.run(tmp_path / "dsp", "npu", *dsp, env=env)
    assert done.status == 0, done.said
    assert videos(tmp_path / "dsp") == videos(tmp_path / "portable")
    tables = sum(path.stat().st_size for path in (runner.artifact / "schedule").iterdir())
    report = done.report
    assert (report["npu_hidden_copied"], report["npu_weights_copied_bytes"]) == (0, tables)
    assert report["npu"] == f"a stand-in, 1 vector contexts, {USED_KIB} of 8192 KiB of VTCM"
    assert "stand-in:" not in done.said, "mappings were left"


@pytest.mark.parametrize(("others_kib", "held_kib"), [(0, USED_KIB), (8192 - USED_KIB, USED_KIB), (8160, 32)])
def test_the_vtcm_is_taken_that_is_free_of_what_is_used(
    runner: Runner, dsp: tuple[object, ...], tmp_path: Path, others_kib: int, held_kib: int
) -> None:
    done = runner.run(tmp_path / "out", "npu", *dsp, env={"HVDC_STAND_IN_FAULT": f"vtcm:{others_kib}"})
    assert done.status == 0, done.said
    assert done.report["npu"].endswith(f"{held_kib} of 8192 KiB of VTCM")


def test_too_little_free_vtcm_is_said(runner: Runner, dsp: tuple[object, ...], tmp_path: Path) -> None:
    """28 KiB are the least that the unit works with; so much as was given, or nothing."""
    for others_kib, given, words in (
        (8165, (), "28672 bytes of VTCM are wanted and 27648 are free"),
        (8100, ("--vtcm-kib", 128), "131072 bytes of VTCM are wanted and 94208 are free"),
    ):
        env = {"HVDC_STAND_IN_FAULT": f"vtcm:{others_kib}"}
        done = runner.run(tmp_path / "out", "npu", *dsp, *given, env=env)
        assert done.status == 5
        assert words in done.said
    done = runner.finished(tmp_path / "out", "npu", *dsp, "--vtcm-kib", 128)
    assert done.report["npu"].endswith("128 of 8192 KiB of VTCM")


@pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")
def test_both_engines_share_a_stream(runner: Runner, dsp: tuple[object, ...], tmp_path: Path) -> None:
    """The GPU's process writes the hidden state, and the DSP goes on with it in place."""
    for name, place in (("portable", ("--npu", "portable")), ("dsp", dsp)):
        runner.finished(tmp_path / name, "hetero", "--cut", 5, *place)
    assert videos(tmp_path / "dsp") == videos(tmp_path / "portable")


@pytest.fixture(scope="module")
def short(
    programs: dict[str, Path], watched_checkpoint: Path, embeds: Path, tmp_path_factory: pytest.TempPathFactory
) -> Runner:
    """One step of each expert, for an emulator."""
    if reason := why_no_hexagon():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("short")
    done = hvdc("compile", watched_checkpoint, "-o", folder / "a.hvdc", *calibrations.SHORT, "-q")
    assert done.status == 0, done.err
    stream = stream_of(folder / "s", folder / "a.hvdc", embeds, VIDEOS[:1])
    return Runner(programs["hvdc_runner"], folder / "a.hvdc", stream, folder)


@pytest.fixture(scope="module")
def hexagon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_for_hexagon(tmp_path_factory)


def test_a_video_on_an_emulated_dsp(short: Runner, hexagon: Path, dsp: tuple[object, ...], tmp_path: Path) -> None:
    """Every block of it is Hexagon code's. Before it, the DSP's units are tested."""
    command = " ".join(emulated(hexagon, "v79", "hvdc_dsp"))
    short.finished(tmp_path / "portable", "npu", "--npu", "portable")
    done = short.run(tmp_path / "dsp", "npu", *dsp, env={"HVDC_STAND_IN_DSP": command})
    assert done.status == 0, done.said
    assert done.report["npu"].startswith("Hexagon v79, ")
    assert done.report["npu_checks_failed"] == 0
    assert tokens(tmp_path / "dsp", 0).tobytes() == tokens(tmp_path / "portable", 0).tobytes()


def faulty(hexagon: Path, folder: Path, fault: str) -> dict[str, str]:
    """The environment of a DSP with a fault."""
    folder.mkdir()
    program = rebuilt(hexagon, "hvdc_dsp", "v79", folder, FAULTS[fault][0])
    return {"HVDC_STAND_IN_DSP": f"qemu-hexagon -cpu {NEWEST_CPU_OF_EVERY_EMULATOR} {program}"}


def test_units_whose_results_are_of_no_worth_are_not_used(
    short: Runner, hexagon: Path, dsp: tuple[object, ...], tmp_path: Path
) -> None:
    env = faulty(hexagon, tmp_path / "faulty", "narrowing interleaves its two inputs")
    done = short.run(tmp_path / "out", "npu", *dsp, env=env)
    assert done.status == 5
    assert "1 checks of the NPU's self-test failed after which none of its results is of any worth" in done.said
    assert "stand-in:" not in done.said, "mappings were left"
    notes = [event["text"] for event in done.events if event["event"] == "note"]
    assert any("vector: order of narrowing failed: place" in note for note in notes), notes
    assert list((tmp_path / "out").iterdir()) == []


def test_units_that_differ_in_last_bits_are_named_and_used(
    short: Runner, hexagon: Path, dsp: tuple[object, ...], tmp_path: Path
) -> None:
    env = faulty(hexagon, tmp_path / "faulty", "sums flush subnormal numbers")
    done = short.run(tmp_path / "out", "npu", *dsp, env=env)
    assert done.status == 0, done.said
    notes = [event["text"] for event in done.events if event["event"] == "note"]
    named = [note for note in notes if note.startswith("the NPU's self-test: ")]
    assert len(named) == done.report["npu_checks_failed"] > 0
    assert any("vector: sums of subnormal numbers failed: 0x" in note for note in named)


@pytest.mark.parametrize(("check", "third"), [("yes", "selftest"), ("no", "map")])
def test_the_test_can_be_left_out(
    short: Runner, hexagon: Path, dsp: tuple[object, ...], tmp_path: Path, check: str, third: str
) -> None:
    """A DSP that dies in the third call of the session, after hello and power, shows which that is."""
    env = {"HVDC_STAND_IN_DSP": " ".join(emulated(hexagon, "v79", "hvdc_dsp")), "HVDC_STAND_IN_FAULT": "lost:3"}
    done = short.run(tmp_path / "out", "npu", *dsp, "--npu-check", check, env=env)
    assert done.status == 5
    assert f"the DSP does not answer to {third}: " in done.said


def test_without_a_dsp_it_is_said(runner: Runner, tmp_path: Path) -> None:
    done = runner.run(tmp_path / "out", "npu", "--npu", "dsp")
    assert done.status == 5
    assert "FastRPC's library libcdsprpc.so cannot be loaded" in done.said
    assert done.report["error"]["kind"] == "device"


def test_a_dsp_that_dies_ends_the_stream_and_what_was_finished_is_kept(
    runner: Runner, dsp: tuple[object, ...], tmp_path: Path
) -> None:
    done = runner.run(tmp_path / "out", "npu", *dsp, env={"HVDC_STAND_IN_FAULT": "lost:30"})
    assert done.status == 5
    assert "its process died, or the DSP restarted" in done.said
    assert "stand-in:" not in done.said, "mappings were left"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["video-000000.safetensors"]
    again = runner.finished(tmp_path / "out", "npu", *dsp, "--resume")
    assert (again.report["finished"], again.report["skipped"]) == (1, 1)


HANGS = 6
"""Exit status of `hvdc_runner`."""


def test_a_dsp_that_hangs_ends_the_process(runner: Runner, dsp: tuple[object, ...], tmp_path: Path) -> None:
    """In the second video: a video has twelve blocks."""
    more = (*dsp, "--npu-silence-s", 1.5)
    done = runner.run(tmp_path / "out", "npu", *more, env={"HVDC_STAND_IN_FAULT": "hangs:20"})
    assert done.status == HANGS, done.said
    assert "has not returned within 1.5 s in video 1; finished videos are kept" in done.report["error"]["what"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["video-000000.safetensors"]


@pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")
@pytest.mark.parametrize(
    "fault",
    ["hangs:1", "hangs:2", "hangs:4", "hangs-unmap"],
    ids=["first touch", "first touch of the other expert", "timed", "memory is given back"],
)
def test_a_dsp_that_hangs_while_blocks_are_timed_ends_the_process(
    runner: Runner, dsp: tuple[object, ...], fault: str, tmp_path: Path
) -> None:
    """Without a cut or rates the blocks of both engines are timed. The process that times the GPU ends, too."""
    more = (*dsp, "--npu-silence-s", 1.5)
    program = tmp_path / "hvdc_runner"  # a name of its own, by which its processes are found
    shutil.copy2(runner.program, program)
    own = Runner(program, runner.artifact, runner.stream, runner.kernels)
    done = own.run(tmp_path / "out", "hetero", *more, env={"HVDC_STAND_IN_FAULT": fault})
    assert done.status == HANGS, done.said
    assert done.report["error"]["kind"] == "device"
    assert "a call of the NPU's engine has not returned within 1.5 s" in done.report["error"]["what"]
    assert list((tmp_path / "out").iterdir()) == []
    assert processes_of(program) == []


@pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")
def test_timed_blocks_that_return_are_no_silence(runner: Runner, dsp: tuple[object, ...], tmp_path: Path) -> None:
    done = runner.finished(tmp_path / "out", "hetero", *dsp, "--npu-silence-s", 60)
    assert done.report["cut_source"] == "measured"
    assert "stand-in:" not in done.said, "mappings were left"


@pytest.mark.parametrize(
    ("mode", "options", "words"),
    [
        ("hetero-tensor", ("--npu", "dsp"), "needs --npu portable"),
        ("npu", ("--fastrpc", "x"), "--fastrpc has no effect without --npu dsp"),
        ("npu", ("--npu-check", "no"), "--npu-check has no effect without --npu dsp"),
        ("npu", ("--npu", "dsp", "--npu-check", "maybe"), "--npu-check does not take maybe"),
        ("npu", ("--npu", "phone"), "--npu does not take phone"),
        ("npu", ("--npu", "dsp", "--vtcm-kib", 4194304), "more than any DSP has"),
    ],
)
def test_what_does_not_go_together(
    runner: Runner, tmp_path: Path, mode: str, options: tuple[object, ...], words: str
) -> None:
    done = runner.run(tmp_path / "out", mode, *options)
    assert (done.status, words in done.said) == (2, True), done.said
