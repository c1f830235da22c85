"""An artifact that `hvdc deploy` put onto a device, as a place where the runtime's programs run."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdc.artifact.manifest import INDEX_NAME
from hvdc.deploy.adb import AdbDevice, quoted
from hvdc.deploy.device_facts import DeviceFacts, read_facts
from hvdc.deploy.errors import DeviceError, LinkError
from hvdc.deploy.in_use import BUSY, guarded, in_use
from hvdc.deploy.layout import QNN, Layout
from hvdc.deploy.leash import LEASH
from hvdc.deploy.remote_run import deployed_version
from hvdc.deploy.smoke import Programs
from hvdc.deploy.store import Store
from hvdc.measure.places import Ended, Lines, ProgramError, followed, watched
from hvdc.progress import Progress

PROBE = "probe"
"""The folder below the target folder in which programs lie while `hvdc probe` runs."""


class DevicePlace:
    """A device with the runtime's programs. ``path``: of a program there. ``folder``: of the artifact that they
    measure, ``""`` for none. ``skels``: of libraries that the DSP loads. ``doing``: what they are started for, for
    whoever finds the device in use."""

    def __init__(
        self, device: AdbDevice, facts: DeviceFacts, layout: Layout, path: Callable[[str], str], folder: str,
        skels: str, doing: str,
    ) -> None:  # fmt: skip
        self.device, self.facts, self.skels, self._doing = device, facts, skels, doing
        self._layout, self._path, self._folder = layout, path, folder

    @property
    def what(self) -> str:
        return self.facts.text()

    def require_free(self) -> None:
        """That nobody works there now: before a long rest, and not after it. Raises InUseError, LinkError, DeviceError.

        A program that is started later asks again."""
        answer = self.device.script(guarded(self._layout.in_use, self._doing, "exec true"))
        if answer.status == BUSY:
            raise in_use(answer.said, self.what, self._layout.in_use)

    def script(self, text: str) -> str:
        try:
            return self.device.script(text, timeout_s=20).text
        except LinkError:
            raise
        except DeviceError:
            return ""

    def follow(self, text: str, lines: Lines, enough: threading.Event) -> None:
        with self.device.stream("exec", "sh", "-c", text) as process:
            followed(process, lines, enough)

    def run(
        self, program: str, arguments: Sequence[object], seen: Callable[[str], bool], lines: Lines | None = None
    ) -> Ended:
        if not self.device.passes_status:
            raise ProgramError(
                "the device's shell does not say how a program ended", where=self.device.state.model or "the device",
                expected="Android 7 or newer",
            )  # fmt: skip
        # Each shell becomes the next program: a device's daemon ends the first process alone when the link is gone.
        command = f"{LEASH}exec {quoted([self._path(program), *arguments])} </dev/null"
        script = guarded(self._layout.in_use, self._doing, command)
        with self.device.stream("exec", "sh", "-c", script) as process:
            ended = watched(process, program, seen, lines)
        if ended.status == BUSY:
            raise in_use("\n".join(ended.log), self.what, self._layout.in_use)
        # adb's status is 0 for a cut link, too, which may be back by now; no program ends so and says nothing.
        if not ended.out and ((lines is None and ended.status == 0) or not self.device.is_there()):
            raise self.lost(program, ended)
        return ended

    def lost(self, program: str, ended: Ended) -> LinkError:
        return LinkError(
            f"the device was lost while {program} ran", where=self.device.state.model or "the device",
            found=ended.log[-1] if ended.log else "it ended without a last word",
            fix="look at the cable and at the phone, and run the same command again",
        )  # fmt: skip

    def artifact(self) -> str:
        return self._folder

    def kernel_cache(self) -> str | None:
        folder = self._layout.kernels
        with contextlib.suppress(DeviceError):
            if self.device.shell("mkdir", "-p", folder).status == 0:
                return folder
        return None


@dataclass(frozen=True)
class Deployed:
    """``libraries``: the folder of QNN's that travelled with it; None: none did."""

    place: DevicePlace
    libraries: str | None


def deployed_place(device: AdbDevice, layout: Layout, artifact: Path, name: str | None) -> Deployed:
    """The version of this very artifact that is on the device. ``name`` None: under any name.

    Raises DeviceError: it is not there, or has no programs.
    """
    held = deployed_version(Store(device, layout), (artifact / INDEX_NAME).read_bytes(), name)
    target = held.facts()["target"]
    if not target:
        raise DeviceError("what is on the device has no programs", where=held.name, fix="hvdc deploy ARTIFACT")
    programs = Programs(device, layout.version(held.name, held.version), target)
    facts = read_facts(device, layout.target)
    doing = f"hvdc bench, {held.name}"
    place = DevicePlace(device, facts, layout, programs.path, programs.artifact, programs.runtime, doing)
    has_qnn = any(path.startswith(f"{QNN}/") for path in held.files)
    return Deployed(place, f"{programs.folder}/{QNN}" if has_qnn else None)


@contextlib.contextmanager
def pushed_place(
    device: AdbDevice, layout: Layout, facts: DeviceFacts, files: Sequence[Path], progress: Progress
) -> Iterator[DevicePlace]:
    """Programs and libraries of the runtime in a folder below the target folder, which goes with the block. Nobody else
    changes that folder meanwhile.

    Raises DeviceError: the folder is somebody else's or in use, or has no room.
    """
    store, folder = Store(device, layout), f"{layout.target}/{PROBE}"
    store.prepare()
    with store.lock() as lock:
        lock.keep()
        try:
            _push(store, folder, files, progress)
            yield DevicePlace(device, facts, layout, lambda program: f"{folder}/{program}", "", folder, "hvdc probe")
        finally:
            with contextlib.suppress(DeviceError):
                device.script(f"rm -rf {quoted([folder])}", timeout_s=30)


def _push(store: Store, folder: str, files: Sequence[Path], progress: Progress) -> None:
    """Files into a new folder, each with the hash that it has here: adb says nothing of a disk that was full."""
    device = store.device
    store.run(f"rm -rf {quoted([folder])}\nmkdir {quoted([folder])}", "making a folder on the device")
    progress.start("sending", sum(file.stat().st_size for file in files), len(files))
    try:
        for file in files:
            device.push(file, f"{folder}/{file.name}")
            progress.advance(file.stat().st_size)
            progress.item_done(file.name)
        names = [file.name for file in files]
        there = store.hashes(folder, names, 60.0)
        for file in files:
            if there.get(file.name) != hashlib.sha256(file.read_bytes()).hexdigest():
                raise DeviceError(
                    "what arrives on the device is not what was sent", where=f"{device.serial}: {folder}/{file.name}",
                    fix="make room on it, or try another cable",
                )  # fmt: skip
        store.run(f"cd {quoted([folder])}\nchmod 755 {quoted(names)}", "making programs executable")
    finally:
        progress.finish()
