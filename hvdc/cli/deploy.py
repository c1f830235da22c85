"""``hvdc deploy``."""

from __future__ import annotations

from pathlib import Path

import click

from hvdc.cli.device_options import device_options, open_device
from hvdc.cli.output import mib, out, plain, print_json, progress_for, table
from hvdc.cli.shared_options import given, refuse_without_effect, say_for
from hvdc.deploy.deploy import USB2_BYTES_S, USB3_BYTES_S, Deployed, DeployRequest, deploy
from hvdc.deploy.layout import TARGET, Layout, checked_target
from hvdc.deploy.patience import WAIT_S
from hvdc.deploy.store import Store
from hvdc.errors import Exit, UsageError


@click.command()
@click.argument("artifact", required=False, type=click.Path(path_type=Path))
@device_options
@click.option("--name", help="What it is called on the device.  [default: the artifact's name]")
@click.option("--to", "target", default=TARGET, show_default=True, metavar="DIR", help="The folder on the device.")
@click.option("--qairt", type=click.Path(path_type=Path), metavar="DIR",
              help="Your copy of Qualcomm's QAIRT SDK, whose libraries the decoder needs.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and what does not fit; send nothing.")
@click.option("--no-run", is_flag=True, help="Do not try it on the device afterwards.")
@click.option(
    "--prune",
    is_flag=True,
    help="Remove the versions before, once the new one is in use; unused ones at once if space is short.",
)
@click.option("--force", is_flag=True, help="Go on in spite of mismatches that say so.")
@click.option("--wait-s", type=click.FloatRange(0), default=WAIT_S, show_default=True,
              help="How long a device that was lost is waited for.")  # fmt: skip
