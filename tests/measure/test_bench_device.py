"""`hvdc bench --device` by the real adb, on a phone that a folder plays: what was deployed there is measured."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvdc.artifact.reader import open_artifact
from hvdc.deploy.in_use import guarded
from hvdc.measure.sampling import loop
from hvdc.plan.rates import load_rates
from hvdc.targets import load_target
from tests.adb_peer.faults import Faults
from tests.adb_peer.peer import Peer
from tests.commands import Result, hvdc
from tests.deploy.artifacts import PROGRAMS, script, with_runtime
from tests.device_runtime.qnn_stand_in import add_binaries
from tests.device_runtime.runs import why_no_gpu
from tests.measure.programs import events, report, series

TOKENS = 8
KEPT = "words"


def bench_program(answer: object, status: int = 0, said: tuple[str, ...] = tuple(events(2)), more: str = "") -> bytes:
    """A phone's `hvdc_bench` that answers so, and keeps what it was called with."""
    text = answer if isinstance(answer, str) else json.dumps(answer)
    lines = [f"printf '%s\\n' '{line}' >&2" for line in said]
    words = 'printf "%s\\n" "$@" >"$TMPDIR/words"'
    return script("\n".join([words, *lines, more, f"cat <<'END'\n{text}\nEND", f"exit {status}"]))


@pytest.fixture
def phone(plugged: Callable[..., Peer], artifact: Path) -> Callable[..., Peer]:
    """``phone(program, **facts)``: one on which the artifact is deployed with this `hvdc_bench`."""

    def make(program: bytes, **facts: Any) -> Peer:
        with_runtime(artifact, PROGRAMS | {"hvdc_bench": program})
        peer = plugged(**facts)
        done = hvdc("deploy", artifact, "--serial", peer.serial, "--no-run", "-q")
        assert done.status == 0, done.err
        sensor = peer.phone.root / "sys/class/thermal/thermal_zone0"
        sensor.mkdir(parents=True)
        (sensor / "type").write_text("gpuss-0\n")
        (sensor / "temp").write_text("41500\n")
        return peer

    return make


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "s25.toml"


def bench(artifact: Path, peer: Peer, *options: object) -> Result:
    done = hvdc("bench", artifact, "--device", peer.serial, *options)
    assert "Traceback" not in done.err
    assert "unexpected" not in done.err, done.err
    return done


def test_a_phones_rates_place_a_cut(phone: Callable[..., Peer], artifact: Path, table: Path) -> None:
    peer = phone(bench_program(report(TOKENS)))
    done = bench(artifact, peer, "-o", table, "--repeat", 7, "--cooling", "fan")
    assert done.status == 0, done.err
    rates = load_rates(table)
    assert rates.device.startswith("samsung SM-S931B, SM8750 (Snapdragon 8 Elite), ")
    assert peer.serial not in table.read_text()
    assert "before: hottest 41.5 °C (gpuss-0); " in rates.thermal
    assert re.search(r"; after \d+ s: hottest 41\.5 °C", rates.thermal)
    words = (peer.phone.target / KEPT).read_text().splitlines()
    assert words[0].endswith("/artifact.hvdc")
    assert words[words.index("--repeat") + 1] == "7"
    assert words[words.index("--kernel-cache") + 1].endswith("/data/local/tmp/hvdc/kernels")
    assert "--qnn-libraries" not in words, "there is no decoder"
    assert hvdc("plan", "cut", "--rates", table).status == 0


def test_an_unsteady_phone_is_refused(phone: Callable[..., Peer], artifact: Path, table: Path) -> None:
    differing = report(TOKENS)
    differing["series"][0] = series("npu", "block", "nothing", "semantic", 3.0, 0.4)
    done = bench(artifact, phone(bench_program(differing, 3)), "-o", table)
    assert done.status == 1
    assert "not steady" in done.err
    assert not table.exists()


def test_the_runtimes_own_sentence_comes_back(phone: Callable[..., Peer], artifact: Path, table: Path) -> None:
    peer = phone(bench_program("", 5, ("hvdc_bench: the DSP is offline",)))
    done = bench(artifact, peer, "-o", table)
    assert (done.status, table.exists()) == (5, False)
    assert "error: the DSP is offline" in done.err


