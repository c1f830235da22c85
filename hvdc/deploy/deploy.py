"""``hvdc deploy``: an artifact onto a device; checked before it is sent, verified there, then switched to at once."""

from __future__ import annotations

import datetime
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hvdc.artifact.reader import Artifact, open_artifact
from hvdc.artifact.runtime import FOLDER, read_runtime, runtime_findings
from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.checks import Mismatch, arch_mismatch, fitting_builds, mismatches, refuse
from hvdc.deploy.device_facts import FASTRPC, DeviceFacts, read_facts
from hvdc.deploy.errors import DeviceError, LinkError
from hvdc.deploy.in_use import InUseError
from hvdc.deploy.layout import ARTIFACT, DEPLOYED, FILES, PIECES, TARGET, Layout, checked_name, checked_target
from hvdc.deploy.package import CHUNK_BYTES, Item, Package, make_package
from hvdc.deploy.patience import WAIT_S, Patience
from hvdc.deploy.push import Pusher, Sent
from hvdc.deploy.qairt import find_qairt
from hvdc.deploy.room import space_mismatch, unused, with_pruned
from hvdc.deploy.smoke import Programs, Tried, asked_arch, smoke_test
from hvdc.deploy.store import Found, Store
from hvdc.deploy.todo import Todo, plan_push
from hvdc.errors import StoppedError, UsageError
from hvdc.progress import Progress

SUFFIX = ".hvdc"
ROUNDS = 3
"""How often files that are not what they must be, though every piece was, are sent again."""
USB2_BYTES_S, USB3_BYTES_S = 35e6, 300e6
"""For an estimate before anything was sent; what cables and phones commonly reach."""


@dataclass(frozen=True)
class DeployRequest:
    """``name`` None: the artifact's. ``smoke``: try it there afterwards. ``prune``: remove the versions before."""

    artifact: Path
    name: str | None = None
    target: str = TARGET
    qairt: Path | None = None
    force: bool = False
    dry_run: bool = False
    smoke: bool = True
    prune: bool = False
    wait_s: float = WAIT_S
    chunk_bytes: int = CHUNK_BYTES


@dataclass
class Deployed:
    """What was found and done. ``todo``: before anything was sent. ``forced``: what does not fit, and was or would have
    to be overridden. ``was_there``: nothing had to be sent at all. ``kept``: why versions that were to go are there
    still, as a sentence; ``""``: none is."""

    serial: str
    facts: DeviceFacts
    name: str
    layout: Layout
    package: Package
    todo: Todo
    forced: list[Mismatch]
    sent: Sent = field(default_factory=Sent)
    losses: int = 0
    was_there: bool = False
    links: bool | None = None
    pruned: int = 0
    kept: str = ""
    tried: list[Tried] | None = None
    dry_run: bool = False

    @property
    def folder(self) -> str:
        return self.layout.version(self.name, self.package.version)

    @property
    def failed(self) -> list[Tried]:
        return [tried for tried in self.tried or () if tried.state == "failed"]

    def as_json(self) -> dict[str, Any]:
        p = self.package
        return {
            "serial": self.serial,
            "device": {**_facts(self.facts)},
            "name": self.name,
            "version": p.version,
            "folder": self.folder,
            "files": len(p.items),
            "bytes": p.bytes,
            "to_send_bytes": self.todo.sent_bytes,
            "reused_bytes": p.bytes - self.todo.sent_bytes,
            "reused_pieces_bytes": self.todo.copied_bytes,
            "estimated_s": {"usb2": self.todo.sent_bytes / USB2_BYTES_S, "usb3": self.todo.sent_bytes / USB3_BYTES_S},
            "dry_run": self.dry_run,
            "sent_bytes": self.sent.bytes,
            "sent_pieces": self.sent.chunks,
            "sent_again": self.sent.again,
            "sent_s": self.sent.seconds,
            "losses": self.losses,
            "was_there": self.was_there,
            "hard_links": self.links,
            "pruned_versions": self.pruned,
            "not_pruned": self.kept or None,
            "does_not_fit": [mismatch.text() for mismatch in self.forced],
            "smoke_test": None if self.tried is None else [tried.__dict__ for tried in self.tried],
        }