@click.option("--list", "list_", is_flag=True, help="List what is on the device.")
@click.option("--remove", metavar="NAME", help="Remove an artifact from the device, with all its versions and runs.")
@click.option("--pull-logs", type=click.Path(path_type=Path), metavar="DIR",
              help="Copy logs and reports of runs on the device into a folder.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(
    artifact: Path | None,
    serial: str | None,
    adb: Path | None,
    adb_host: str | None,
    adb_port: int | None,
    name: str | None,
    target: str,
    qairt: Path | None,
    dry_run: bool,
    no_run: bool,
    prune: bool,
    force: bool,
    wait_s: float,
    list_: bool,
    remove: str | None,
    pull_logs: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Put ARTIFACT onto a phone by adb: checked first, verified there, then switched to at once.

    Only what is not on the device yet is sent. A cut link is waited for, and the same command goes on where the last
    one stopped. The version before stays on the device until --prune.

    \b
    Examples:
      hvdc deploy dcm.hvdc --dry-run
      hvdc deploy dcm.hvdc --qairt ~/qairt/2.41.0.251128
      hvdc deploy --list
      hvdc deploy --remove dcm
    """
    others = [word for word, on in (("--list", list_), ("--remove", remove), ("--pull-logs", pull_logs)) if on]
    if len(others) + (artifact is not None) != 1:
        raise UsageError(
            "one thing at a time", expected="an ARTIFACT, --list, --remove NAME or --pull-logs DIR",
            found=" and ".join([*(["ARTIFACT"] if artifact is not None else []), *others]) or "none of them",
        )  # fmt: skip
    if artifact is None:
        with_artifact = given("name", "qairt", "dry_run", "no_run", "prune", "force", "wait_s")
        refuse_without_effect(with_artifact, f"{others[0]} deploys nothing", "leave it out")
    device = open_device(adb, adb_host, adb_port, serial)
    if artifact is not None:
        request = DeployRequest(
            artifact=artifact, name=name, target=target, qairt=qairt, force=force, dry_run=dry_run, smoke=not no_run,
            prune=prune, wait_s=wait_s,
        )  # fmt: skip
        done = deploy(request, device, progress_for(quiet=quiet or as_json), say_for(quiet=quiet or as_json))
        print_json(done.as_json()) if as_json else _print(done)
        is_unfit = dry_run and any(not (force and mismatch.may_force) for mismatch in done.forced)
        return Exit.DEVICE if done.failed or done.kept or is_unfit else Exit.OK
    store = Store(device, Layout(checked_target(target)))
    if list_:
        _list(store, as_json)
    elif remove is not None:
        store.remove_locked(remove)
        print_json({"removed": remove}) if as_json else out().print(f"{device.serial}: {remove} is removed")
    elif pull_logs is not None:
        pulled = store.pull_logs(pull_logs)
        print_json({"logs": [str(path) for path in pulled]}) if as_json else out().print(
            f"{pull_logs}: {len(pulled)} file{'s' * (len(pulled) != 1)}"
        )
    return Exit.OK


def _list(store: Store, as_json: bool) -> None:
    found = store.look()
    versions, unfinished = found.versions, sorted({name for name, _ in found.unfinished})
    if as_json:
        facts = [
            {"name": v.name, "version": v.version, "is_current": v.is_current, "bytes": v.bytes, **v.facts()}
            for v in versions
        ]
        print_json(
            {"serial": store.device.serial, "folder": store.layout.target, "versions": facts,
             "unfinished": unfinished, "unfinished_bytes": found.unfinished_bytes}
        )  # fmt: skip
        return
    if found.unfinished_bytes:
        names = ", ".join(unfinished) or "of no name"
        out().print(f"unfinished: {names}, {mib(found.unfinished_bytes)} MiB: the same hvdc deploy goes on with it, "
                    "hvdc deploy --remove NAME removes it")  # fmt: skip
    elif not versions:
        out().print(f"{store.device.serial}: nothing is deployed in {store.layout.target}")
    if not versions:
        return
    rows = [
        (
            v.name,
            v.version,
            "in use" if v.is_current else "",
            mib(v.bytes),
            v.facts()["deployed"],
            v.facts()["model"][:16],
        )
        for v in versions
    ]
    table("", ("name", "version", "", ">MiB", "deployed", "model"), rows)


def _print(done: Deployed) -> None:
    console, p, todo = out(), done.package, done.todo
    there = p.bytes - todo.sent_bytes if done.dry_run else max(0, p.bytes - done.sent.bytes)
    if done.dry_run:
        rows = [(item.path, mib(item.bytes), mib(sum(c.bytes for c in chunks))) for item, chunks in todo.sent]
        table("To send", ("file", ">MiB", ">MiB to send"), rows)
        slow, fast = todo.sent_bytes / USB2_BYTES_S, todo.sent_bytes / USB3_BYTES_S
        console.print(f"device    {done.facts.text()}")
        console.print(f"files     {len(p.items)}, {mib(p.bytes)} MiB: {mib(todo.sent_bytes)} to send, "
                      f"{mib(there)} there{_in_pieces(todo.copied_bytes)}")  # fmt: skip
        console.print(f"time      about {fast:.0f} s at {USB3_BYTES_S / 1e6:.0f} MB/s, {slow:.0f} s at "
                      f"{USB2_BYTES_S / 1e6:.0f} MB/s")  # fmt: skip
        console.print(f"folder    {done.folder}")
        for mismatch in done.forced:
            console.print(f"does not fit: {mismatch.text()}")
        return
    rate = done.sent.bytes / done.sent.seconds / 1e6 if done.sent.seconds else 0.0
    sent = "nothing was sent: every file was there and is as it must be" if done.was_there else (
        f"{mib(done.sent.bytes)} MiB sent in {done.sent.seconds:.1f} s ({rate:.0f} MB/s), {mib(there)} MiB were there"
        f"{_in_pieces(done.sent.copied_bytes)}"
    )  # fmt: skip
    console.print(f"deployed  {done.name} {done.package.version} on {done.serial}")
    console.print(f"          {sent}")
    console.print(f"folder    {done.folder}")
    if done.pruned:
        console.print(f"pruned    {done.pruned} version{'s' * (done.pruned != 1)}")
    if done.kept:
        console.print(f"not pruned: another program is working on this device now, {plain(done.kept)}")
    for mismatch in done.forced:
        console.print(f"in spite of: {mismatch.text()}")
    for tried in done.tried or ():
        console.print(f"{tried.state:<9} {tried.name}: {plain(tried.text)}")


def _in_pieces(size: int) -> str:
    return f", {mib(size)} of it as pieces of files that have changed" if size else ""
