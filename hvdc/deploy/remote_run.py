"""A stream of videos on a device: its input goes there, `hvdc_runner` runs, its results come back.

What was made stays on the device until it has arrived here, so that a cut link or an interrupt costs no finished video.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hvdc.deploy.adb import AdbDevice, quoted
from hvdc.deploy.errors import DeviceError, LinkError
from hvdc.deploy.found import SIZE_LINE, Held
from hvdc.deploy.in_use import BUSY as IN_USE
from hvdc.deploy.in_use import MARK, guarded, in_use
from hvdc.deploy.layout import ARTIFACT, QNN, Layout
from hvdc.deploy.patience import Patience
from hvdc.deploy.store import LISTING_BYTES, Store
from hvdc.deploy.verifier import hash_s
from hvdc.errors import Exit

RESULT = re.compile(r"video-\d{6}\.(?:safetensors|ppm)|trace\.json", re.ASCII)
_TARGET = re.compile(r"[a-z0-9][a-z0-9-]{0,39}", re.ASCII)
REPORT_BYTES = 64 << 20
STOP_S = 90.0
"""A block takes a phone seconds; the runner stops before its next one."""
LAST_WORDS_S = 5.0
"""What a runner that was stopped has said arrives within so long."""
GONE = 97
"""Status where the run's folder or its program is on the device no longer; no program of the runtime ends with it."""
BUSY, BUSY_S = 98, 10
"""Status where another one holds the run's folder, after so many seconds; no program of the runtime ends with it."""
HASHED_BYTES, HASHED = 512 << 20, 200
"""Of results that one call hashes."""
STARTS = 5
"""How often a runner is started that a cut link has ended."""


@dataclass(frozen=True)
class Ended:
    """How a program on a device ended. ``status``: as its shell has it, 128 + N for signal N."""

    status: int
    out: str

    @property
    def returncode(self) -> int:
        """As `subprocess` has it, -N for signal N; the runtime itself ends with 130 where it was interrupted."""
        return self.status if self.status <= Exit.INTERRUPTED else 128 - self.status


def deployed_version(store: Store, index: bytes, name: str | None) -> Held:
    """The version on a device that has this ``index.bin``; one in use before others.

    Raises DeviceError: there is none.
    """
    digest = hashlib.sha256(index).hexdigest()
    versions = sorted(store.look().versions, key=lambda v: not v.is_current)
    named = [v for v in versions if name is None or v.name == name]
    for held in named:
        if held.files.get(f"{ARTIFACT}/index.bin", ("", 0))[0] == digest:
            return held
    there = ", ".join(sorted({v.name for v in versions}))
    raise DeviceError(
        "this artifact is not on the device", where=f"{store.device.serial}: {store.layout.target}",
        found=f"others: {there}" if there else "nothing is deployed there", fix="hvdc deploy ARTIFACT",
    )  # fmt: skip


