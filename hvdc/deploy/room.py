"""Does what will be written find room on a device, and what could be removed for it?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hvdc.deploy.checks import Mismatch
from hvdc.deploy.device_facts import DeviceFacts
from hvdc.deploy.found import Found, Held
from hvdc.deploy.package import Package
from hvdc.deploy.todo import Todo

SPACE_FACTOR = 1.05
"""Of what will be written: file systems need some beside it."""


def space_mismatch(
    todo: Todo, package: Package, found: Found, facts: DeviceFacts, name: str, *, links: bool | None
) -> Mismatch | None:
    """``links``: whether files of other versions are linked, else they are copied; None: nobody has tried.
    ``name``: what is deployed."""
    needed, free = int(todo.needed_bytes(links=bool(links)) * SPACE_FACTOR), facts.free_bytes
    if free is None:
        return Mismatch("the device does not say how much space is free", f"{needed:,} bytes", may_force=True)
    if free >= needed:
        return None
    what = "the device has too little free space"
    if todo.linked and not links:
        reason = "it makes no hard links" if links is False else "unless it makes hard links"
        what += f" for two versions: {reason}, what they share is there twice"
    return Mismatch(what, f"{needed:,} bytes", f"{free:,} bytes", _advice(package, found, free, needed, name))


def with_pruned(facts: DeviceFacts, found: Found, name: str, version: str) -> DeviceFacts:
    """A device's facts after versions that nothing uses were removed, as far as they share no files."""
    free = facts.free_bytes
    return replace(facts, free_bytes=None if free is None else free + _bytes(unused(found, name, version)))


def unused(found: Found, name: str, version: str) -> list[Held]:
    """Versions of a name that are neither in use nor the one that is wanted."""
    return [held for held in found.versions if held.name == name and held.version != version and not held.is_current]


def _advice(package: Package, found: Found, free: int, needed: int, name: str) -> str:
    """What costs least of that which makes room enough, where versions share no files."""
    others = unused(found, name, package.version)
    if needed <= free + _bytes(others):
        return f"the same command with --prune: it first removes {_counted(others)} of {name} that nothing uses"
    own = [held for held in found.versions if held.name == name]
    if own and int(package.bytes * SPACE_FACTOR) <= free + _bytes(own):
        return (
            f"hvdc deploy --remove {name} first makes room; what is lost by it: {_counted(own)} on the device, so that "
            f"nothing of it can run there until all {package.bytes:,} bytes are sent, and the results and logs of its "
            "runs (hvdc deploy --pull-logs DIR keeps the logs)"
        )
    names = ", ".join(f"{n} {size:,} bytes" for n, size in _by_name(found).items())
    ours = f"hvdc deploy --remove NAME ({names}), which takes its runs and logs, too; or " if names else ""
    return f"remove something from the device: {ours}photos and apps"


def _by_name(found: Found) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for held in found.versions:
        sizes[held.name] = sizes.get(held.name, 0) + held.bytes
    for (name, _), files in found.unfinished.items():
        sizes[name] = sizes.get(name, 0) + sum(files.values())
    return sizes


def _bytes(versions: Iterable[Held]) -> int:
    return sum(held.bytes for held in versions)


def _counted(versions: list[Held]) -> str:
    return "one version" if len(versions) == 1 else f"{len(versions)} versions"
