"""A program that runs on a device, and the link to it that goes."""

from __future__ import annotations

import threading
import time

import pytest

from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.found import Held
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


def test_a_runner_that_outlives_a_cut_link_is_stopped_before_another_starts(peer: Peer, device: AdbDevice) -> None:
    """Two of them would write the same results."""
    peer.faults.leaves_running = True
    store = Store(device, Layout("/data/local/tmp/hvdc"))
    store.prepare()
    held = Held("dcm", "0123456789abcdef", is_current=True, deployed={"target": "android-arm64"})
    run = RemoteRun(store, held, "key", Patience(device, print, wait_s=10.0))
    folder = peer.phone.target / "hvdc" / "artifacts" / "dcm" / "runs" / "key"
    folder.mkdir(parents=True)
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
    store = Store(device, Layout("/data/local/tmp/hvdc"))
    store.prepare()
    held = Held("dcm", "0123456789abcdef", is_current=True, deployed={"target": "android-arm64"})
    run = RemoteRun(store, held, "key", Patience(device, print, wait_s=10.0))
    folder = peer.phone.target / "hvdc" / "artifacts" / "dcm" / "runs" / "key"
    folder.mkdir(parents=True)
    (folder / "program").write_bytes(script(text))
    (folder / "program").chmod(0o755)
    assert run.execute(f"{run.folder}/program", [], lambda line: None).returncode == status


def test_a_number_that_is_another_process_by_now_is_not_stopped(peer: Peer, device: AdbDevice) -> None:
    """As after a restart of the device: its list of processes begins anew."""
    store = Store(device, Layout("/data/local/tmp/hvdc"))
    store.prepare()
    held = Held("dcm", "0123456789abcdef", is_current=True, deployed={"target": "android-arm64"})
    run = RemoteRun(store, held, "key", Patience(device, print, wait_s=10.0))
    folder = peer.phone.target / "hvdc" / "artifacts" / "dcm" / "runs" / "key"
    folder.mkdir(parents=True)
    with device.stream("sh", "-c", f"echo $$ > {run.folder}/pid; sleep 20") as other:
        end_s = time.monotonic() + 10
        while not (folder / "pid").exists() and time.monotonic() < end_s:
            time.sleep(0.02)
        begun_s = time.monotonic()
        run.stop()
        assert other.poll() is None
        assert time.monotonic() - begun_s < 10
