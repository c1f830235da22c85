"""`hvdc deploy` holds little of what it sends: its memory does not grow with the artifact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hvdc.deploy.adb import AdbDevice
from tests.adb_peer import Peer
from tests.artifacts import Spec
from tests.deploy.artifacts import phone_artifact, whole_version

LIMIT_BYTES = 200 << 20
SMALL, LARGE = Spec(), Spec(layers=2, width=1536, ffn_width=8960, heads=12, rank=128)
"""The large one has regions of the size of the full model's, more than 40 MiB each."""

_RUN = """
import resource, runpy, sys
sys.argv[0] = "hvdc"
try:
    runpy.run_module("hvdc", run_name="__main__")
finally:
    with open("/proc/self/status") as status:  # its own count in rusage begins with that of whoever started it
        own = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    print("peak", max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) << 10, file=sys.stderr)
"""


def peak_bytes(artifact: Path, device: AdbDevice) -> int:
    """The largest resident set of the command as a process, or of any that it starts."""
    command = [sys.executable, "-c", _RUN, "deploy", str(artifact), "--serial", device.serial, "--no-run", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    word, peak = done.stderr.split()[-2:]
    assert word == "peak"
    return int(peak)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's counts")
def test_memory_does_not_grow_with_the_artifact(device: AdbDevice, peer: Peer, tmp_path: Path) -> None:
    small, large = phone_artifact(tmp_path / "small.hvdc", SMALL), phone_artifact(tmp_path / "large.hvdc", LARGE)
    more = sum(path.stat().st_size for path in large.rglob("*") if path.is_file())
    assert more > 80 << 20
    peer.phone.hashes_fast = True
    little, much = peak_bytes(small, device), peak_bytes(large, device)
    whole_version(peer, large, "large")
    assert little < LIMIT_BYTES
    assert much < LIMIT_BYTES
    assert much - little < more // 8, f"{little >> 20} MiB for a small artifact, {much >> 20} for {more >> 20} MiB more"
