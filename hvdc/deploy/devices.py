"""Devices as adb lists them: their states, which one is meant, and a sentence for each that cannot be used."""

from __future__ import annotations

from dataclasses import dataclass

from hvdc.deploy.errors import DeviceError

AUTO = "auto"
"""In place of a serial: the only device, or ANDROID_SERIAL's."""

UNUSABLE = {
    "unauthorized": ("the phone does not trust this computer yet", "unlock it and accept 'Allow USB debugging?'"),
    "authorizing": ("the phone is being asked to trust this computer", "unlock it and accept 'Allow USB debugging?'"),
    "offline": ("the phone does not answer", "unplug it and plug it in again; if that does not help, restart it"),
    "recovery": ("the phone is in recovery mode", "restart it into Android: adb reboot"),
    "sideload": ("the phone waits for an update (sideload)", "restart it into Android"),
    "rescue": ("the phone is in rescue mode", "restart it into Android"),
    "bootloader": ("the phone is in its bootloader", "restart it into Android: fastboot reboot"),
    "connecting": ("the phone is being connected", "run the same command again in a moment"),
    "no permissions": (
        "this user may not open the phone's USB device",
        "install the udev rules (apt-get install android-sdk-platform-tools-common), join the group plugdev, and plug "
        "it in again",
    ),
}
"""State -> what it means, and what to do."""

PASSING = ("offline", "connecting", "authorizing")
"""States that a device may leave by itself."""


@dataclass(frozen=True)
class DeviceState:
    """A line of ``adb devices -l``. ``model`` and ``product`` are ``""`` where adb does not know them."""

    serial: str
    state: str
    model: str = ""
    product: str = ""

    def text(self) -> str:
        """One line for people."""
        return f"{self.serial}: {self.model or 'unknown model'}, {self.state}"


def parse_devices(text: str) -> list[DeviceState]:
    """The answer of ``adb devices -l``. What is no line of it is passed over: its server may say that it starts."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2 or line.startswith(("List of devices", "*")):
            continue
        rest = " ".join(words[1:])
        state = "no permissions" if rest.startswith("no permissions") else words[1]
        if ":" in state:
            continue
        facts = dict(word.split(":", 1) for word in words[2:] if ":" in word)
        model = facts.get("model", "").replace("_", " ")
        found.append(DeviceState(words[0], state, model, facts.get("product", "")))
    return found


def choose_device(devices: list[DeviceState], serial: str | None) -> DeviceState:
    """The one that is meant. Raises DeviceError: there is none, not this one, or more than one and no choice."""
    lines = "; ".join(device.text() for device in devices)
    if serial is not None:
        for device in devices:
            if device.serial == serial:
                return device
        raise DeviceError(
            "there is no such device", where=serial, found=lines or "no device at all",
            fix="adb devices -l shows what is connected" + ("; adb connect HOST:PORT" if ":" in serial else ""),
        )  # fmt: skip
    if not devices:
        raise DeviceError(
            "there is no device",
            fix="plug the phone in, enable USB debugging in its developer options, and accept this computer on it",
        )
    if len(devices) > 1:
        raise DeviceError(
            "there are several devices, and none was chosen", found=lines, fix="choose one: --serial, or ANDROID_SERIAL"
        )
    return devices[0]


def refuse_unusable(device: DeviceState) -> None:
    """Raises DeviceError unless its state is ``device``."""
    if device.state == "device":
        return
    what, fix = UNUSABLE.get(device.state, (f"the phone is in the state {device.state!r}", "restart it into Android"))
    raise DeviceError(what, where=device.text(), fix=fix)
