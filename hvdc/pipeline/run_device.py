"""Where `hvdc run` has its runtime: on this machine, or on a device that an artifact was deployed to."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from hvdc.artifact.manifest import INDEX_NAME
from hvdc.deploy.adb import Adb
from hvdc.deploy.adb_program import find_adb
from hvdc.deploy.device_facts import DeviceFacts, read_facts
from hvdc.deploy.devices import AUTO
from hvdc.deploy.errors import DeviceError
from hvdc.deploy.layout import TARGET, Layout, checked_target
from hvdc.deploy.patience import WAIT_S, Patience
from hvdc.deploy.remote_run import RemoteRun, deployed_version
from hvdc.deploy.store import Store
from hvdc.pipeline.run_place import Identity, Place
from hvdc.pipeline.run_process import Watched, outcome
from hvdc.progress import Progress


@dataclass(frozen=True)
class DeviceChoice:
    """Which device, and where on it. ``name`` None: whatever is deployed of the artifact."""

    serial: str
    adb: Path | None = None
    host: str | None = None
    port: int | None = None
    target: str = TARGET
    name: str | None = None


@dataclass(frozen=True)
class RunnerPaths:
    """As the runner's machine has them. ``libraries``: of QNN, None to make latents only."""

    artifact: object
    stream: object
    results: object
    kernels: object
    trace: object | None
    libraries: object | None


class Machine(Protocol):
    """What runs the runner."""

    @property
    def where(self) -> str:
        """A sentence for people."""

    def paths(self, place: Place, trace: Path | None, libraries: Path | None) -> RunnerPaths:
        """What its command line names."""

    def run(self, arguments: Sequence[object], watched: Watched, progress: Progress) -> dict[str, Any]:
        """Run it to its end; results are in the run's own folder then. Returns its report."""


class DeviceMachine:
    """A device to which the artifact was deployed. Raises DeviceError."""

    def __init__(self, choice: DeviceChoice, artifact: Path, say: Callable[[str], None]) -> None:
        serial = None if choice.serial == AUTO else choice.serial
        device = Adb(find_adb(choice.adb), host=choice.host, port=choice.port).device(serial)
        store = Store(device, Layout(checked_target(choice.target)))
        self._say = say
        self._store = store
        self._patience = Patience(device, say, WAIT_S)
        index = (artifact / INDEX_NAME).read_bytes()
        self._held = self._patience(partial(deployed_version, store, index, choice.name))
        self.facts: DeviceFacts = self._patience(partial(read_facts, device, store.layout.target))
        self._run: RemoteRun | None = None
        self._place: Place | None = None
        self._trace: Path | None = None

    @property
    def where(self) -> str:
        return f"{self._store.device.serial}: {self.facts.text()}"

    @property
    def model(self) -> str:
        """What tells its results from those of another kind of machine."""
        return self.facts.model or self.facts.machine

    @property
    def has_qnn(self) -> bool:
        return any(path.startswith("qnn/") for path in self._held.files)

    def begin(self, identity: Identity) -> None:
        """Which run it is: the same one finds what it has left on the device."""
        key = hashlib.sha256(json.dumps(identity.as_json(), sort_keys=True).encode()).hexdigest()[:16]
        self._run = RemoteRun(self._store, self._held, key, self._patience)

    def paths(self, place: Place, trace: Path | None, libraries: Path | None) -> RunnerPaths:
        run = self._remote()
        self._place, self._trace = place, trace
        return RunnerPaths(
            run.artifact, f"{run.folder}/stream", f"{run.folder}/results", run.kernels,
            None if trace is None else f"{run.folder}/trace.json", None if libraries is None else run.qnn,
        )  # fmt: skip

    def run(self, arguments: Sequence[object], watched: Watched, progress: Progress) -> dict[str, Any]:
        run, place = self._remote(), self._place
        if place is None:
            raise DeviceError("the run has no folder")
        own = ["--json", "--progress", "json", "--on-stop", "abandon"]
        own += map(str, self.facts.qnn_words()) if "--qnn-libraries" in arguments else []
        names = {} if self._trace is None else {"trace.json": self._trace}
        run.send(sorted(place.stream.iterdir()), "stream")
        try:
            ended = run.execute(run.runner, [*arguments, *own], watched.take)
        except (KeyboardInterrupt, DeviceError) as error:
            progress.finish()
            if isinstance(error, KeyboardInterrupt):
                self._patience.give_up()
            with contextlib.suppress(DeviceError):  # what is finished, if it can be had; the first error is said
                self._say("copying results from the device")
                run.fetch(place.results, names)
            raise
        progress.finish()
        self._say("copying results from the device")
        run.fetch(place.results, names)
        report = outcome(ended.returncode, ended.out, watched.log)
        if not report["stopped"]:
            run.done()
        return report

    def _remote(self) -> RemoteRun:
        if self._run is None:
            raise DeviceError("the run was not begun")
        return self._run
