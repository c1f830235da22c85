"""An artifact that `hvdc deploy` put onto a device, as a place where the runtime's programs run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.device_facts import DeviceFacts, read_facts
from hvdc.deploy.errors import DeviceError, LinkError
from hvdc.deploy.layout import QNN, Layout
from hvdc.deploy.smoke import Programs
from hvdc.deploy.store import Store
from hvdc.measure.places import Ended, ProgramError, watched

_LOST_STATUS = 255
"""Of adb's client where the link was cut, or the program's own: no program of the runtime has it."""


class DevicePlace:
    """The version in use of a deployment. Its programs are its own, and so is the artifact that they measure."""

    def __init__(self, device: AdbDevice, facts: DeviceFacts, layout: Layout, programs: Programs) -> None:
        self.device, self.facts, self._layout, self._programs = device, facts, layout, programs

    @property
    def what(self) -> str:
        return self.facts.text()

    @property
    def libraries(self) -> str:
        """The folder of QNN's libraries that travelled with it."""
        return f"{self._programs.folder}/{QNN}"

    @property
    def skels(self) -> str:
        """The folder of libraries that the DSP loads."""
        return self._programs.runtime

    def script(self, text: str) -> str:
        try:
            return self.device.script(text, timeout_s=20).text
        except LinkError:
            raise
        except DeviceError:
            return ""

    def run(self, program: str, arguments: Sequence[object], seen: Callable[[str], bool]) -> Ended:
        if not self.device.passes_status:
            raise ProgramError(
                "the device's shell does not say how a program ended", where=self.device.state.model or "the device",
                expected="Android 7 or newer",
            )  # fmt: skip
        with self.device.stream(self._programs.path(program), *arguments) as process:
            if process.stdin is not None:
                process.stdin.close()
                process.stdin = None
            ended = watched(process, program, seen)
        if ended.status != 0 and not ended.out and not self.device.is_there():
            raise LinkError(
                f"the device was lost while {program} ran", where=self.device.state.model or "the device",
                found=ended.log[-1] if ended.log else f"status {ended.status}",
                fix="look at the cable and at the phone, and run the same command again",
            )  # fmt: skip
        return ended

    def artifact(self) -> str:
        return self._programs.artifact

    def kernel_cache(self) -> str | None:
        folder = f"{self._layout.target}/kernels"
        with contextlib.suppress(DeviceError):
            if self.device.shell("mkdir", "-p", folder).status == 0:
                return folder
        return None


def deployed_place(device: AdbDevice, layout: Layout, name: str, model_sha256: str | None) -> DevicePlace:
    """The deployment of a name. ``model_sha256``: of the artifact that it must be; None: any.

    Raises DeviceError: nothing of this name is in use there, or it is another artifact.
    """
    where = f"{device.state.model or 'the device'}: {layout.target}"
    found = Store(device, layout).look()
    held = next((one for one in found.versions if one.name == name and one.is_current), None)
    if held is None:
        names = ", ".join(sorted({one.name for one in found.versions if one.is_current}))
        raise DeviceError(
            "the artifact is not on the device", where=where, expected=f"{name}, in use",
            found=names or "nothing", fix="hvdc deploy ARTIFACT, or give --name or --to",
        )  # fmt: skip
    facts = held.facts()
    if model_sha256 is not None and facts["model"] != model_sha256:
        raise DeviceError(
            "another artifact is on the device under this name", where=f"{where}, {name}",
            expected=f"model {model_sha256[:16]}", found=f"model {facts['model'][:16] or 'unknown'}",
            fix="hvdc deploy ARTIFACT, or give --name",
        )  # fmt: skip
    if not facts["target"]:
        raise DeviceError("what is on the device has no programs", where=f"{where}, {name}", fix="hvdc deploy ARTIFACT")
    programs = Programs(device, layout.current(name), facts["target"])
    return DevicePlace(device, read_facts(device, layout.target), layout, programs)
