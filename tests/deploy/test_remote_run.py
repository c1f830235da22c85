"""A program that runs on a device, and the link to it that goes."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.errors import DeviceError
from hvdc.deploy.found import Held
from hvdc.deploy.in_use import InUseError, guarded
from hvdc.deploy.layout import Layout
from hvdc.deploy.patience import Patience
from hvdc.deploy.remote_run import RemoteRun
from hvdc.deploy.store import Store
from tests.adb_peer import Peer
from tests.deploy.artifacts import script

STUBBORN = """
trap 'echo stopped >> log; exit 1' TERM
trap '' HUP PIPE
echo started >> log
if [ -e second ]; then exit 0; fi
: > second
for i in 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9; do sleep 0.5; done
"""
"""A runner in the middle of a block: it notices a cut link only when it writes."""


def folder_of(peer: Peer) -> Path:
    folder = peer.phone.target / "hvdc" / "artifacts" / "dcm" / "runs" / "key"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def remote_run(peer: Peer, device: AdbDevice) -> RemoteRun:
    store = Store(device, Layout("/data/local/tmp/hvdc"))
    store.prepare()
    held = Held("dcm", "0123456789abcdef", is_current=True, deployed={"target": "android-arm64"})
    return RemoteRun(store, held, "key", Patience(device, print, wait_s=10.0))


def test_results_are_waited_for_by_their_size(
    peer: Peer, device: AdbDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames of a long run are gigabytes, which a phone hashes for minutes; with one deadline they would never come."""
    run, results = remote_run(peer, device), folder_of(peer) / "results"
    results.mkdir()
    sizes = {f"video-{i:06}.ppm": size for i, size in enumerate((20 << 30, 3 << 30, 1000, 1000))}
    for name, size in sizes.items():
        with (results / name).open("wb") as file:
            file.truncate(size)
    asked: dict[tuple[str, ...], float] = {}

    def hashes(folder: str, paths: list[str], timeout_s: float) -> dict[str, str]:
        asked[tuple(paths)] = timeout_s
        return {}

    monkeypatch.setattr(run._store, "hashes", hashes)
    assert run.fetch(tmp_path) == []
    assert {name for paths in asked for name in paths} == {f"results/{name}" for name in sizes}
    for paths, deadline_s in asked.items():
        assert deadline_s >= 60 + sum(sizes[path.removeprefix("results/")] for path in paths) / 10e6


def test_what_is_whole_comes_and_nothing_else(peer: Peer, device: AdbDevice, tmp_path: Path) -> None:
    run, folder = remote_run(peer, device), folder_of(peer)
    (folder / "results").mkdir()
    for name in ("video-000000.safetensors", "video-000001.ppm", "video-000002.ppm.part", "a b.ppm", "$(x).ppm"):
        (folder / "results" / name).write_text(name)
    (folder / "trace.json").write_text("{}")
    here = tmp_path / "here"
    here.mkdir()
    (here / "video-000001.ppm").write_text("another")
    there = {here / "video-000000.safetensors", here / "video-000001.ppm"}
    assert set(run.fetch(here)) == there == set(here.iterdir())
    assert (here / "video-000001.ppm").read_text() == "video-000001.ppm"
    trace = here / "t.json"
    assert set(run.fetch(here, {"trace.json": trace})) == {*there, trace}


def test_a_runner_that_outlives_a_cut_link_is_stopped_before_another_starts(peer: Peer, device: AdbDevice) -> None:
    """Two of them would write the same results."""
    peer.faults.leaves_running = True
    run, folder = remote_run(peer, device), folder_of(peer)
    program = folder / "hvdc_runner"
    program.write_bytes(script(STUBBORN))
    program.chmod(0o755)

    def pull() -> None:
        end_s = time.monotonic() + 20
        while not (folder / "second").exists() and time.monotonic() < end_s:
            time.sleep(0.02)
        peer.cut(away_s=0.3)

    threading.Thread(target=pull, daemon=True).start()
    ended = run.execute(f"{run.folder}/hvdc_runner", [], lambda line: None)
    assert ended.status == 0
    assert (folder / "log").read_text().split() == ["started", "stopped", "started"]


@pytest.mark.parametrize(("text", "status"), [("exit 130", 130), ("kill -9 $$", -9), ("exit 5", 5)])
def test_what_a_signal_ended_is_told_from_an_own_status(text: str, status: int, peer: Peer, device: AdbDevice) -> None:
    """Such as a phone that is short of memory."""
    run, folder = remote_run(peer, device), folder_of(peer)
    (folder / "program").write_bytes(script(text))
    (folder / "program").chmod(0o755)
    assert run.execute(f"{run.folder}/program", [], lambda line: None).returncode == status