class RemoteRun:
    """A folder on a device for one run: ``key`` names it, and is the same for the same input."""

    def __init__(self, store: Store, held: Held, key: str, patience: Patience) -> None:
        self.device: AdbDevice = store.device
        self._store, self._held, self._patience = store, held, patience
        layout: Layout = store.layout
        self.version = layout.version(held.name, held.version)
        self.folder = f"{layout.runs(held.name)}/{key}"
        self.kernels = layout.kernels
        self._was_started = False
        self.target = str(held.deployed.get("target", ""))
        if _TARGET.fullmatch(self.target) is None:
            raise DeviceError(
                "what is deployed has no runtime", where=f"{self.device.serial}: {self.version}",
                fix="hvdc runtime build --target android --ndk PATH --into ARTIFACT, and hvdc deploy ARTIFACT",
            )  # fmt: skip

    @property
    def artifact(self) -> str:
        return f"{self.version}/{ARTIFACT}"

    @property
    def runner(self) -> str:
        return f"{self.artifact}/runtime/{self.target}-hvdc_runner"

    @property
    def qnn(self) -> str | None:
        """The folder of QAIRT's libraries, if they were deployed."""
        return f"{self.version}/{QNN}" if any(path.startswith(f"{QNN}/") for path in self._held.files) else None

    def environment(self) -> dict[str, str]:
        """Where libraries are looked for, by the CPU's loader and by the DSP's."""
        if self.qnn is None:
            return {}
        dsp = f"{self.artifact}/runtime;{self.qnn}"
        return {"LD_LIBRARY_PATH": self.qnn, "DSP_LIBRARY_PATH": dsp, "ADSP_LIBRARY_PATH": dsp}

    def send(self, files: Iterable[Path], folder: str) -> None:
        """Put files into a folder of the run, verified. Raises DeviceError, LinkError."""
        place = f"{self.folder}/{folder}"
        folders = self._store.made(place, f"{self.folder}/results", self.kernels)
        self._patience(partial(self._store.run, folders, "making folders on the device"))
        for path in files:
            remote, digest = f"{place}/{path.name}", hashlib.sha256(path.read_bytes()).hexdigest()
            for _ in range(3):
                if self._patience(partial(self._hash, remote, path.stat().st_size)) == digest:
                    break
                self._patience(partial(self.device.push, path, remote))
            else:
                raise DeviceError(
                    "what arrives on the device is not what was sent", where=f"{self.device.serial}: {remote}",
                    fix="make room on it, or try another cable",
                )  # fmt: skip

    def execute(self, program: str, arguments: Sequence[object], heard: Callable[[str], None]) -> Ended:
        """Run a program in the run's folder to its end; ``heard``: each line of its standard error.

        After a cut link it is started again, with the same arguments. An interrupt asks it to stop, and goes on when
        it has. Raises LinkError, DeviceError.
        """
        return self._patience(partial(self._execute, program, arguments, heard), STARTS)

    def _execute(self, program: str, arguments: Sequence[object], heard: Callable[[str], None]) -> Ended:
        if self._was_started:  # a cut link need not have ended it yet: two would write the same results
            self.stop()
        self._was_started = True
        mark = f"hvdc-{secrets.token_hex(8)}"
        command = "echo $$ > pid; exec " + quoted([*_env(self.environment()), program, *arguments])
        alone = guarded(self._store.layout.in_use, f"hvdc run, {self._held.name}", command)
        inner = f"{{\n{alone}\n}} 2>&1 >report.json"
        script = (
            f"cd {quoted([self.folder])} && [ -f {quoted([program])} ] || {{ echo; echo {mark} {GONE}; exit; }}\n"
            f"(\nn=0\nwhile command -v flock >/dev/null 2>&1 && ! flock -n 9; do\n"
            f"  n=$((n + 1)); [ $n -lt {BUSY_S} ] || {{ echo; echo {mark} {BUSY}; exit; }}\n  sleep 1\ndone\n"
            f"rm -f report.json\n"
            f"( sh -c {quoted([inner])} </dev/null; s=$?; echo; echo {mark} $s; cat report.json ) | tee run.log\n"
            f") 9>>lock"  # which the program holds, too: until it has ended, whatever becomes of the link
        )
        status: int | None = None
        last = ""
        report: list[str] = []
        size = 0

        def take(raw: bytes) -> None:
            nonlocal status, size, last
            line = raw.decode("utf-8", "replace").rstrip("\r\n")
            if status is not None:
                size += len(raw)
                if size > REPORT_BYTES:
                    raise DeviceError("the device answers without end", where=self.device.serial)
                report.append(line)
            elif line.startswith(f"{mark} ") and line.split()[1].isdigit():
                status = int(line.split()[1])
            elif line:
                last = line
                if not line.startswith(MARK):
                    heard(line)

        with self.device.stream("sh", "-c", script) as process:
            if process.stdin is not None:
                process.stdin.close()
            try:
                for raw in process.stdout or ():
                    take(raw)
            except KeyboardInterrupt:
                self.stop()
                late = threading.Timer(LAST_WORDS_S, process.kill)
                late.start()
                for raw in process.stdout or ():  # which videos it has finished meanwhile
                    take(raw)
                late.cancel()
                raise
        if status is None:
            raise LinkError("the device was lost while it worked", where=self.device.serial, found="no report",
                            fix="look at the cable, and run the same command with --resume")  # fmt: skip
        if status == GONE:
            raise DeviceError(
                "what this run needs is on the device no longer: it was removed meanwhile",
                where=f"{self.device.serial}: {self.version}",
                fix="hvdc deploy ARTIFACT, and run the same command with --resume",
            )  # fmt: skip
        if status == IN_USE:
            raise in_use(last, self.device.serial, self._store.layout.in_use)
        if status == BUSY:
            raise DeviceError(
                "the same videos are being made on this device by another hvdc", where=self.device.serial,
                found=self.folder, fix="wait for it, or stop it, and run the same command again",
            )  # fmt: skip
        return Ended(status, "\n".join(report))

    def stop(self) -> None:
        """Ask the runner to stop, and wait until it has."""
        pid = quoted([f"{self.folder}/pid"])
        # A number may be another process's by now, as after a restart of the device.
        is_ours = f'p=$(cat {pid} 2>/dev/null) && grep -q hvdc_ "/proc/$p/cmdline" 2>/dev/null'
        script = f'{is_ours} && kill -TERM "$p"'
        with contextlib.suppress(DeviceError):
            self.device.script(script, timeout_s=15)
            end_s = time.monotonic() + STOP_S
            while time.monotonic() < end_s and self.device.script(is_ours).status == 0:
                time.sleep(0.3)

    def fetch(self, folder: Path, names: Mapping[str, Path] | None = None) -> list[Path]:
        """Copy results that are whole into ``folder``, verified; ``names``: others, with where they go.

        Returns what came. Raises DeviceError, LinkError.
        """
        script = f"cd {quoted([self.folder])} && stat -c '%s %n' results/* trace.json 2>/dev/null; true"
        listed = self._patience(partial(self.device.script, script, limit_bytes=LISTING_BYTES))
        places: dict[str, tuple[Path, int]] = {}
        for match in filter(None, (SIZE_LINE.fullmatch(line.strip()) for line in listed.text.splitlines())):
            name = match[2].removeprefix("results/")
            if RESULT.fullmatch(name) is not None and (not name.endswith(".json") or name in (names or {})):
                places[match[2]] = (names or {}).get(name, folder / name), int(match[1])
        came = []
        for batch in _batches({path: size for path, (_, size) in places.items()}):
            deadline_s = hash_s(sum(places[path][1] for path in batch))  # frames of many videos are gigabytes
            for path, digest in self._patience(partial(self._store.hashes, self.folder, batch, deadline_s)).items():
                if path not in places:
                    continue
                local, _ = places[path]
                if not (local.is_file() and hashlib.sha256(local.read_bytes()).hexdigest() == digest):
                    self._fetch(path, local, digest)
                came.append(local)
        return came

    def _fetch(self, path: str, local: Path, digest: str) -> None:
        partial = local.with_name(f".{local.name}.partial")
        try:
            for _ in range(3):
                self._patience(lambda: self.device.pull(f"{self.folder}/{path}", partial))
                if hashlib.sha256(partial.read_bytes()).hexdigest() == digest:
                    partial.replace(local)
                    return
        finally:
            partial.unlink(missing_ok=True)
        raise DeviceError("what comes from the device is not what is there", where=f"{self.device.serial}: {path}",
                          fix="try another cable or port")  # fmt: skip

    def done(self) -> None:
        """Remove input and results from the device; the log and the report stay."""
        self._store.run(f"cd {quoted([self.folder])} && rm -rf stream results trace.json pid lock", "tidying up")

    def _hash(self, path: str, size: int) -> str:
        return self.device.script(f"sha256sum < {quoted([path])}", timeout_s=hash_s(size)).text.partition(" ")[0]


def _batches(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Paths that are hashed by one call."""
    batch: list[str] = []
    for path in sizes:
        if batch and (sum(sizes[one] for one in batch) + sizes[path] > HASHED_BYTES or len(batch) >= HASHED):
            yield batch
            batch = []
        batch.append(path)
    if batch:
        yield batch


def _env(values: Mapping[str, str]) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in values.items())] if values else []
