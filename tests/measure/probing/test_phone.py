"""`hvdc probe --device`: a phone that is full, in use, another one, or goes down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.layout import TARGET, Layout
from hvdc.deploy.store import Store
from hvdc.targets import read_target
from tests.adb_peer.peer import Peer
from tests.adb_peer.phone import GALAXY_S25
from tests.adb_peer.server import AdbServer
from tests.commands import hvdc
from tests.deploy.artifacts import script
from tests.measure.phones import FACTS, MIB, text
from tests.measure.probing.small import AT_511, answering


def test_a_phone_is_probed(peer: Peer, phone: Callable[[bytes], None], output: Path) -> None:
    phone(answering(text(FACTS)))
    done = hvdc("probe", "--device", peer.serial, "-o", output)
    assert done.status == 0, done.err
    found = read_target(output)
    assert (found.name, found.soc) == ("sm8750", "Snapdragon 8 Elite (SM8750)")
    assert "on samsung SM-S931B, SM8750 (Snapdragon 8 Elite), arm64-v8a, Android 15" in found.region_cap_bytes.source
    assert peer.serial not in output.read_text()
    left = [path.name for path in (peer.phone.target / "hvdc").iterdir()]
    assert "probe" not in left, "what was sent is removed"


def test_a_phone_that_is_full_and_says_nothing_is_not_probed(
    peer: Peer, phone: Callable[[bytes], None], output: Path
) -> None:
    phone(answering(text(FACTS)))
    peer.faults.full_at_bytes, peer.faults.full_in_silence = 100, True
    done = hvdc("probe", "--device", peer.serial, "-o", output)
    assert (done.status, "is not what was sent" in done.err) == (5, True), done.err
    assert not output.exists()
    assert not (peer.phone.target / "hvdc" / "probe").exists()


def test_a_phone_is_not_probed_while_something_is_deployed(
    peer: Peer, phone: Callable[[bytes], None], output: Path, device: AdbDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would cost the other its time and its memory."""
    monkeypatch.setattr("hvdc.deploy.lock.LOCK_S", 0.2)
    phone(answering(text(FACTS)))
    store = Store(device, Layout(TARGET))
    store.prepare()
    with store.lock() as lock:
        lock.keep()
        done = hvdc("probe", "--device", peer.serial, "-o", output)
    assert (done.status, "another hvdc is changing this device now" in done.err) == (5, True), done.err
    assert hvdc("probe", "--device", peer.serial, "-o", output).status == 0


def test_a_phone_of_another_soc_has_its_own_name(
    plugged: Callable[..., Peer], phone: Callable[[bytes], None], output: Path
) -> None:
    phone(answering(text(FACTS)))
    peer = plugged(properties=GALAXY_S25 | {"ro.soc.model": "SM8650"})
    done = hvdc("probe", "--device", peer.serial, "-o", output)
    assert done.status == 0, done.err
    assert (read_target(output).name, read_target(output).soc) == ("sm8650", "Snapdragon 8 Gen 3 (SM8650)")
    assert "QNN's number of the SoC and its graph limits are those of sm8750: check them" in done.out


def test_a_phone_that_goes_down_leaves_what_was_learnt(
    peer: Peer, phone: Callable[[bytes], None], output: Path
) -> None:
    upto = next(i for i, fact in enumerate(FACTS) if fact == {"fact": "trying", "what": "region", "bytes": 511 * MIB})
    phone(answering(text(FACTS[: upto + 1]), more='echo >"$TMPDIR/reached"; sleep 30'))

    def go_down() -> None:
        end_s = time.monotonic() + 20
        while not (peer.phone.target / "reached").exists() and time.monotonic() < end_s:
            time.sleep(0.05)
        time.sleep(0.5)
        peer.__exit__(None, None, None)

    downfall = threading.Thread(target=go_down)
    downfall.start()
    done = hvdc("probe", "--device", peer.serial, "-o", output)
    downfall.join()
    assert done.status == 5, done.err
    assert "while it tried region of 511 MiB" in done.err
    found = read_target(output)
    assert found.region_cap_bytes.value == 510 * MIB
    assert "the probe ended while it tried 511 MiB" in found.region_cap_bytes.source


def test_the_real_program_on_a_device_that_is_this_machine(
    plugged: Callable[..., Peer], output: Path, runtimes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVDC_CACHE_DIR", str(runtimes))
    peer = plugged(properties={}, machine=None)
    sizes = ("--largest-mib", 20, "--total-mib", 64, "--mappings", 20)
    done = hvdc("probe", "--device", peer.serial, "-o", output, *sizes)
    assert done.status == 0, done.err
    assert read_target(output).region_cap_bytes.value == 20 * MIB


ONCE = """if [ -e "$TMPDIR/once" ]; then
  printf '%s\\n' "$@" >"$TMPDIR/words"
  cat <<'END'
{all}END
  exit
fi
cat <<'END'
{some}END
echo >"$TMPDIR/once"
sleep 30"""
"""A probe that hangs at 511 MiB, but for the second time."""


@pytest.mark.parametrize("restarts", [False, True])
def test_a_phone_that_was_only_unplugged_is_asked_again(
    peer: Peer, phone: Callable[[bytes], None], output: Path, adb_server: AdbServer, restarts: bool
) -> None:
    """One that has started anew since then is not: the step may have been why."""
    phone(script(ONCE.format(all=text(FACTS), some=text(FACTS[:AT_511]))))
    once, said = peer.phone.target / "once", peer.phone.target / "words"

    def unplug() -> None:
        end_s = time.monotonic() + 20
        while not once.exists() and time.monotonic() < end_s:
            time.sleep(0.05)
        time.sleep(0.3)
        peer.cut()

    puller = threading.Thread(target=unplug)
    puller.start()
    done = hvdc("probe", "--device", peer.serial, "-o", output)
    puller.join()
    assert done.status == 5, done.err
    assert "the device was lost" in done.err
    if restarts:
        peer.phone.properties["ro.runtime.firstboot"] = "1700000000000"
        peer.phone.faults.clock_off_s += 1  # its programs are made anew
        peer.phone.refresh()
    end_s = time.monotonic() + 20
    while (done := hvdc("probe", "--device", peer.serial, "-o", output)).status == 5 and time.monotonic() < end_s:
        adb_server.connect(peer.serial)
        time.sleep(0.2)
    assert done.status == 0, done.err
    assert (f"region:{511 * MIB}" in said.read_text()) == restarts
    assert "--known-mib\n510\n" in said.read_text()