def deploy(request: DeployRequest, device: AdbDevice, progress: Progress, say: Callable[[str], None]) -> Deployed:
    """Do it. Raises ArtifactError, UsageError, DeviceError; StoppedError after an interrupt."""
    name = checked_name(request.name if request.name is not None else _name_of(request.artifact))
    layout = Layout(checked_target(request.target))
    with open_artifact(request.artifact) as artifact:
        for finding in runtime_findings(request.artifact):
            raise finding
        patience = Patience(device, say, request.wait_s)
        facts = patience(partial(read_facts, device, layout.target))
        say(f"{device.serial}: {facts.text()}")
        runtime = read_runtime(request.artifact)
        builds = fitting_builds(runtime, facts)
        answer = runtime.answer if runtime is not None and builds else None
        qairt = None if request.qairt is None else find_qairt(request.qairt, artifact.manifest, facts)
        unfit = list(mismatches(artifact.manifest, builds, facts, request.artifact, has_qairt=qairt is not None))
        if not request.dry_run:
            refuse(unfit, force=request.force, where=device.serial)
        libraries = qairt.libraries if qairt is not None else ()
        package = make_package(artifact, builds, libraries, progress, chunk_bytes=request.chunk_bytes, answer=answer)
        store = Store(device, layout)
        found = patience(store.look)
        done = Deployed(device.serial, facts, name, layout, package, plan_push(package, found, layout, name), unfit)
        done.dry_run = request.dry_run
        _say_name(artifact, facts, say)
        if request.dry_run:
            then = with_pruned(facts, found, name, package.version) if request.prune else facts
            space = space_mismatch(done.todo, package, found, then, name, links=None)
            done.forced = [*unfit, *_folder(store, patience), *([space] if space is not None else [])]
            return done
        try:
            _deploy(request, artifact, store, done, patience, progress, say)
        except KeyboardInterrupt as stop:
            raise StoppedError(
                "interrupted: what arrived on the device is kept, and what was in use there is in use still",
                where=f"{device.serial}: {layout.target}", fix="run the same command again to go on",
            ) from stop  # fmt: skip
        finally:
            progress.finish()
            done.losses = patience.losses
        if request.smoke and builds:
            done.tried = smoke_test(
                Programs(device, done.folder, package.target, layout.in_use), facts, layout,
                is_calibrated=artifact.manifest.calibration is not None, has_answer=answer is not None, say=say,
            )  # fmt: skip
    return done