def test_the_same_videos_are_made_once_at_a_time(
    peer: Peer, device: AdbDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hvdc.deploy.remote_run.BUSY_S", 1)
    one, other = (remote_run(peer, device) for _ in range(2))
    folder, seen = folder_of(peer), threading.Event()
    (folder / "program").write_bytes(script("echo begun >&2; while [ ! -e end ]; do sleep 0.1; done; echo '{}'"))
    (folder / "program").chmod(0o755)
    words: tuple[str, list[object]] = (f"{one.folder}/program", [])
    ended: list[str] = []
    thread = threading.Thread(target=lambda: ended.append(one.execute(*words, lambda line: seen.set()).out.strip()))
    thread.start()
    assert seen.wait(10)
    with pytest.raises(DeviceError, match="the same videos are being made on this device by another hvdc"):
        other.execute(*words, lambda line: None)
    (folder / "end").touch()
    thread.join(20)
    assert ended == ["{}"]
    assert other.execute(*words, lambda line: None).status == 0


@pytest.mark.parametrize("gone", ["program", "folder"])
def test_what_was_removed_meanwhile_is_no_lost_device(gone: str, peer: Peer, device: AdbDevice) -> None:
    """By `hvdc deploy --remove` or --prune from somewhere else, while the input was on its way."""
    run, folder = remote_run(peer, device), folder_of(peer)
    if gone == "folder":
        folder.rmdir()
    with pytest.raises(DeviceError, match="is on the device no longer: it was removed meanwhile") as caught:
        run.execute(run.runner, [], lambda line: None)
    assert caught.value.fix.startswith("hvdc deploy ARTIFACT, and")


def test_a_number_that_is_another_process_by_now_is_not_stopped(peer: Peer, device: AdbDevice) -> None:
    """As after a restart of the device: its list of processes begins anew."""
    run, folder = remote_run(peer, device), folder_of(peer)
    with device.stream("sh", "-c", f"echo $$ > {run.folder}/pid; sleep 20") as other:
        end_s = time.monotonic() + 10
        while not (folder / "pid").exists() and time.monotonic() < end_s:
            time.sleep(0.02)
        begun_s = time.monotonic()
        run.stop()
        assert other.poll() is None
        assert time.monotonic() - begun_s < 10


def test_a_run_waits_for_nobody_elses_work(peer: Peer, device: AdbDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program works on the engines: who it is comes back, and nothing is started."""
    monkeypatch.setattr("hvdc.deploy.remote_run.guarded", lambda lock, what, command: guarded(lock, what, command, 0))
    run, folder = remote_run(peer, device), folder_of(peer)
    program = folder / "hvdc_runner"
    program.write_bytes(script("echo ran >> log"))
    program.chmod(0o755)
    lock = f"{peer.phone.target}/hvdc/in-use"
    heard: list[str] = []
    with device.stream("sh", "-c", guarded(lock, "hvdc bench, dcm", "echo held; exec sleep 60")) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == b"held"
        with pytest.raises(InUseError, match="another program is working") as caught:
            run.execute(f"{run.folder}/hvdc_runner", [], heard.append)
    assert caught.value.found.startswith("hvdc bench, dcm, from this computer, for ")
    assert (heard, (folder / "log").exists()) == ([], False)
    end_s = time.monotonic() + 10
    while time.monotonic() < end_s:
        try:
            ended = run.execute(f"{run.folder}/hvdc_runner", [], heard.append)
            break
        except InUseError:
            time.sleep(0.1)
    assert ended.status == 0
    assert (folder / "log").read_text() == "ran\n"


def test_what_works_here_says_so(peer: Peer, device: AdbDevice) -> None:
    run, folder = remote_run(peer, device), folder_of(peer)
    program = folder / "hvdc_runner"
    program.write_bytes(script('cat "$TMPDIR/hvdc/in-use" >&2; echo "$@"; exit 3'))
    program.chmod(0o755)
    heard: list[str] = []
    ended = run.execute(f"{run.folder}/hvdc_runner", ["a b", "'"], heard.append)
    assert (ended.status, ended.out.strip()) == (3, "a b '")
    assert heard[0].endswith(" hvdc run, dcm")
