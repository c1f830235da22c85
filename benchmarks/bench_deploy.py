"""Pushing 1.4 GiB by `hvdc deploy` beside a plain ``adb push`` of the same bytes, on loopback, into docs/BENCHMARKS.md.

The device is the tests' peer as a process of its own; client and server are the real adb. Bytes on loopback say nothing
about USB: what is compared is what the verified, resumable push adds.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Line, lines_table, say, write_section
from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.adb_program import find_adb
from hvdc.deploy.deploy import DeployRequest, deploy
from hvdc.progress import Silent
from tests.adb_peer import AdbServer
from tests.artifact_blobs import Spec
from tests.deploy.artifacts import phone_artifact

ROOT = Path(__file__).resolve().parents[1]
FULL_SIZE = Spec(layers=30, width=1536, ffn_width=8960, heads=12, rank=128)
"""As many bytes as the full-size model's weights have, arbitrary ones, in files of the size of its regions."""
RATE_GOAL, MEMORY_GOAL_MIB = 0.7, 200
CABLE_BYTES_S = 320e6
"""Of a link that leaves the cores time to hash, as a cable does; loopback takes all of them."""


@contextlib.contextmanager
def phone(folder: Path, *options: object) -> Iterator[str]:
    """The peer as a process; its address."""
    command = [sys.executable, "-m", "tests.adb_peer", str(folder), *map(str, options)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise AssertionError
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def plain(device: AdbDevice, artifact: Path) -> float:
    """Seconds of ``adb push`` of the whole folder."""
    begun_s = time.perf_counter()
    subprocess.run(device.command("push", artifact, "/data/local/tmp/plain"), check=True, capture_output=True)
    return time.perf_counter() - begun_s


@dataclasses.dataclass
class Pushes:
    """Seconds of the same bytes by ``adb push`` and by `hvdc deploy`, in turn. ``whole_s``: with all that is hashed."""

    plain_s: list[float] = dataclasses.field(default_factory=list)
    sent_s: list[float] = dataclasses.field(default_factory=list)
    whole_s: list[float] = dataclasses.field(default_factory=list)

    @property
    def ratio(self) -> float:
        return statistics.median(p / s for p, s in zip(self.plain_s, self.sent_s, strict=True))


def pushes(device: AdbDevice, root: Path, artifact: Path, repeat: int) -> Pushes:
    done, size = Pushes(), sum(path.stat().st_size for path in artifact.rglob("*") if path.is_file())
    for i in range(repeat):
        done.plain_s.append(plain(device, artifact))
        shutil.rmtree(root / "data/local/tmp/plain")
        begun_s = time.perf_counter()
        deployed = deploy(DeployRequest(artifact, name=f"run{i}", smoke=False), device, Silent(), lambda text: None)
        done.whole_s.append(time.perf_counter() - begun_s)
        done.sent_s.append(deployed.sent.seconds)
        shutil.rmtree(root / "data/local/tmp/hvdc")
        say(f"adb push {size / done.plain_s[-1] / 1e6:.0f} MB/s, hvdc deploy {size / done.sent_s[-1] / 1e6:.0f} MB/s, "
            f"{done.whole_s[-1]:.1f} s with hashing here and there")  # fmt: skip
    return done


def peak_mib(artifact: Path, serial: str, environment: dict[str, str], name: str) -> float:
    """Largest resident memory of `hvdc deploy` as a process, with what it starts, in MiB."""
    command = ["/usr/bin/env", "time", "-f", "%M"] if shutil.which("time") else []
    words = ["-m", "hvdc", "deploy", str(artifact), "--serial", serial, "--no-run", "--name", name, "-q"]
    done = subprocess.run([*command, sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True,
                          check=True)  # fmt: skip
    return int(done.stderr.split()[-1]) / 1024 if command else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=FULL_SIZE.layers, help="fewer make a smaller artifact")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-write", action="store_true", help="print, and leave docs/BENCHMARKS.md alone")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hvdc-bench-deploy-") as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        say("writing an artifact of random bytes")
        artifact = phone_artifact(folder / "large.hvdc", dataclasses.replace(FULL_SIZE, layers=given.layers))
        size = sum(path.stat().st_size for path in artifact.rglob("*") if path.is_file())
        server = stack.enter_context(AdbServer(find_adb(), folder / "home"))
        root = folder / "phone"
        serial = stack.enter_context(phone(root))
        server.connect(serial)
        device = server.adb.device(serial)
        free = pushes(device, root, artifact, given.repeat)
        slow_root = folder / "slow"
        slow = stack.enter_context(phone(slow_root, "--bytes-per-s", CABLE_BYTES_S))
        server.connect(slow)
        cable = pushes(server.adb.device(slow), slow_root, artifact, given.repeat)
        memory = peak_mib(artifact, serial, {**os.environ, **server.environment()}, "memory")
        rows = [
            Line("rate of a verified push ÷ rate of `adb push`", f"{free.ratio:.2f}", f"≥ {RATE_GOAL}",
                 free.ratio >= RATE_GOAL, f"median of {given.repeat} pairs; every piece hashed on the device while the "
                 "next is sent. Computer and device are one machine here, whose cores one `adb push` keeps busy"),
            Line(f"the same over a link of {CABLE_BYTES_S / 1e6:.0f} MB/s", f"{cable.ratio:.2f}", f"≥ {RATE_GOAL}",
                 cable.ratio >= RATE_GOAL, "the device that is played reads no faster"),
            Line("`adb push` of the same bytes", f"{size / statistics.median(free.plain_s) / 1e6:.0f} MB/s", "–", True,
                 f"{size / 2**30:.2f} GiB, {find_adb().text()}".replace(str(find_adb().path), "adb")),
            Line("all of `hvdc deploy`", f"{statistics.median(free.whole_s):.1f} s", "–", True,
                 "with the hash of every file here before, and there afterwards, two or more at once"),
            Line("memory", f"{memory:.0f} MiB", f"< {MEMORY_GOAL_MIB} MiB", memory < MEMORY_GOAL_MIB,
                 "largest resident set of `hvdc deploy`, as a process of its own"),
        ]  # fmt: skip
        text = lines_table(rows)
        print(text)
        if not given.no_write:
            write_section(
                ROOT / "docs" / "BENCHMARKS.md", "Deploying, on loopback", "make bench-deploy", text, ("hvdc",)
            )
    sys.exit(not all(row.holds for row in rows))


if __name__ == "__main__":
    main()
