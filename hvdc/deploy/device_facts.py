"""What a device says about itself, asked once, by its shell alone: nothing is sent to it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.errors import DeviceError
from hvdc.targets import target_of_soc

FASTRPC, OPENCL, QNN_HTP = "libcdsprpc.so", "libOpenCL.so", "libQnnHtp.so"
"""Libraries of the phone's maker: the way to the DSP, the GPU's driver, and a QAIRT of its own, which some have."""

SOCS = {
    "SM8750": ("Snapdragon 8 Elite", "v79"),
    "SM8650": ("Snapdragon 8 Gen 3", "v75"),
    "SM8550": ("Snapdragon 8 Gen 2", "v73"),
    "SM8850": ("Snapdragon 8 Elite Gen 5", "v81"),
}
"""Model -> its name, and the architecture of its DSP: for display only, the DSP itself is asked."""

MACHINES = {"arm64-v8a": "aarch64", "x86_64": "x86_64", "armeabi-v7a": "armv7l", "x86": "i686"}
"""Android's ABI -> the machine as Python's `platform.machine` names it."""

_FOLDERS = {
    True: "/odm/lib64 /vendor/lib64 /system/vendor/lib64 /system/lib64 /system_ext/lib64",
    False: "/usr/local/lib /usr/lib/{0}-linux-gnu /lib/{0}-linux-gnu /usr/lib64 /usr/lib /lib64 /lib",
}
"""Where the loader of a program in /data/local/tmp looks on Android, or any other program's on Linux."""

PROGRAMS = ("sha256sum", "flock", "mv", "df")

_SCRIPT = """
say() {{ printf '%s %s\\n' "$1" "$2"; }}
prop() {{ say "$1" "$(getprop "$2" 2>/dev/null)"; }}
say machine "$(uname -m 2>/dev/null)"
prop abi ro.product.cpu.abi
prop sdk ro.build.version.sdk
prop release ro.build.version.release
prop maker ro.product.manufacturer
prop model ro.product.model
prop soc ro.soc.model
say soc_of_kernel "$(cat /sys/devices/soc0/machine 2>/dev/null)"
say memory "$(grep '^MemAvailable:' /proc/meminfo 2>/dev/null)"
place={target}
while [ ! -d "$place" ] && [ "$place" != / ] && [ -n "$place" ]; do place=${{place%/*}}; done
say space "$(df -k "${{place:-/}}" 2>/dev/null | tr '\\n' ' ')"
for program in {programs}; do
  if command -v "$program" >/dev/null 2>&1; then say program "$program"; fi
done
if [ -n "$(getprop ro.build.version.sdk 2>/dev/null)" ]; then folders='{android}'; else folders='{linux}'; fi
for library in {libraries}; do
  for folder in $(printf '%s' "$LD_LIBRARY_PATH" | tr ':' ' ') $folders; do
    for file in "$folder/$library" "$folder/$library.1"; do
      if [ -r "$file" ]; then say library "$library $file"; break 2; fi
    done
  done
done
"""


@dataclass(frozen=True)
class DeviceFacts:
    """``machine``: as `platform.machine` names it. ``android_sdk`` None: not Android. ``libraries``: name -> the first
    file of it that can be read where the loader looks. Values that the device does not tell are None or ``""``."""

    machine: str
    abi: str
    android_sdk: int | None
    android_release: str
    model: str
    soc: str
    free_bytes: int | None
    memory_available_bytes: int | None
    programs: frozenset[str]
    libraries: dict[str, str] = field(default_factory=dict)

    @property
    def is_android(self) -> bool:
        return self.android_sdk is not None

    @property
    def soc_name(self) -> str:
        """Of a table, for people."""
        known = SOCS.get(self.soc)
        return f"{self.soc} ({known[0]})" if known else self.soc or "unknown SoC"

    @property
    def arch_by_name(self) -> str:
        """The DSP's architecture as a table has it, for display; ``""`` if the table does not know the SoC."""
        return SOCS.get(self.soc, ("", ""))[1]

    def qnn_words(self) -> list[object]:
        """What the runtime's programs are told of this device, so that binaries for another one are refused before QNN
        sees them: QNN's number of its SoC and its DSP's architecture. None where its SoC has no description."""
        target = target_of_soc(self.soc)
        return [] if target is None else ["--soc", target.soc_model, "--arch", target.arch]

    def text(self) -> str:
        """One line for people."""
        system = f"Android {self.android_release} (API {self.android_sdk})" if self.is_android else "Linux"
        return ", ".join([self.model or "unknown model", self.soc_name, f"{self.abi or self.machine}", system])


def read_facts(device: AdbDevice, target: str) -> DeviceFacts:
    """Ask the device. Raises DeviceError: it is lost, or answers nothing that can be used."""
    linux = _FOLDERS[False].format("$(uname -m)").replace("$(uname -m)", "'\"$(uname -m)\"'")
    script = _SCRIPT.format(
        target=shlex.quote(target), programs=" ".join(PROGRAMS), android=_FOLDERS[True], linux=linux,
        libraries=f"{FASTRPC} {OPENCL} {QNN_HTP}",
    )  # fmt: skip
    answer = device.script(script)
    facts = parse_facts(answer.text)
    if not facts.machine:
        raise DeviceError(
            "the device does not say what it is", where=device.serial, expected="what uname and getprop say",
            found=answer.said or "nothing", fix="try `adb shell uname -m`; if it says nothing either, restart it",
        )  # fmt: skip
    return facts


def parse_facts(text: str) -> DeviceFacts:
    """Lines ``name value``; what is none of them is passed over."""
    single: dict[str, str] = {}
    programs: set[str] = set()
    libraries: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if name == "program" and value in PROGRAMS:
            programs.add(value)
        elif name == "library":
            library, _, path = value.partition(" ")
            libraries.setdefault(library, path)
        else:
            single.setdefault(name, _plain(value))
    abi, sdk = single.get("abi", ""), single.get("sdk", "")
    machine = MACHINES.get(abi, "") or single.get("machine", "")
    soc = single.get("soc", "") or single.get("soc_of_kernel", "")
    model = " ".join(filter(None, (single.get("maker", ""), single.get("model", ""))))
    memory = re.search(r"(\d{1,15}) kB", single.get("memory", ""))
    space = re.search(r"\d+\s+\d+\s+(\d{1,15})\s+\d+%\s", single.get("space", "") + " ")
    return DeviceFacts(
        machine=machine, abi=abi, android_sdk=int(sdk) if re.fullmatch(r"\d{1,4}", sdk) else None,
        android_release=single.get("release", ""), model=model, soc=soc.upper(),
        free_bytes=int(space[1]) << 10 if space else None,
        memory_available_bytes=int(memory[1]) << 10 if memory else None, programs=frozenset(programs),
        libraries=libraries,
    )  # fmt: skip


def _plain(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:200].strip()