@pytest.mark.parametrize("answer", ["", "Segmentation fault", "{}"])
def test_a_phone_that_answers_nonsense(phone: Callable[..., Peer], artifact: Path, table: Path, answer: str) -> None:
    done = bench(artifact, phone(bench_program(answer)), "-o", table)
    assert done.status == 1
    assert "hvdc_bench was started, and its report" in done.err
    assert not table.exists()


def test_what_was_not_deployed_is_not_measured(
    plugged: Callable[..., Peer], phone: Callable[..., Peer], artifact: Path, tiny_artifact: Path, tmp_path: Path
) -> None:
    empty = plugged()
    done = bench(artifact, empty)
    assert done.status == 5
    assert "this artifact is not on the device" in done.err
    assert "hvdc deploy" in done.err
    other = Path(shutil.copytree(tiny_artifact, tmp_path / "other" / "a.hvdc"))
    done = bench(other, phone(bench_program(report(TOKENS))), "--engine", "npu")
    assert done.status == 5
    assert "this artifact is not on the device" in done.err


def test_an_old_shell_is_refused(phone: Callable[..., Peer], artifact: Path) -> None:
    done = bench(artifact, phone(bench_program(report(TOKENS)), faults=Faults(old_shell=True)))
    assert done.status != 0
    assert "Android 7 or newer" in done.err


def test_a_phone_that_is_pulled_out_is_said(phone: Callable[..., Peer], artifact: Path, table: Path) -> None:
    peer = phone(bench_program(report(TOKENS), more="sleep 30"))

    def pull() -> None:
        end_s = time.monotonic() + 20
        while not (peer.phone.target / KEPT).exists() and time.monotonic() < end_s:
            time.sleep(0.05)
        peer.__exit__(None, None, None)

    puller = threading.Thread(target=pull)
    puller.start()
    start_s = time.monotonic()
    done = bench(artifact, peer, "-o", table)
    puller.join()
    assert time.monotonic() - start_s < 25
    assert done.status == 5, done.err
    assert "lost" in done.err
    assert not table.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--host",), "which machine is to be measured?"),
        (("--decode-with", "emulator"), "--decode-with would have no effect"),
        (("--to", "/data;rm"), "this is no folder"),
    ],
)
def test_options_that_mean_nothing(artifact: Path, options: tuple[str, ...], message: str) -> None:
    done = hvdc("bench", artifact, "--device", "none", *options)
    assert done.status == 2
    assert message in done.err


def test_a_phone_that_is_not_there(artifact: Path, plugged: Callable[..., Peer]) -> None:
    done = hvdc("bench", artifact, "--device", "R5CX0000000")
    assert done.status == 5
    assert "there is no such device" in done.err