def _deploy(
    request: DeployRequest, artifact: Artifact, store: Store, done: Deployed, patience: Patience, progress: Progress,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    package, name = done.package, done.name
    done.links = patience(store.prepare)
    with store.lock() as lock:
        patience.before = lock.keep
        patience(partial(store.require_no_links, store.layout.deployment(name), store.layout.runs(name)))
        found = patience(store.look)
        if not lock.is_kept:
            say("the device has no flock: deploy to it from one place at a time")
        done.todo = plan_push(package, found, store.layout, name)
        pusher = Pusher(store, name, package, patience, progress, say, link=done.links)
        done.sent = pusher.sent
        held = next((h for h in found.versions if (h.name, h.version) == (name, package.version)), None)
        done.was_there = held is not None and pusher.is_intact(done.folder)
        if not done.was_there:
            found = _make_room(request, store, done, found, patience, say)
            _send(request, artifact, pusher, done, found, patience, progress, say)
        patience(partial(store.publish, name, package.version))
        patience(partial(store.tidy, name))
        if request.prune:
            try:
                done.pruned += patience(partial(store.prune, name, package.version))
            except InUseError as error:
                done.kept = f"{error.found}: it may be reading them. Run the same command again when it has ended"


def _folder(store: Store, patience: Patience) -> list[Mismatch]:
    """That the folder cannot be used. Raises LinkError."""
    try:
        patience(store.require_usable)
    except LinkError:
        raise
    except DeviceError as error:
        return [Mismatch(f"{error.what}: {store.layout.target}", found=error.found, fix=error.fix)]
    return []


def _make_room(
    request: DeployRequest, store: Store, done: Deployed, found: Found, patience: Patience, say: Callable[[str], None]
) -> Found:
    """Where space is short and versions before may go, those that are not in use go first; returns what is there then.

    Raises DeviceError: there is too little all the same.
    """
    lacks = partial(space_mismatch, package=done.package, name=done.name, links=bool(done.links))
    space = lacks(done.todo, found=found, facts=done.facts)
    gone = unused(found, done.name, done.package.version) if space is not None and request.prune else []
    if gone:
        say(f"space is short: {len(gone)} versions that are not in use are removed first")
        patience(partial(store.remove_versions, gone))
        done.pruned += len(gone)
        found, done.facts = patience(store.look), patience(partial(read_facts, store.device, store.layout.target))
        done.todo = plan_push(done.package, found, store.layout, done.name)
        space = lacks(done.todo, found=found, facts=done.facts)
    done.forced += refuse([space] if space is not None else [], force=request.force, where=done.serial)
    return found


def _send(
    request: DeployRequest, artifact: Artifact, pusher: Pusher, done: Deployed, found: Found, patience: Patience,
    progress: Progress, say: Callable[[str], None],
) -> None:  # fmt: skip
    todo = done.todo
    pusher.prepare(found, todo)
    _fill(pusher, todo.only(_is_program), progress, "sending the runtime")
    if FASTRPC in done.facts.libraries and any(item.path.endswith("hvdc_selftest") for item in done.package.items):
        programs = Programs(pusher.device, pusher.new, done.package.target)
        mismatch = arch_mismatch(artifact.manifest, *patience(partial(asked_arch, programs)))
        done.forced += refuse([mismatch] if mismatch is not None else [], force=request.force, where=done.serial)
    _fill(pusher, todo.only(lambda item: not _is_program(item)), progress, "sending")
    pusher.reuse(todo.twins)
    for _ in range(ROUNDS):
        bad = pusher.verify()
        if not bad:
            break
        say(f"{len(bad)} files on the device are not what they must be, and are sent again: {bad[0].path}, …")
        pusher.discard(bad)
        pusher.push(tuple((item, item.chunks) for item in bad))
    else:
        raise DeviceError(
            "files on the device change after they were verified", where=f"{done.serial}: {bad[0].path}",
            found=f"{len(bad)} files", fix="the phone's memory may be worn out: try --to another folder",
        )  # fmt: skip
    _write_lists(pusher, done)


def _is_program(item: Item) -> bool:
    return item.path.startswith(f"{ARTIFACT}/{FOLDER}/")


def _fill(pusher: Pusher, todo: Todo, progress: Progress, what: str) -> None:
    """Put files into the new version: first what the device has."""
    if todo.linked or todo.copied:
        size = sum(item.bytes for item, _ in todo.linked) + todo.copied_bytes
        progress.start("reusing what is on the device", size, len(todo.linked) + len(todo.copied))
        pusher.reuse(todo.linked)
        pusher.copy(todo.copied)
        progress.finish()
    if todo.sent:
        progress.start(what, todo.sent_bytes, len(todo.sent))
        pusher.push(todo.sent)
        progress.finish()


def _write_lists(pusher: Pusher, done: Deployed) -> None:
    """``files.txt`` comes last: a folder without it is no version."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    facts = {**done.package.facts(), "name": done.name, "deployed": now}  # by this machine's clock
    with tempfile.TemporaryDirectory(prefix="hvdc-deploy-") as folder:
        texts = {DEPLOYED: json.dumps(facts), PIECES: done.package.pieces(), FILES: done.package.listing()}
        paths = {name: Path(folder) / name for name, text in texts.items() if text}
        for name, path in paths.items():
            path.write_text(texts[name], "ascii")
        pusher.put(paths)


def _name_of(artifact: Path) -> str:
    name = artifact.resolve().name.removesuffix(SUFFIX)
    if not name:
        raise UsageError("the artifact has no name for the device", where=ascii(str(artifact)), fix="give one: --name")
    return name


def _say_name(artifact: Artifact, facts: DeviceFacts, say: Callable[[str], None]) -> None:
    due = artifact.manifest.target.hexagon_arch
    if facts.arch_by_name and facts.arch_by_name != due:
        say(f"by its name the device has a DSP of {facts.arch_by_name}; the artifact is for {due}")


def _facts(facts: DeviceFacts) -> dict[str, Any]:
    return {
        "machine": facts.machine, "abi": facts.abi, "android_sdk": facts.android_sdk, "model": facts.model,
        "android_release": facts.android_release, "soc": facts.soc, "free_bytes": facts.free_bytes,
        "memory_available_bytes": facts.memory_available_bytes, "libraries": facts.libraries,
    }  # fmt: skip
