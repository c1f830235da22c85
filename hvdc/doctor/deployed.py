"""What of hvdc is on a phone: which versions, and which of them lacks what for which command. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator

from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.device_facts import FASTRPC, QNN_HTP, DeviceFacts
from hvdc.deploy.found import Held
from hvdc.deploy.layout import ARTIFACT, QNN, Layout
from hvdc.deploy.qairt import library_names
from hvdc.deploy.store import Store
from hvdc.doctor.check import Check

_RUN = "hvdc run and bench on this phone"
_DECODE = "decoding on this phone"
_NPU = "the NPU of this phone"


def deployed(device: AdbDevice, facts: DeviceFacts, layout: Layout, name: str) -> Iterator[Check]:
    """``name``: the phone's, for people. Raises DeviceError, LinkError."""
    found = Store(device, layout).look()
    if not found.versions:
        yield Check(f"{name} artifacts", "missing", f"nothing is deployed in {layout.target}", _RUN,
                    "hvdc deploy ARTIFACT")  # fmt: skip
    for held in sorted(found.versions, key=lambda version: (version.name, not version.is_current)):
        yield _version(held, name)
        if held.is_current:
            yield from _parts(held, facts, f"{name} {held.name}")
    if found.unfinished_bytes:
        yield Check(
            f"{name} unfinished", "ok", f"{found.unfinished_bytes / (1 << 20):.1f} MiB of deployments that were cut "
            "short: the same hvdc deploy goes on with them",
        )  # fmt: skip
    if (path := facts.libraries.get(QNN_HTP)) is not None:
        yield Check(f"{name} own QAIRT", "ok", f"{path}: the phone's own, which hvdc does not use")


def _version(held: Held, name: str) -> Check:
    facts = held.facts()
    parts = [f"version {held.version}", "in use" if held.is_current else "not in use: hvdc deploy --prune removes it",
             f"{held.bytes / (1 << 20):,.1f} MiB", facts["deployed"] and f"deployed {facts['deployed']}",
             facts["hvdc"] and f"by hvdc {facts['hvdc']}"]  # fmt: skip
    return Check(f"{name} {held.name}", "ok", ", ".join(filter(None, parts)))


def _parts(held: Held, facts: DeviceFacts, name: str) -> Iterator[Check]:
    """What travels with a version: programs, the DSP's library, QAIRT."""
    target = held.facts()["target"]
    if target:
        yield Check(f"{name} runtime", "ok", target)
    else:
        yield Check(f"{name} runtime", "missing", "no programs were deployed with it", _RUN,
                    "hvdc runtime build --target android --ndk PATH --into ARTIFACT, and deploy it again")  # fmt: skip
    names = {path.rsplit("/", 1)[-1] for path in held.files if path.startswith(f"{ARTIFACT}/runtime/")}
    skels = sorted(name for name in names if name.endswith("libhvdc_skel.so"))
    if skels:
        yield Check(f"{name} DSP library", "ok", ", ".join(skels))
    elif FASTRPC in facts.libraries:
        yield Check(f"{name} DSP library", "missing", "no libhvdc_skel.so was deployed with it", _NPU,
                    "hvdc runtime build --target hexagon --into ARTIFACT, and deploy it again")  # fmt: skip
    yield _qairt(held, facts, f"{name} QAIRT")


def _qairt(held: Held, facts: DeviceFacts, name: str) -> Check:
    have = {path.rsplit("/", 1)[-1] for path in held.files if path.startswith(f"{QNN}/")}
    arch = _arch(held, facts) if facts.is_android else ""
    lack = [library for library in library_names(arch) if library not in have]
    if not lack:
        return Check(name, "ok", ", ".join(sorted(have)))
    found = f"it has {', '.join(sorted(have))}, and lacks {', '.join(lack)}" if have else "none was deployed with it"
    return Check(name, "missing", found, _DECODE, "hvdc deploy ARTIFACT --qairt DIR, with your copy of QAIRT")


def _arch(held: Held, facts: DeviceFacts) -> str:
    """Of the DSP: as the SoC's name says, else as the library beside it is for."""
    if facts.arch_by_name:
        return facts.arch_by_name
    for path in held.files:
        head, found, tail = path.rsplit("/", 1)[-1].partition("-libhvdc_skel.so")
        if found and not tail and head.startswith("hexagon-"):
            return head.removeprefix("hexagon-")
    return ""