def test_one_real_path(
    artifact: Path, plugged: Callable[..., Peer], table: Path, runtimes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime built for this machine, deployed to a device that is this machine, measures there: nothing is a
    stand-in but the phone."""
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))
    assert hvdc("runtime", "build", "--into", artifact, "-q").status == 0
    peer = plugged(properties={}, machine=None)
    done = hvdc("deploy", artifact, "--serial", peer.serial, "--no-run", "-q", "--force")
    assert done.status == 0, done.err
    engine = "npu" if why_no_gpu() else "both"
    done = bench(artifact, peer, "-o", table, "--repeat", 2, "--max-spread", "1e9", "--engine", engine)
    assert done.status == 0, done.err
    rates = load_rates(table)
    assert rates.npu.solo_block_s is not None
    assert "NPU engine: portable" in rates.device
    if engine == "both":
        assert hvdc("plan", "cut", "--rates", table).status == 0


@pytest.mark.parametrize("has_libraries", [False, True])
def test_the_decoder_needs_what_was_deployed_for_it(
    plugged: Callable[..., Peer], runnable_artifact: Path, tmp_path: Path, table: Path, has_libraries: bool
) -> None:
    """Binaries of the decoder in the artifact, and QAIRT's libraries beside it on the phone."""
    artifact = Path(shutil.copytree(runnable_artifact, tmp_path / "b.hvdc"))
    add_binaries(artifact)
    with open_artifact(artifact) as opened:
        tokens = opened.manifest.video.tokens
    answer = report(tokens)
    if has_libraries:
        answer["decoder"] = "QNN of a test"
        answer["series"] += [series("npu", "decode", beside, None, 200.0) for beside in ("nothing", "gpu")]
    with_runtime(artifact, PROGRAMS | {"hvdc_bench": bench_program(answer)})
    peer = plugged()
    assert hvdc("deploy", artifact, "--serial", peer.serial, "--no-run", "-q", "--force").status == 0
    if has_libraries:
        held = next((peer.phone.target / "hvdc/artifacts/b").glob("*/files.txt"))
        (held.parent / "qnn").mkdir()
        (held.parent / "qnn/libQnnHtp.so").write_bytes(b"")
        held.write_text(held.read_text() + f"{'0' * 64} 0 qnn/libQnnHtp.so\n")
    done = bench(artifact, peer, "-o", table)
    assert done.status == 0, done.err
    words = (peer.phone.target / KEPT).read_text().splitlines()
    decode = load_rates(table).decode
    if has_libraries:
        assert words[words.index("--qnn-libraries") + 1].endswith("/qnn")
        sm8750 = load_target("sm8750")
        told = (words[words.index("--soc") + 1], words[words.index("--arch") + 1])
        assert told == (str(sm8750.soc_model), "79"), "what this phone is, so that binaries for another are refused"
        assert decode.co_run_s is not None
        assert decode.co_run_s.value == 200.0
    else:
        assert "--qnn-libraries" not in words
        assert "hvdc deploy --qairt DIR" in done.err
        assert decode.co_run_s is None
        assert hvdc("plan", "cut", "--rates", table).status == 2, "a cut needs what a decode takes"


def waiting(peer: Peer, name: str) -> None:
    end_s = time.monotonic() + 30
    while not (peer.phone.target / name).exists() and time.monotonic() < end_s:
        time.sleep(0.05)


def test_two_at_a_time_would_measure_each_other(
    phone: Callable[..., Peer], artifact: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is told who works there. When the first hvdc is killed, its program ends with it."""
    monkeypatch.setattr("hvdc.measure.phone.guarded", lambda lock, what, command: guarded(lock, what, command, 1))
    peer = phone(bench_program(report(TOKENS), more='if [ ! -e "$TMPDIR/free" ]; then exec sleep 60; fi'))
    first = subprocess.Popen(
        [sys.executable, "-m", "hvdc", "bench", artifact, "--device", peer.serial, "-q"], stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    try:
        waiting(peer, KEPT)
        done = bench(artifact, peer, "-o", table, "--rest-s", 3600)
        assert (done.status, table.exists()) == (5, False)
        assert "resting" not in done.err, "it is said before a long rest, not after it"
        assert "another program is working on this device now" in done.err
        assert "hvdc bench, a, from this computer, for " in done.err
        assert peer.serial not in done.err
    finally:
        first.kill()
        first.wait()
    (peer.phone.target / "free").write_text("")
    end_s = time.monotonic() + 20
    while (done := bench(artifact, peer, "-o", table)).status == 5 and time.monotonic() < end_s:
        time.sleep(0.2)
    assert done.status == 0, done.err


def test_a_phone_that_gets_hot_in_the_middle_is_seen(
    phone: Callable[..., Peer], artifact: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after it is cool."""
    monkeypatch.setattr("hvdc.measure.sampling.loop", lambda: loop(1))
    peer = phone(bench_program(report(TOKENS), more='while [ ! -e "$TMPDIR/free" ]; do sleep 0.1; done'))
    sensor = peer.phone.root / "sys/class/thermal/thermal_zone0/temp"

    def heat() -> None:
        waiting(peer, KEPT)
        sensor.write_text("78500\n")
        time.sleep(2.5)
        sensor.write_text("41500\n")
        (peer.phone.target / "free").write_text("")

    heater = threading.Thread(target=heat)
    heater.start()
    done = bench(artifact, peer, "-o", table)
    heater.join()
    assert done.status == 0, done.err
    thermal = load_rates(table).thermal
    assert "before: hottest 41.5 °C" in thermal
    assert re.search(r"during: \d looks, hottest 78\.5 °C \(gpuss-0, after \d s\), which took [\d.]+ s of one", thermal)
    assert "during    " in done.out
